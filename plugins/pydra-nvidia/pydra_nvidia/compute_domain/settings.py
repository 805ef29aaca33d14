"""What the admin decides for `nvidia-compute-domain`: its SETTINGS_TYPE.

What stands below a field or a mode is its text in docs/settings.md, which is generated (`make docs`).
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import msgspec

from pydra_nvidia import settings as nvidia
from pydra_pci import AbsolutePath

PREFIX = "PYDRA_NVIDIA_COMPUTE_DOMAIN_"


class Imex(Enum):
    """Who runs the IMEX daemon of a node."""

    DRIVER_MANAGED = "driverManaged"
    """A pod for each ComputeDomain and node, which NVIDIA's controller creates; it has `daemon-0`."""
    HOST_MANAGED = "hostManaged"
    """The host, as a service. No `daemon-0` is published, claims for all channels get channel 0, and ComputeDomains are
    not isolated from each other."""


class Settings(nvidia.DriverSettings, frozen=True, kw_only=True):
    """All settings. Those that `pydra_nvidia.settings.Settings` has too mean the same."""

    state: AbsolutePath = nvidia.Settings().state
    """The directory of IMEX daemons and requests for maintenance: the same as `PYDRA_NVIDIA_STATE`. A reboot must empty
    it; it has the same path on the host. Change it on drained nodes only."""

    imex: Imex = Imex.DRIVER_MANAGED
    """Who runs the IMEX daemon of the node (see [ComputeDomains](compute-domains.md#who-runs-the-imex-daemon))."""
    daemon_namespace: Annotated[str, msgspec.Meta(pattern="^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?$")] = ""
    """The namespace whose claims can have `daemon-0`: that of the controller, in which the daemons run. Without it, a
    claim of any namespace can. The chart sets it with `computeDomainController.enabled`."""
    imex_socket: AbsolutePath = "/etc/nvidia-imex/imex_ctrl.sock"
    """The socket of the host's IMEX daemon, inside the driver's root: its `IMEX_CMD_UNIX_DOMAIN_PATH`."""
    ready_deadline: Annotated[float, msgspec.Meta(gt=0)] = 25.0
    """Seconds that one call waits for the IMEX daemon to be ready, before the kubelet tries again. It ends two seconds
    before the agent's `prepareDeadline` in any case."""
    poll_period: Annotated[float, msgspec.Meta(gt=0)] = 5.0
    """Seconds between two checks for external changes, and of a fabric that is not ready."""

    def of_node(self) -> nvidia.Settings:
        """What the modules that both backends use must know of the node."""
        own = {field.name for field in msgspec.structs.fields(nvidia.Settings)} & set(self.__struct_fields__)
        return nvidia.Settings(**{name: getattr(self, name) for name in own})
