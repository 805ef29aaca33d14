"""One registration with a runtime: its settings, its state, and the answers to its calls."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from pydra import PydraError
from pydra_nri.build_answer import build_answer, carries_updates, merge
from pydra_nri.channel import CallFailed, Channel, Code
from pydra_nri.event_handlers import Event, Handlers, Updates, choose_events, read_event
from pydra_nri.messages import (
    PLUGIN,
    RUNTIME,
    ConfigureRequest,
    ConfigureResponse,
    RegisterPluginRequest,
    Request,
    SynchronizeRequest,
    UpdateContainersRequest,
    UpdateContainersResponse,
    UpdatesResponse,
)
from pydra_nri.protobuf import Malformed, decode, encode
from pydra_nri.values import ContainerUpdate
from pydra_nri.versions import UPDATES_FIXED, NriVersion, read_nri_version

REQUEST_TIMEOUT = 2.0
"""Seconds that a runtime waits for an answer, if it does not say."""
_MARGIN = 0.3
_CALL_TIMEOUT = 60.0
"""Seconds for a busy runtime: it registers one plugin after the other."""

_logger = logging.getLogger(__name__)
T = TypeVar("T")


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """What became of updates: `now` if the runtime has applied them, except those in `failed`."""

    now: bool
    failed: tuple[ContainerUpdate, ...] = ()


def answer_within(request_timeout: float, timeout_nano: int) -> float:
    """Seconds for a handler, so that an answer is there before its caller closes the connection."""
    left = min(request_timeout, timeout_nano / 1e9) if timeout_nano > 0 else request_timeout
    return max(left - _MARGIN, left / 2)


class Session:
    """A connection that registers this plugin; `on_synchronized` is called when its handlers know everything."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        name: str,
        handlers: Handlers,
        on_synchronized: Callable[[], None],
    ) -> None:
        self._name = name
        self._handlers = handlers
        self._on_synchronized = on_synchronized
        self._channel = Channel(reader, writer, self._serve)
        self.request_timeout = REQUEST_TIMEOUT
        self._nri: NriVersion = (0,)
        self._existing = SynchronizeRequest()
        self._waiting: dict[str, ContainerUpdate] = {}
        self._handling: set[asyncio.Task[object]] = set()
        self._failure = ""
        self.synchronized = False

    async def run(self, index: int) -> str:
        """Register and serve until the connection ends; returns why."""
        async with asyncio.TaskGroup() as tasks:
            # The runtime may call Configure before it answers.
            serving = tasks.create_task(self._channel.run())
            register = RegisterPluginRequest(plugin_name=self._name, plugin_index=f"{index:02}")
            try:
                await self._channel.call(RUNTIME, "RegisterPlugin", register, timeout=_CALL_TIMEOUT)
            except CallFailed as error:
                self._fail(f"the container runtime did not register {self._name}: {error}")
        return self._failure or serving.result()

    async def update(self, updates: Updates) -> Sent:
        """Send updates now if this runtime allows it and nothing waits for this task; else with the next answer."""
        self._waiting |= {one.container_id: one for one in updates}
        is_handler = asyncio.current_task() in self._handling
        if not self._waiting or not self.synchronized or self._nri < UPDATES_FIXED or is_handler:
            return Sent(now=False)
        request = UpdateContainersRequest(update=merge(self._waiting, ()))
        self._waiting.clear()
        answer = await self._channel.call(RUNTIME, "UpdateContainers", request, timeout=_CALL_TIMEOUT)
        return Sent(now=True, failed=decode(answer, UpdateContainersResponse).failed)

    async def _serve(self, request: Request) -> bytes:
        try:
            return await self._dispatch(request)
        except (CallFailed, Malformed):
            raise
        except PydraError as error:
            raise CallFailed(Code.FAILED_PRECONDITION, f"{self._name}: {error}") from error
        except Exception as error:
            _logger.exception("%s failed", request.method)
            raise CallFailed(Code.INTERNAL, f"{self._name} has a defect: {type(error).__name__}: {error}") from error

    async def _dispatch(self, request: Request) -> bytes:
        match request.service, request.method:
            case (service, _) if service != PLUGIN:
                pass
            case _, "Configure":
                return encode(self._configure(decode(request.payload, ConfigureRequest)))
            case _, "Synchronize":
                return await self._synchronize(decode(request.payload, SynchronizeRequest), request.timeout_nano)
            case _, "Shutdown":
                return b""
            case _, method if event := read_event(method, request.payload):
                return await self._handle(event, request.timeout_nano)
        raise CallFailed(Code.UNIMPLEMENTED, f"{self._name} does not serve {request.service}/{request.method}")

    def _configure(self, request: ConfigureRequest) -> ConfigureResponse:
        runtime = f"{request.runtime_name} {request.runtime_version}"
        if request.request_timeout > 0:
            self.request_timeout = request.request_timeout / 1000
        self._nri = read_nri_version(request.nri_version, request.runtime_name, request.runtime_version)
        mask, unknown = choose_events(self._handlers, self._nri)
        if unknown:
            _logger.warning("%s has no events for %s; they need NRI 0.10", runtime, ", ".join(unknown))
        if not mask:
            # The runtime would take 0 for all events.
            raise self._fail(f"{runtime} has none of the events that {self._name} needs")
        version = ".".join(map(str, self._nri[:3])) if self._nri > (0,) else "of an unknown version"
        _logger.info("%s is registered with %s, NRI %s", self._name, runtime, version)
        return ConfigureResponse(events=mask)

    async def _synchronize(self, part: SynchronizeRequest, timeout_nano: int) -> bytes:
        """Collect the parts; the last one's answer has the updates."""
        found = part.containers if self._handlers.keep is None else tuple(map(self._handlers.keep, part.containers))
        pods, containers = self._existing.pods + part.pods, self._existing.containers + found
        if part.more:
            self._existing = SynchronizeRequest(pods=pods, containers=containers)
            return encode(UpdatesResponse(more=True))
        self._existing = SynchronizeRequest()
        self._waiting.clear()
        try:
            result = await self._in_time("Synchronize", self._handlers.synchronize(pods, containers), timeout_nano)
            answer = encode(UpdatesResponse(update=merge(self._waiting, result)))
        except Exception as error:
            self._fail(f"{self._name} could not be synchronized: {error}")
            raise
        self._waiting.clear()
        self.synchronized = True
        self._on_synchronized()
        return answer

    async def _handle(self, event: Event, timeout_nano: int) -> bytes:
        work = event.start(self._handlers)
        if work is None:
            return b""  # which changes nothing
        result = await self._in_time(str(event), work, timeout_nano)
        if not carries_updates(event):
            return b""
        answer = build_answer(event, result, self._waiting)
        self._waiting.clear()
        return answer

    async def _in_time(self, what: str, work: Awaitable[T], timeout_nano: int) -> T:
        """The handler's result. After its time there is an error, even if the handler has not ended."""
        limit = answer_within(self.request_timeout, timeout_nano)
        task = asyncio.ensure_future(work)
        self._handling.add(task)
        try:
            await asyncio.wait((task,), timeout=limit)
        finally:
            self._handling.discard(task)
            task.cancel()
        if task.done() and not task.cancelled():
            return task.result()
        _logger.error("%s was refused: its handler did not end within %.3g s", what, limit)
        raise CallFailed(Code.DEADLINE_EXCEEDED, f"{self._name} did not finish {what} within {limit:.3g} s")

    def _fail(self, message: str) -> CallFailed:
        """End the connection after the answer: some runtimes would keep it open, but send no events."""
        self._failure = message
        asyncio.get_running_loop().call_soon(self._channel.close)
        return CallFailed(Code.FAILED_PRECONDITION, message)
