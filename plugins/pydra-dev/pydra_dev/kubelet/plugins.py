"""The plugins of a node: their registration sockets, their connections, and which instance is called.

The registry directory is scanned; a socket that is created again at the same path is another one, and the old plugin is
deregistered first. Registration is retried until it succeeds. A connection is made at once and again whenever it is
lost; calls never wait for it.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVarTuple, Unpack
from urllib.parse import quote

import anyio
from anyio.abc import TaskGroup
from grpclib.client import UnaryUnaryMethod
from grpclib.const import Status
from grpclib.exceptions import GRPCError, StreamTerminatedError

from pydra.kubelet.pb.dra_v1 import (
    Claim,
    NodePrepareResourcesRequest,
    NodePrepareResourcesResponse,
    NodeUnprepareResourcesRequest,
    NodeUnprepareResourcesResponse,
)
from pydra.kubelet.pb.pluginregistration_v1 import (
    InfoRequest,
    PluginInfo,
    RegistrationStatus,
    RegistrationStatusResponse,
)
from pydra_dev.kubelet.channel import WatchedChannel, settle_cancellation
from pydra_dev.kubelet.claims import ClaimKey, PreparedDevice, check_unprepared, parse_prepared
from pydra_dev.kubelet.observations import Deregistered, Registered, RegistrationFailed, Report
from pydra_dev.kubelet.registration import DraService, Plugin, RegistrationError, accept_plugin, refuse_duplicate
from pydra_dev.kubelet.settings import KubeletSettings, Periods

Ts = TypeVarTuple("Ts")
log = logging.getLogger(__name__)

_REGISTRATION = "/pluginregistration.Registration"

_DIAL_SECONDS = 10.0
_GET_INFO_SECONDS = 1.0
_NOTIFY_SECONDS = 5.0

Identity: TypeAlias = tuple[int, int]
"""Inode and time of creation: what differs between two sockets at one path."""
Sockets: TypeAlias = Mapping[str, Identity]


def compare_sockets(known: Sockets, found: Sockets) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What is gone and what is new, in order; a replaced socket is both."""
    gone = sorted(path for path, identity in known.items() if found.get(path) != identity)
    new = sorted(path for path, identity in found.items() if known.get(path) != identity)
    return tuple(gone), tuple(new)


def scan_sockets(directory: str) -> Sockets:
    """All sockets below the directory whose names do not begin with a dot."""
    return dict(_scan(directory))


def _scan(directory: str) -> Iterator[tuple[str, Identity]]:
    try:
        entries = list(os.scandir(directory))
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        try:
            found = entry.stat(follow_symlinks=False)
        except FileNotFoundError:  # gone since the listing
            continue
        if stat.S_ISSOCK(found.st_mode):
            yield entry.path, (found.st_ino, found.st_mtime_ns)
        elif stat.S_ISDIR(found.st_mode):
            yield from _scan(entry.path)


async def watch_registry(
    settings: KubeletSettings,
    *,
    register: Callable[[str], Awaitable[None]],
    deregister: Callable[[str], None],
) -> None:
    """Look for changes until cancelled; `register` may take its time and is cancelled when its socket goes."""
    known: Sockets = {}
    attempts: dict[str, anyio.CancelScope] = {}
    async with anyio.create_task_group() as tasks:
        while True:
            found = scan_sockets(settings.registry)
            gone, new = compare_sockets(known, found)
            for path in gone:
                attempts.pop(path).cancel()
                deregister(path)
            for path in new:
                attempts[path] = start_task(tasks, register, path, name=f"register {os.path.basename(path)}")
            known = found
            await anyio.sleep(settings.periods.registry_scan)


def start_task(
    tasks: TaskGroup, work: Callable[[Unpack[Ts]], Awaitable[None]], *arguments: *Ts, name: str
) -> anyio.CancelScope:
    """Start a task; what cancels it alone."""
    scope = anyio.CancelScope()

    async def run() -> None:
        with scope:
            await work(*arguments)

    tasks.start_soon(run, name=name)
    return scope


class CallError(Exception):
    """The call as a whole failed; `status` is its gRPC status."""

    def __init__(self, method: str, status: str, message: str) -> None:
        self.status = status
        super().__init__(f"{method}: rpc error: code = {status} desc = {message}")


