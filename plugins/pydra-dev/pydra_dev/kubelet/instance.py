"""One registered instance of a driver, and the kubelet's single connection to it.

The connection is made at once, and again whenever it is lost; calls never wait for it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import anyio
from grpclib.const import Status
from grpclib.exceptions import GRPCError, StreamTerminatedError

from pydra.kubelet.pb import dra_v1, dra_v1beta1
from pydra_dev.kubelet.answers import PreparedDevice, check_unprepared, parse_prepared
from pydra_dev.kubelet.channel import WatchedChannel, settle_cancellation
from pydra_dev.kubelet.claims import ClaimKey
from pydra_dev.kubelet.registration import DraService, Plugin
from pydra_dev.kubelet.settings import Periods

log = logging.getLogger(__name__)

SERVICES: Mapping[DraService, ModuleType] = {DraService.V1: dra_v1, DraService.V1BETA1: dra_v1beta1}


class CallError(Exception):
    """The call as a whole failed; `status` is its gRPC status."""

    def __init__(self, method: str, status: str, message: str) -> None:
        self.status = status
        super().__init__(f"{method}: rpc error: code = {status} desc = {message}")


class PluginInstance:
    """A connection to a plugin's DRA service, and the calls made over it. `changed` is told of each (dis)connection."""

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
        pb = SERVICES[self.plugin.service]
        request = pb.NodePrepareResourcesRequest(claims=[_claim(pb, claim) for claim in claims])
        answer = await self._call(
            "NodePrepareResources", pb.DraPluginStub(self.channel).node_prepare_resources, request
        )
        return parse_prepared({claim.uid: claim.name for claim in claims}, answer.claims)

    async def unprepare(self, claims: Sequence[ClaimKey]) -> None:
        """Raises CallError and AnswerError."""
        pb = SERVICES[self.plugin.service]
        request = pb.NodeUnprepareResourcesRequest(claims=[_claim(pb, claim) for claim in claims])
        stub = pb.DraPluginStub(self.channel)
        answer = await self._call("NodeUnprepareResources", stub.node_unprepare_resources, request)
        check_unprepared({claim.uid: claim.name for claim in claims}, answer.claims)

    async def _call(self, method: str, call: Callable[..., Awaitable[Any]], request: Any) -> Any:
        # The kubelet does not wait for a connection that is down: such a call fails at once.
        if not self.connected:
            raise CallError(method, "Unavailable", f"connection to {self.plugin.endpoint} is down")
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


def _claim(pb: ModuleType, claim: ClaimKey) -> Any:
    return pb.Claim(namespace=claim.namespace, uid=claim.uid, name=claim.name)


def _status_name(status: Status) -> str:
    """As Go prints it: DeadlineExceeded for DEADLINE_EXCEEDED."""
    return status.name.title().replace("_", "")
