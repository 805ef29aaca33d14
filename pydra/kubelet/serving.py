"""gRPC's own health service, `grpc.health.v1.Health`, for probes; without protobuf, which grpclib's would need."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import anyio
from grpclib import GRPCError, Status

from pydra.kubelet.grpc_server import Servable
from pydra.kubelet.pb.grpc_health_v1 import (
    HealthBase,
    HealthCheckRequest,
    HealthCheckResponse,
    HealthCheckResponseServingStatus,
)
from pydra.kubelet.streaming import ClosingStreams


class ServingStatus(ClosingStreams, HealthBase):
    """Every service of a server is SERVING until the server stops, and NOT_SERVING while it lets calls finish."""

    def __init__(self, services: Sequence[Servable]) -> None:
        """`services` are those that the server serves; the server as a whole is known as ""."""
        paths = [path for service in services for path in service.__mapping__()]
        self._services = {"", *(path.removeprefix("/").rpartition("/")[0] for path in paths)}
        self._stopping = anyio.Event()

    def stop(self) -> None:
        """Say NOT_SERVING from now on."""
        self._stopping.set()

    async def check(self, message: HealthCheckRequest) -> HealthCheckResponse:
        """How the service is now."""
        if message.service not in self._services:
            raise GRPCError(Status.NOT_FOUND, f"unknown service {message.service}")
        return HealthCheckResponse(status=self._status(message.service))

    async def watch(self, message: HealthCheckRequest) -> AsyncIterator[HealthCheckResponse]:
        """How the service is now and, should that come, that it is not serving any longer, which ends the stream."""
        yield HealthCheckResponse(status=self._status(message.service))
        await self._stopping.wait()
        yield HealthCheckResponse(status=self._status(message.service))

    def _status(self, service: str) -> HealthCheckResponseServingStatus:
        if service not in self._services:
            return HealthCheckResponseServingStatus.SERVICE_UNKNOWN
        if self._stopping.is_set():
            return HealthCheckResponseServingStatus.NOT_SERVING
        return HealthCheckResponseServingStatus.SERVING
