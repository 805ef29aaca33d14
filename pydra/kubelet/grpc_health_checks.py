"""gRPC health checks of the plugin's own server (grpc.health.v1); they say nothing of devices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable

from grpclib import GRPCError, Status

from pydra.kubelet.grpc_server import Method
from pydra.kubelet.message_conversion import build_health_check, parse_health_check
from pydra.kubelet.pb import HealthCheckResponseServingStatus as ServingStatus


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
