"""Runs a driver's kubelet plugin: sockets, registration, gRPC servers, shutdown.

The sockets are checked periodically: the kubelet's directories may appear late, another process may still hold a
plain name, and a wiped kubelet root takes the sockets with it.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeAlias

import anyio
import msgspec

from pydra import atomic_files
from pydra.kubelet.grpc_server import GrpcServer, Method
from pydra.kubelet.health_service import HealthBoard, HealthService, HealthStreams, ServerHealth
from pydra.kubelet.node_service import NodeService, StartPrepare, StartUnprepare
from pydra.kubelet.registration import Registered, RegistrationRefused, RegistrationService
from pydra.kubelet.sockets import BoundSocket, SocketPaths, bind_socket, find_stale_sockets

log = logging.getLogger(__name__)

DIRECTORY_MODE = 0o750

STALE_SECONDS = 0.1
"""Between the two checks that find a socket without a listener."""

REGISTRAR_GRACE = 1.0
"""Seconds for a registration call in flight; it is answered from memory."""


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """The driver cannot be served at the moment; `problem` says why. It is retried until it can."""

    driver: str
    problem: str


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """Both sockets accept: `endpoint` for the kubelet's calls, `registration` for its plugin watcher.

    Also reported when a socket was created again; `registered` says whether the kubelet has registered this one.
    """

    driver: str
    endpoint: str
    registration: str
    registered: bool


class Stopped(msgspec.Struct, frozen=True, kw_only=True):
    """The sockets are gone; `cut_off` calls had not ended within the grace."""

    driver: str
    cut_off: int


KubeletEvent: TypeAlias = Waiting | Serving | Registered | RegistrationRefused | HealthStreams | Stopped


class KubeletPlugin:
    """Serves one driver to the kubelet. One process can run several, of different drivers."""

    def __init__(
        self,
        driver: str,
        *,
        prepare: StartPrepare,
        unprepare: StartUnprepare,
        paths: SocketPaths,
        health: HealthBoard,
        health_period: float = 10.0,
        drain_grace: float,
        check_period: float = 2.0,
        report: Callable[[KubeletEvent], None] = lambda _: None,
    ) -> None:
        """Times are in seconds."""
        self._driver = driver
        self._paths = paths
        self._drain_grace = drain_grace
        self._check_period = check_period
        self._report = report
        self._problem = ""

        node = NodeService(driver, prepare, unprepare)
        self._health = HealthService(
            health, period=health_period, opened=lambda count: report(HealthStreams(driver=driver, count=count))
        )
        self._registration = RegistrationService(driver, endpoint=paths.service, report=report)
        self._service = _Endpoint(paths.service, node.methods() | self._health.methods())
        self._registrar = _Endpoint(paths.registration, self._registration.methods())

    async def run(self) -> None:
        """Serve until cancelled; then let the calls in flight end, within the grace, and remove the sockets."""
        stop = anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(self._run_shielded, stop)
            try:
                await anyio.sleep_forever()
            finally:
                stop.set()

    async def _run_shielded(self, stop: anyio.Event) -> None:
        """Serve and stop shielded from cancellation, which would cancel the calls in flight."""
        with anyio.CancelScope(shield=True):
            try:
                await self._keep_serving(stop)
            finally:
                cut_off = await self._stop()
            self._report(Stopped(driver=self._driver, cut_off=cut_off))

    async def _keep_serving(self, stop: anyio.Event) -> None:
        while not stop.is_set():
            if not (self._service.is_intact() and self._registrar.is_intact()):
                self._log(await self._try_to_serve())
            with anyio.move_on_after(self._check_period):
                await stop.wait()

    async def _try_to_serve(self) -> Serving | Waiting:
        try:
            self._ensure_directories()
            await self._remove_stale_sockets()
            # The service first: a registered plugin is called at once.
            await self._service.ensure()
            if not self._registrar.is_intact():
                self._registration.registered = False  # the kubelet registers each socket that it finds
            await self._registrar.ensure()
        except OSError as error:
            return Waiting(driver=self._driver, problem=_describe(error))
        return Serving(
            driver=self._driver,
            endpoint=self._paths.service,
            registration=self._paths.registration,
            registered=self._registration.registered,
        )

    def _ensure_directories(self) -> None:
        """Create the plugin's directory again if it was removed. The kubelet creates the registry when it runs."""
        registry = os.path.dirname(self._paths.registration)
        if not os.path.isdir(registry):
            question = "not there; is the kubelet running, and is this its plugins_registry directory?"
            raise FileNotFoundError(errno.ENOENT, question, registry)
        own = os.path.dirname(self._paths.service)
        for directory in (os.path.dirname(own), own):
            atomic_files.make_directory(directory, DIRECTORY_MODE)

    async def _remove_stale_sockets(self) -> None:
        """Remove what killed instances left; the kubelet would try for ever to register it.

        A socket is stale if two checks find no listener: a server may be between its bind and its listen.
        """
        if not (first := find_stale_sockets(self._driver, self._paths)):
            return
        await anyio.sleep(STALE_SECONDS)
        for path, identity in find_stale_sockets(self._driver, self._paths).items():
            if first.get(path) == identity:
                with suppress(FileNotFoundError):
                    os.unlink(path)
                    log.info("removed %s, the socket of a killed instance", path)

    def _log(self, event: Serving | Waiting) -> None:
        """Log and report the event, the same problem once."""
        before, self._problem = self._problem, event.problem if isinstance(event, Waiting) else ""
        if isinstance(event, Serving):
            log.info("driver %s is served at %s", event.driver, event.endpoint)
        elif event.problem == before:
            return
        else:
            log.warning("driver %s is not served yet: %s", event.driver, event.problem)
        self._report(event)

    async def _stop(self) -> int:
        """Let the calls in flight end within the grace, then leave the registry; return how many calls were cut off.

        The service stops first: once the registration socket is gone, the kubelet drops the connection with the calls
        in flight.
        """
        self._registration.stop()
        self._registrar.health.stop()
        self._service.health.stop()
        self._health.stop()
        try:
            return await self._service.close(self._drain_grace)
        finally:
            await self._registrar.close(REGISTRAR_GRACE)


class _Endpoint:
    """A server at a path, with gRPC's health service beside its own methods."""

    def __init__(self, path: str, methods: Mapping[str, Method]) -> None:
        self.health = ServerHealth(methods)
        self._path = path
        self._server = GrpcServer({**methods, **self.health.methods()})
        self._bound: BoundSocket | None = None

    def is_intact(self) -> bool:
        """Return whether the path leads to the server."""
        return self._bound is not None and self._bound.is_intact()

    async def ensure(self) -> None:
        """Create the socket if it does not exist; the server's connections stay open.

        Raises:
            OSError: it cannot be created now, see `bind_socket`.
        """
        if self.is_intact():
            return
        if self._bound is not None:
            log.warning("the socket %s is gone, and is created again", self._path)
        bound = bind_socket(self._path)
        try:
            await self._server.listen(bound.sock)
        except BaseException:
            bound.remove()
            bound.sock.close()
            raise
        self._bound = bound

    async def close(self, grace: float) -> int:
        """Remove the socket and drain the server; return how many calls were cut off after `grace` seconds."""
        if self._bound is not None:
            self._bound.remove()
            self._bound = None
        return await self._server.drain(grace)


def _describe(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}" if error.filename else str(error)
