"""What the admin decides for this backend: its SETTINGS_TYPE.

`worker_id` is `PYDRA_TPU_WORKER_ID`, or `backendSettings.tpu.workerId` in the agent's settings file. What stands below
a field is its text in docs/settings.md and in the chart's schema, which are generated (`make docs chart`).
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Annotated

import msgspec

from pydra_pci import AbsolutePath, RootSettings

PREFIX = "PYDRA_TPU_"

Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
TopologyOrEmpty = Annotated[str, msgspec.Meta(pattern="^([1-9][0-9]{0,2}x[1-9][0-9]{0,2}(x[1-9][0-9]{0,2})?)?$")]

PathOrEmpty = Annotated[str, msgspec.Meta(pattern="^(/|$)")]

LabelOrEmpty = Annotated[str, msgspec.Meta(pattern="^([A-Za-z0-9][-A-Za-z0-9_.]{0,62})?$")]

HOSTNAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9.:]{0,251}[A-Za-z0-9])?")
"""A host name, or an address."""


class Offer(Enum):
    """What is published of a host."""

    SUB_SLICES = "sub-slices"
    """The whole host, and each of its sub-slices; the scheduler allocates those that do not overlap."""
    CHIPS = "chips"
    """Each chip by itself, as Google's driver does; a claim gets a sub-slice when its chips form one."""
    HOST = "host"
    """The whole host only."""


class Settings(RootSettings, frozen=True, kw_only=True):
    """All settings."""

    scenario: str = ""
    """A simulated machine instead of the node's hardware: a bundled scenario, such as `v5e-8`, and faults, as in
    `v5e-8+node-gone+throttled`."""
    state: AbsolutePath = "/run/pydra-tpu"
    """The directory with the files of a simulated machine."""
    dev_root: AbsolutePath = "/dev"
    """The directory of the device nodes on the host."""

    offer: Offer = Offer.SUB_SLICES
    """The devices that claims can have: sub-slices of a host, single chips, or whole hosts. Sub-slices need the feature
    gate DRAPartitionableDevices; without it, only the whole host is published."""

    accelerator: LabelOrEmpty = ""
    """The accelerator of this node, as GKE labels it, such as `tpu-v5-lite-podslice`. Empty: detected."""
    topology: TopologyOrEmpty = ""
    """The topology of the slice that this node is a worker of, in chips: `2x4`, `2x2x4`. Empty: detected."""
    worker_id: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """The number of this worker in its slice. Not set: detected."""
    worker_hostnames: tuple[str, ...] = ()
    """The host names or addresses of all workers of the slice, in the order of their numbers. Empty: detected."""

    host_chips: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """How many chips this machine should have. Not set: detected. With another number of chips, none is offered."""
    tpu_env: AbsolutePath = "/etc/tpu/tpu-env"
    """A file on the host with values for settings that are not set: lines such as `TOPOLOGY: '2x4'`."""
    metadata_server: Annotated[str, msgspec.Meta(pattern=r"^([A-Za-z0-9][-A-Za-z0-9.]*(:[0-9]{1,5})?)?$")] = (
        "169.254.169.254"
    )
    """Host, or `host:port`, of Google's metadata server, for settings that are not set. Empty: it is not queried."""

    log_directory: PathOrEmpty = "/tmp/tpu_logs"  # noqa: S108 - where libtpu writes
    """The host's directory that containers have at `/tmp/tpu_logs`, for the logs of the TPU runtime, if it exists. All
    containers with TPUs of the node share it: they can read and change each other's logs. Empty: they have none."""
    poll_period: Annotated[float, msgspec.Meta(gt=0)] = 10.0
    """Seconds between two checks for chips and device nodes that were added or removed."""
    runtime_metrics_ports: tuple[Port, ...] = tuple(range(8431, 8439))
    """The loopback ports on which TPU runtimes of workloads may serve their metrics. Empty: none is queried."""
    link_metrics_port: Port = 8353
    """The loopback port of Google's agent on the host, which reports links between chips and throttling to libtpu. It
    is queried if libtpu is installed beside pydra-tpu."""

    def __post_init__(self) -> None:
        if wrong := [name for name in self.worker_hostnames if not HOSTNAME.fullmatch(name)]:
            raise ValueError(f"workerHostnames: {wrong[0]!r} is not a host name or an address")
        port = self.metadata_server.partition(":")[2]
        if port and not 1 <= int(port) <= 65535:
            raise ValueError(f"metadataServer: {port} is not a port; it must be 1 to 65535")
