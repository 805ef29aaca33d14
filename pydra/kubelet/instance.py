"""One serving instance of a driver: two sockets, the servers behind them, and the order in which they come and go."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from pydra.kubelet.events import HealthStreams, KubeletEvent
from pydra.kubelet.grpc_server import DrainServer, Servable
from pydra.kubelet.health_service import HealthReports, HealthServiceV1, HealthServiceV1alpha1, HealthSource
from pydra.kubelet.names import SocketPaths
from pydra.kubelet.node_service import NodeCalls, NodeServiceV1, NodeServiceV1beta1, StartPrepare, StartUnprepare
from pydra.kubelet.registration import HEALTH_VERSIONS, NODE_VERSIONS, RegistrationService
from pydra.kubelet.serving import ServingStatus
from pydra.kubelet.sockets import BoundSocket, bind_socket

log = logging.getLogger(__name__)

REGISTRAR_GRACE = 1.0
"""Seconds for a registration call in flight; it is answered from memory."""


class Instance:
    """The services of one driver at its two paths. `stop` ends it for good."""

    def __init__(
        self,
        driver: str,
        paths: SocketPaths,
        *,
        prepare: StartPrepare,
        unprepare: StartUnprepare,
        health: HealthSource | None,
        health_period: float,
        report: Callable[[KubeletEvent], None],
    ) -> None:
        node = _node_services(NodeCalls(driver, prepare, unprepare))
        versions = [*NODE_VERSIONS]
        self._reports: HealthReports | None = None
        if health is not None:
            self._reports = HealthReports(
                health, period=health_period, opened=lambda count: report(HealthStreams(driver=driver, count=count))
            )
            node += [HealthServiceV1(self._reports), HealthServiceV1alpha1(self._reports)]
            versions += HEALTH_VERSIONS
        self._registration = RegistrationService(driver, endpoint=paths.service, versions=versions, report=report)
        self._node_status = ServingStatus(node)
        self._registrar_status = ServingStatus([self._registration])
        self._node = Endpoint(paths.service, [*node, self._node_status])
        self._registrar = Endpoint(paths.registration, [self._registration, self._registrar_status])

    def is_intact(self) -> bool:
        """Whether both sockets are there, and ours."""
        return self._node.is_intact() and self._registrar.is_intact()

    async def ensure(self) -> None:
        """Make the sockets that are not there: the service's first, for a registered plugin is called at once.

        Raises:
            OSError: one cannot be made now, for the reasons of `bind_socket`.
        """
        await self._node.ensure()
        await self._registrar.ensure()

    async def stop(self, grace: float) -> int:
        """Let the calls in flight end, within `grace` seconds, then leave the registry.

        The service goes first: once the registration socket is gone the kubelet drops the connection, and with it the
        calls in flight.

        Returns:
            How many calls were cut off.
        """
        self._registration.stop()
        self._node_status.stop()
        self._registrar_status.stop()
        if self._reports is not None:
            self._reports.stop()
        try:
            return await self._node.close(grace)
        finally:
            await self._registrar.close(REGISTRAR_GRACE)


def _node_services(calls: NodeCalls) -> list[Servable]:
    return [NodeServiceV1(calls), NodeServiceV1beta1(calls)]


class Endpoint:
    """Keeps a server reachable at a path."""

    def __init__(self, path: str, services: Sequence[Servable]) -> None:
        self._path = path
        self._server = DrainServer(services)
        self._bound: BoundSocket | None = None

    def is_intact(self) -> bool:
        """Whether the path leads to the server."""
        return self._bound is not None and self._bound.is_intact()

    async def ensure(self) -> None:
        """Make the socket if it is not there; the server's connections outlive that.

        Raises:
            OSError: it cannot be made now, for the reasons of `bind_socket`.
        """
        if self.is_intact():
            return
        if self._bound is not None:
            log.warning("the socket %s is gone, and is made again", self._path)
        bound = bind_socket(self._path)
        try:
            await self._server.listen(bound.sock)
        except BaseException:
            bound.remove()
            bound.sock.close()
            raise
        self._bound = bound

    async def close(self, grace: float) -> int:
        """Remove the socket and drain the server; the number of calls that were cut off after `grace` seconds."""
        if self._bound is not None:
            self._bound.remove()
            self._bound = None
        return await self._server.drain(grace)
