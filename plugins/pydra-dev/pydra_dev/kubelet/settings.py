"""Settings of the embedded kubelet: its node, its paths and its timeouts. Values only.

Periods and deadlines are in seconds. Source of the original's: Kubernetes 1.36, pkg/kubelet/cm/dra and
pkg/kubelet/pluginmanager, google.golang.org/grpc.
"""

from __future__ import annotations

import msgspec


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """Pauses that grow by `factor` from `first` to `longest`."""

    first: float
    factor: float
    longest: float

    def pause(self, failures: int) -> float:
        """How long to wait after so many failures in a row, at least one."""
        return min(self.first * self.factor ** min(failures - 1, 64), self.longest)


class Periods(msgspec.Struct, frozen=True, kw_only=True):
    """How long the kubelet waits, and for what: the original's deadlines, and retries that nobody has to wait for."""

    registry_scan: float = 0.05
    """Between two scans of the registry; the real kubelet uses inotify and acts once a second."""
    call: float = 45.0
    registration_retry: Backoff = Backoff(first=0.1, factor=2, longest=2)
    """The original's is from 0.5 to 122."""
    reconnect: Backoff = Backoff(first=0.05, factor=1.6, longest=1)
    """The original's is from 1 to 120."""
    wipe_after: float = 30.0
    """From the moment that no instance of a driver is connected to the deletion of its slices."""
    wipe_retry: Backoff = Backoff(first=0.1, factor=2, longest=2)
    """The original's is from 1 to 300."""
    resync: float = 1.0
    """Until a pod that could not be started is tried again; the original's is 60 to 90."""
    unprepare_retry: float = 0.5
    """The original's is 12."""
    reconcile: float = 1.0
    """Between two looks for claims whose pods are gone; the original's is 60."""
    health_retry: float = 0.2
    """The original's is 5."""
    health_lease: float = 30.0
    """How long a health report counts when it does not say."""
    probe: float = 0.2
    """Between two readiness probes, whatever the pod says."""


class KubeletSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One node. `minor` is the release 1.<minor> whose behaviour is shown, where releases differ."""

    node_name: str
    root: str
    cdi_directories: tuple[str, ...]
    minor: int = 36
    periods: Periods = Periods()
    pod_network: str = "127.1"
    """The first half of its pods' addresses: of loopback, so that what runs for a pod can listen there."""
    probes: bool = False
    """Whether pods are ready when their readiness probes are answered, or at once: by default nothing runs."""

    @property
    def registry(self) -> str:
        """Where plugins put their registration sockets."""
        return f"{self.root}/plugins_registry"

    @property
    def claim_checkpoint(self) -> str:
        """Where the kubelet remembers its claims over restarts."""
        return f"{self.root}/dra_manager_state"