class PluginInstance:
    """A connection to a plugin's DRA service, and the calls made over it. Each (dis)connection calls `changed`."""

    def __init__(self, plugin: Plugin, periods: Periods, *, changed: Callable[[], None]) -> None:
        self.plugin = plugin
        self._periods = periods
        self._changed = changed
        self._lost = anyio.Event()
        self._connected = anyio.Event()
        self._calls = 0
        self._idle = anyio.Event()
        self.channel = WatchedChannel(plugin.endpoint, on_lost=self._on_lost)

    @property
    def connected(self) -> bool:
        """Whether calls would reach the plugin now."""
        return self.channel.connected

    async def wait_connected(self) -> None:
        """Return once it is connected."""
        while not self.connected:
            await self._connected.wait()

    async def run(self) -> None:
        """Connect, and connect again whenever the connection is lost, until cancelled."""
        try:
            failures = 0
            while True:
                self._lost = anyio.Event()
                if await self._connect():
                    failures = 0
                    self._connected.set()
                    self._changed()
                    await self._lost.wait()
                    self._changed()
                else:
                    failures += 1
                    await anyio.sleep(self._periods.reconnect.pause(failures))
        finally:
            # A plugin that deregisters may still be at work on calls; they end before their connection does.
            with anyio.CancelScope(shield=True):
                while self._calls:
                    self._idle = anyio.Event()
                    await self._idle.wait()
            self._connected = anyio.Event()
            self.channel.close()

    async def _connect(self) -> bool:
        try:
            await self.channel.connect()
        except OSError as error:
            log.debug("cannot connect to %s: %s", self.plugin.endpoint, error)
            return False
        return True

    async def prepare(self, claims: Sequence[ClaimKey]) -> Mapping[str, tuple[PreparedDevice, ...]]:
        """The devices by claim uid; raises CallError and AnswerError."""
        request = NodePrepareResourcesRequest(claims=[_claim(claim) for claim in claims])
        answer = await self._call("NodePrepareResources", request, NodePrepareResourcesResponse)
        names = {claim.uid: claim.name for claim in claims}
        return parse_prepared(names, answer.claims, share_ids=self.plugin.service is DraService.V1)

    async def unprepare(self, claims: Sequence[ClaimKey]) -> None:
        """Raises CallError and AnswerError."""
        request = NodeUnprepareResourcesRequest(claims=[_claim(claim) for claim in claims])
        answer = await self._call("NodeUnprepareResources", request, NodeUnprepareResourcesResponse)
        check_unprepared({claim.uid: claim.name for claim in claims}, answer.claims)

    async def _call(self, method: str, request: Any, response: type) -> Any:
        # The kubelet does not wait for a connection that is down: such a call fails at once.
        if not self.connected:
            raise CallError(method, "Unavailable", f"connection to {self.plugin.endpoint} is down")
        path = f"/k8s.io.kubelet.pkg.apis.dra.{self.plugin.service.value}/{method}"
        call: UnaryUnaryMethod[Any, Any] = UnaryUnaryMethod(self.channel, path, type(request), response)
        self._calls += 1
        try:
            with settle_cancellation():
                return await call(request, timeout=self._periods.call)
        except GRPCError as error:
            raise CallError(method, _status_name(error.status), error.message or "") from error
        except TimeoutError as error:
            raise CallError(method, "DeadlineExceeded", "context deadline exceeded") from error
        except (StreamTerminatedError, OSError) as error:
            raise CallError(method, "Unavailable", str(error) or "connection lost") from error
        finally:
            self._calls -= 1
            if not self._calls:
                self._idle.set()

    def _on_lost(self) -> None:
        self._connected = anyio.Event()
        self._lost.set()


def _claim(claim: ClaimKey) -> Claim:
    return Claim(namespace=claim.namespace, uid=claim.uid, name=claim.name)


def _status_name(status: Status) -> str:
    """As Go prints it: DeadlineExceeded for DEADLINE_EXCEEDED."""
    return status.name.title().replace("_", "")


class NotRegistered(Exception):
    """No instance of the driver is registered."""

    def __init__(self, driver: str) -> None:
        super().__init__(f"DRA driver {driver} is not registered")


def choose_instance(instances: Sequence[PluginInstance]) -> PluginInstance:
    """The latest registered that is connected, or else the latest; `instances` are in order of registration."""
    return next((one for one in reversed(instances) if one.connected), instances[-1])


