"""Health services: of devices (DRAResourceHealth), and of the plugin's own server (grpc.health.v1).

The kubelet treats a device as unknown if it was not reported within its timeout, 30 s where none is given, so the
complete list is sent on every change and periodically even while nothing changes. From Kubernetes 1.34 to 1.36 the
kubelet forgets all reported health when the stream ends; it ends here only when the plugin stops.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import suppress

import msgspec
from grpclib import GRPCError, Status

from pydra.devices import DeviceHealth
from pydra.kubelet.grpc_server import Method
from pydra.kubelet.message_conversion import build_health_check, build_health_report, parse_health_check
from pydra.kubelet.pb import HealthCheckResponseServingStatus as ServingStatus

LEASE = 30
"""Seconds after which a kubelet treats a device without a new report as unknown, unless the report says otherwise."""


class HealthStreams(msgspec.Struct, frozen=True, kw_only=True):
    """How many health streams are open now."""

    driver: str
    count: int


class HealthBoard:
    """The last known health of all devices of a driver, and since when it is known. Streams wait on `changed`."""

    def __init__(self) -> None:
        self.devices: tuple[DeviceHealth, ...] = ()
        self.updated = 0
        self.changed = asyncio.Event()

    def publish(self, devices: tuple[DeviceHealth, ...], *, updated: int = 0) -> None:
        """Replace the list and its time, in seconds since 1970; wake the streams if a device has changed."""
        before, self.devices, self.updated = self.devices, devices, updated
        if devices != before:
            self.wake()

    def wake(self) -> None:
        """Wake the streams. Each waits on the event that it got before it read the list, so it misses no change."""
        self.changed.set()
        self.changed = asyncio.Event()


class HealthService:
    """`DRAResourceHealth`, v1 and v1alpha1, which differ in nothing but their names."""

    def __init__(self, board: HealthBoard, *, period: float, opened: Callable[[int], None]) -> None:
        """`period` is in seconds; `opened` is called with the number of open streams when it changes."""
        self._board = board
        self._period = period
        self._lease = max(LEASE, math.ceil(3 * period))  # a report may be lost, or late
        self._opened = opened
        self._open = 0
        self._stopping = False

    def methods(self) -> dict[str, Method]:
        """Return the methods by path."""
        watch = Method(stream=self._watch)
        return {f"/{version}.DRAResourceHealth/NodeWatchResources": watch for version in ("v1", "v1alpha1")}

    def stop(self) -> None:
        """End all streams, cleanly; a new one ends at once."""
        self._stopping = True
        self._board.wake()

    async def _watch(self, _: bytes) -> AsyncGenerator[bytes, None]:
        self._count(+1)
        try:
            while not self._stopping:
                changed = self._board.changed
                yield build_health_report(self._board.devices, updated=self._board.updated, lease=self._lease)
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._period):
                        await changed.wait()
        finally:
            self._count(-1)

    def _count(self, change: int) -> None:
        self._open += change
        self._opened(self._open)


class ServerHealth:
    """`grpc.health.v1.Health`: every service is SERVING until the server stops, NOT_SERVING while calls finish."""

    def __init__(self, paths: Iterable[str]) -> None:
        """`paths` are those of the server's methods; the server as a whole is known as ""."""
        self._services = {"", *(path.removeprefix("/").rpartition("/")[0] for path in paths)}
        self._stopping = asyncio.Event()

    def methods(self) -> dict[str, Method]:
        """Return the methods by path."""
        return {
            "/grpc.health.v1.Health/Check": Method(unary=self._check),
            "/grpc.health.v1.Health/Watch": Method(stream=self._watch),
        }

    def stop(self) -> None:
        """Report NOT_SERVING from now on."""
        self._stopping.set()

    async def _check(self, request: bytes) -> bytes:
        service = parse_health_check(request)
        if service not in self._services:
            raise GRPCError(Status.NOT_FOUND, f"unknown service {service}")
        return self._response(service)

    async def _watch(self, request: bytes) -> AsyncGenerator[bytes, None]:
        """Yield the current status and, when the server stops, the last one."""
        service = parse_health_check(request)
        yield self._response(service)
        await self._stopping.wait()
        yield self._response(service)

    def _response(self, service: str) -> bytes:
        if service not in self._services:
            return build_health_check(ServingStatus.SERVICE_UNKNOWN)
        return build_health_check(ServingStatus.NOT_SERVING if self._stopping.is_set() else ServingStatus.SERVING)
