"""The health service, DRAResourceHealth v1 and v1alpha1: complete lists, on every change and again before they expire.

A kubelet takes a device for unknown when it was not reported within its time-out, 30 s where none is given, so the list
is sent by period even while nothing changes. From Kubernetes 1.34 to 1.36 the kubelet forgets all it knows when the
stream ends; it ends here only when the plugin stops.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Mapping
from types import ModuleType
from typing import Any, Protocol

import anyio

from pydra.devices import DeviceHealth, HealthStatus
from pydra.kubelet.messages import error_limit, one_line
from pydra.kubelet.pb import dra_health_v1, dra_health_v1alpha1
from pydra.kubelet.streaming import ClosingStreams

LEASE = 30
"""Seconds after which a kubelet takes an unrepeated report for unknown, unless the report says otherwise."""

MESSAGE_BYTES = 1024
_STATUS_NUMBERS: Mapping[HealthStatus, int] = {
    HealthStatus.UNKNOWN: 0,
    HealthStatus.HEALTHY: 1,
    HealthStatus.UNHEALTHY: 2,
}


class HealthSource(Protocol):
    """Where the health of the driver's devices stands; `HealthBoard` is one."""

    def current(self) -> tuple[DeviceHealth, ...]:
        """All devices of the driver."""

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` after each change; the result ends that."""


class HealthReports:
    """The reports of all open streams, of both versions, which differ in nothing but their names."""

    def __init__(self, source: HealthSource, *, period: float, opened: Callable[[int], None] = lambda _: None) -> None:
        """`period` is in seconds; `opened` hears how many streams are open whenever that changes."""
        self._source = source
        self._period = period
        self._opened = opened
        self._open = 0
        self._stopping = False
        self._wake = anyio.Event()
        self._unsubscribe = source.subscribe(self._wake_streams)

    def stop(self) -> None:
        """End all streams, cleanly, and refuse no new one but end it at once."""
        self._unsubscribe()
        self._stopping = True
        self._wake_streams()

    def _wake_streams(self) -> None:
        self._wake.set()
        self._wake = anyio.Event()

    async def stream(self, version: ModuleType) -> AsyncIterator[Any]:
        """One kubelet's stream of reports, in the messages of `version` (a module of `pydra.kubelet.pb`)."""
        self._count(+1)
        try:
            while not self._stopping:
                wake = self._wake  # taken before the list is read, so that no change falls in between
                yield build_report(version, self._source.current(), self._period)
                with anyio.move_on_after(self._period):
                    await wake.wait()
        finally:
            self._count(-1)

    def _count(self, change: int) -> None:
        self._open += change
        self._opened(self._open)


def build_report(version: ModuleType, devices: tuple[DeviceHealth, ...], period: float) -> Any:
    """A NodeWatchResourcesResponse of `version` with all devices, valid for at least three periods (seconds)."""
    limit = min(MESSAGE_BYTES, error_limit(len(devices)))
    lease = max(LEASE, math.ceil(3 * period))
    return version.NodeWatchResourcesResponse(
        devices=[
            version.DeviceHealth(
                device=version.DeviceIdentifier(pool_name=device.pool, device_name=device.device),
                health=version.HealthStatus(_STATUS_NUMBERS[device.status]),
                last_updated_time=device.updated,
                health_check_timeout_seconds=lease,
                message=one_line(device.message, limit),
            )
            for device in devices
        ]
    )


class HealthServiceV1(ClosingStreams, dra_health_v1.DraResourceHealthBase):
    """`v1.DRAResourceHealth`."""

    def __init__(self, reports: HealthReports) -> None:
        self._reports = reports

    def node_watch_resources(
        self, message: dra_health_v1.NodeWatchResourcesRequest
    ) -> AsyncIterator[dra_health_v1.NodeWatchResourcesResponse]:
        """Reports until the kubelet leaves or the plugin stops."""
        return self._reports.stream(dra_health_v1)


class HealthServiceV1alpha1(ClosingStreams, dra_health_v1alpha1.DraResourceHealthBase):
    """`v1alpha1.DRAResourceHealth`."""

    def __init__(self, reports: HealthReports) -> None:
        self._reports = reports

    def node_watch_resources(
        self, message: dra_health_v1alpha1.NodeWatchResourcesRequest
    ) -> AsyncIterator[dra_health_v1alpha1.NodeWatchResourcesResponse]:
        """Reports until the kubelet leaves or the plugin stops."""
        return self._reports.stream(dra_health_v1alpha1)