class PluginRegistry:
    """Instances by driver, in order of registration; each has a connection of its own.

    `wipe` deletes a driver's slices; `followers_changed` hears of each change of a driver's instances.
    """

    def __init__(
        self,
        settings: KubeletSettings,
        tasks: TaskGroup,
        *,
        wipe: Callable[[str], Awaitable[None]],
        followers_changed: Callable[[str, Sequence[PluginInstance]], None],
        report: Report,
    ) -> None:
        self._settings = settings
        self._tasks = tasks
        self._wipe = wipe
        self._followers_changed = followers_changed
        self._report = report
        self._instances: dict[str, list[PluginInstance]] = {}
        self._scopes: dict[str, anyio.CancelScope] = {}
        self._pending_wipes: dict[str, anyio.CancelScope] = {}

    def register(self, plugin: Plugin) -> None:
        """Take an instance in and connect to it; raises RegistrationError."""
        instances = self._instances.setdefault(plugin.driver, [])
        refuse_duplicate(plugin, [one.plugin for one in instances])
        instance = PluginInstance(plugin, self._settings.periods, changed=lambda: self._check_usable(plugin.driver))
        instances.append(instance)
        name = f"connection to {plugin.driver}"
        self._scopes[plugin.socket] = start_task(self._tasks, instance.run, name=name)
        self._report(Registered(plugin=plugin))
        self._followers_changed(plugin.driver, tuple(instances))
        self._check_usable(plugin.driver)

    def deregister(self, socket: str) -> None:
        """Let go of whatever registered at this socket."""
        for driver, instances in self._instances.items():
            for instance in [one for one in instances if one.plugin.socket == socket]:
                instances.remove(instance)
                self._scopes.pop(socket).cancel()
                self._report(Deregistered(plugin=instance.plugin))
                self._followers_changed(driver, tuple(instances))
                self._check_usable(driver)

    def choose(self, driver: str) -> PluginInstance:
        """The instance to call; raises NotRegistered."""
        instances = self._instances.get(driver)
        if not instances:
            raise NotRegistered(driver)
        return choose_instance(instances)

    def _check_usable(self, driver: str) -> None:
        """Have the driver's slices deleted some time after it went away, unless it comes back."""
        usable = any(one.connected for one in self._instances[driver])
        pending = self._pending_wipes.get(driver)
        if usable and pending:
            del self._pending_wipes[driver]
            pending.cancel()
        elif not usable and not pending:

            async def wipe_later() -> None:
                await anyio.sleep(self._settings.periods.wipe_after)
                await self._wipe(driver)

            self._pending_wipes[driver] = start_task(self._tasks, wipe_later, name=f"wipe slices of {driver}")


CONNECTION_ERRORS = (GRPCError, StreamTerminatedError, OSError)
"""What a call can raise; TimeoutError is an OSError."""


class Registrar:
    """Registers the plugin behind a socket. A new connection for each attempt, closed afterwards."""

    def __init__(self, settings: KubeletSettings, plugins: PluginRegistry, report: Report) -> None:
        self._settings = settings
        self._plugins = plugins
        self._report = report

    async def register(self, socket: str) -> None:
        """Return once the plugin is registered; until then, try again with growing pauses."""
        failures = 0
        while True:
            try:
                await self._attempt(socket)
            except (RegistrationError, *CONNECTION_ERRORS) as error:
                failures += 1
                message = _text(error)
                log.info("cannot register the plugin at %s: %s", socket, message)
                self._report(RegistrationFailed(socket=socket, message=message))
            else:
                return
            await anyio.sleep(self._settings.periods.registration_retry.pause(failures))

    async def _attempt(self, socket: str) -> None:
        # The kubelet dials the registration socket by its bare path, which grpc-go makes the authority.
        channel = WatchedChannel(socket, authority=quote(socket, safe=""))
        try:
            with anyio.fail_after(_DIAL_SECONDS):
                await channel.connect()
            await self._register_over(channel, socket)
        finally:
            channel.close()

    async def _register_over(self, channel: WatchedChannel, socket: str) -> None:
        get_info = UnaryUnaryMethod(channel, f"{_REGISTRATION}/GetInfo", InfoRequest, PluginInfo)
        with settle_cancellation():
            info = await get_info(InfoRequest(), timeout=_GET_INFO_SECONDS)
        try:
            plugin = accept_plugin(
                socket=socket,
                type_=info.type,
                name=info.name,
                endpoint=info.endpoint,
                versions=info.supported_versions,
                minor=self._settings.minor,
            )
            self._plugins.register(plugin)
        except RegistrationError as error:
            await self._notify(channel, str(error))
            raise
        try:
            await self._notify(channel)
        except CONNECTION_ERRORS:
            self._plugins.deregister(socket)
            raise

    async def _notify(self, channel: WatchedChannel, error: str = "") -> None:
        status = RegistrationStatus(plugin_registered=not error, error=error)
        path = f"{_REGISTRATION}/NotifyRegistrationStatus"
        notify = UnaryUnaryMethod(channel, path, RegistrationStatus, RegistrationStatusResponse)
        with settle_cancellation():
            await notify(status, timeout=_NOTIFY_SECONDS)


def _text(error: Exception) -> str:
    if isinstance(error, GRPCError):
        return f"rpc error: code = {error.status.name} desc = {error.message or ''}"
    return str(error) or ("deadline exceeded" if isinstance(error, TimeoutError) else type(error).__name__)
