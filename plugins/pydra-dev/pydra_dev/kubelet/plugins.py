"""The plugins of a node: their connections, and which instance is called.

A connection is made at once and again whenever it is lost; calls never wait for it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVarTuple, Unpack

import anyio
from anyio.abc import TaskGroup
from grpclib.client import UnaryUnaryMethod
from grpclib.const import Status
from grpclib.exceptions import GRPCError, StreamTerminatedError

from pydra.kubelet.pb import (
    Claim,
    NodePrepareResourcesRequest,
    NodePrepareResourcesResponse,
    NodeUnprepareResourcesRequest,
    NodeUnprepareResourcesResponse,
)
from pydra_dev.kubelet.grpc_channel import WatchedChannel, settle_cancellation
from pydra_dev.kubelet.observations import Deregistered, Registered, Report
from pydra_dev.kubelet.plugin_acceptance import SERVICE, Plugin, refuse_duplicate
from pydra_dev.kubelet.plugin_answers import PreparedDevice, check_unprepared, parse_prepared
from pydra_dev.kubelet.pod_claims import ClaimKey
from pydra_dev.kubelet.settings import KubeletSettings, Periods

Ts = TypeVarTuple("Ts")
log = logging.getLogger(__name__)


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
    """The call as a whole failed."""

    def __init__(self, method: str, status: str, message: str) -> None:
        super().__init__(f"{method}: rpc error: code = {status} desc = {message}")


class PluginInstance:
    """A connection to a plugin's DRA service, and the calls made over it. Each (dis)connection calls `changed`."""

    def __init__(self, plugin: Plugin, periods: Periods, *, changed: Callable[[], None]) -> None:
        self.plugin = plugin
        self._periods = periods
        self._changed = changed
        self._lost = anyio.Event()
        self._connected = anyio.Event()
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
        finally:  # as the kubelet does, with the calls in flight: a plugin ends them before it deregisters
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
        return parse_prepared(claims, answer.claims)

    async def unprepare(self, claims: Sequence[ClaimKey]) -> None:
        """Raises CallError and AnswerError."""
        request = NodeUnprepareResourcesRequest(claims=[_claim(claim) for claim in claims])
        answer = await self._call("NodeUnprepareResources", request, NodeUnprepareResourcesResponse)
        check_unprepared(claims, answer.claims)

    async def _call(self, method: str, request: Any, response: type) -> Any:
        # The kubelet does not wait for a connection that is down: such a call fails at once.
        if not self.connected:
            raise CallError(method, "Unavailable", f"connection to {self.plugin.endpoint} is down")
        path = f"/k8s.io.kubelet.pkg.apis.dra.{SERVICE}/{method}"
        call: UnaryUnaryMethod[Any, Any] = UnaryUnaryMethod(self.channel, path, type(request), response)
        try:
            with settle_cancellation():
                return await call(request, timeout=self._periods.call)
        except GRPCError as error:
            raise CallError(method, _status_name(error.status), error.message or "") from error
        except TimeoutError as error:
            raise CallError(method, "DeadlineExceeded", "context deadline exceeded") from error
        except (StreamTerminatedError, OSError) as error:
            raise CallError(method, "Unavailable", str(error) or "connection lost") from error

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
        """The instance to call: the latest that is connected, or else the latest; raises NotRegistered."""
        instances = self._instances.get(driver)
        if not instances:
            raise NotRegistered(driver)
        return next((one for one in reversed(instances) if one.connected), instances[-1])

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
