"""Settings of the embedded kubelet: its node, its paths and its timeouts. Values only.

Periods and deadlines are in seconds; the defaults of `Periods` are those of Kubernetes 1.36. Source:
pkg/kubelet/cm/dra, pkg/kubelet/pluginmanager, google.golang.org/grpc.
"""

from __future__ import annotations

import math

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
    """How long the kubelet waits, and for what."""

    registry_scan: float = 0.1
    """Between two scans of the registry; the real kubelet uses inotify and acts once a second."""
    call: float = 45.0
    registration_retry: Backoff = Backoff(first=0.5, factor=2, longest=122)
    reconnect: Backoff = Backoff(first=1, factor=1.6, longest=120)
    wipe_after: float = 30.0
    """From the moment that no instance of a driver is connected to the deletion of its slices."""
    wipe_retry: Backoff = Backoff(first=1, factor=2, longest=300)
    resync: float = 75.0
    """Until a pod that could not be started is tried again; the original's is 60 to 90."""
    unprepare_retry: float = 12.0
    reconcile: float = 60.0
    """Between two looks for claims whose pods are gone."""
    health_retry: float = 5.0
    health_lease: float = 30.0
    """How long a health report counts when it does not say."""
    probe: float = math.inf
    """The longest pause between two readiness probes, whatever the pod says."""


QUICK = Periods(
    registry_scan=0.05,
    registration_retry=Backoff(first=0.1, factor=2, longest=2),
    reconnect=Backoff(first=0.05, factor=1.6, longest=1),
    wipe_retry=Backoff(first=0.1, factor=2, longest=2),
    resync=1.0,
    unprepare_retry=0.5,
    reconcile=1.0,
    health_retry=0.2,
    probe=0.2,
)
"""For development and tests: the deadlines of the original, retries that nobody has to wait for."""


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
