"""Executes the agent's calls in the child process and sends the results.

Each call runs in a task of its own. Plain asyncio instead of anyio, because the child only needs tasks and stays
smaller. Any exception of a backend, `SystemExit` included, is caught here and fails only the call that raised it.

A coroutine can be cancelled, but the thread that it waits for cannot. A cancelled call has ended only when its threads
have: until then they may still access the hardware.
"""

from __future__ import annotations

import asyncio
import math
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from types import FrameType
from typing import Any, ParamSpec, TypeAlias, TypeVar

from msgspec.structs import replace

from pydra.backends.child.claim_values import BackendTypes, HeldClaims
from pydra.backends.child.logs import running_call
from pydra.backends.claim_config import ConfigCheck, decode_claim
from pydra.backends.contract import call_deadline, call_status, held_copy
from pydra.backends.contract_validation import find_answer_type_violations
from pydra.backends.error_codec import Fault, FaultKind, build_fault
from pydra.backends.wire import (
    MAX_NAME,
    Call,
    Cancel,
    Failure,
    Held,
    Locate,
    Method,
    Reply,
    ToAgent,
    ToBackend,
    Waiting,
    WireError,
    build_result,
    find_unencodable,
)
from pydra.message_text import encodable

P = ParamSpec("P")
R = TypeVar("R")

FORKED = "{} came back in a process that it had forked: call os._exit there, or start a program instead"

_CANCEL_SECONDS = 0.1

_Threads: TypeAlias = dict[Future[Any], list[int]]
"""Threads that have not ended, each with its id once it has begun."""

_threads: ContextVar[_Threads | None] = ContextVar("pydra_call_threads", default=None)
"""The threads of the running call."""


class CallThreads(ThreadPoolExecutor):
    """The default executor of a backend's event loop, for `asyncio.to_thread`; it tracks which call uses a thread."""

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Run in a thread, tracked for the call whose task submits it."""
        tracked = _threads.get()
        if tracked is None:
            return super().submit(fn, *args, **kwargs)

        thread: list[int] = []

        def run() -> R:
            thread.append(threading.get_ident())
            return fn(*args, **kwargs)

        future = super().submit(run)
        tracked[future] = thread
        future.add_done_callback(lambda done: tracked.pop(done, None))
        return future


class CallServer:
    """Runs calls concurrently on the object that `connect` yielded (or the backend itself).

    Those of one claim run one after the other: the agent may continue with a claim while threads of its cancelled call
    still access the hardware.
    """

    def __init__(
        self,
        backend: Any,
        types: BackendTypes,
        send: Callable[[ToAgent], None],
        tasks: asyncio.TaskGroup,
        check: ConfigCheck | None = None,
    ) -> None:
        self._pid = os.getpid()
        self._backend = backend
        self._types = types
        self._check = check
        self._send = send
        self._tasks = tasks
        self._running: dict[int, asyncio.Task[None]] = {}
        self._of_claim: dict[int, str] = {}
        self._threads_of: dict[int, _Threads] = {}
        self._status_of: dict[int, list[str]] = {}
        self._held = HeldClaims(types)
        held_copy.read = self._held.read

    def receive(self, message: ToBackend) -> None:
        """Start, cancel or locate a call."""
        match message:
            case Call(id=call_id, method=method, claim=claim):
                uid = claim.uid if claim is not None else ""
                earlier = [self._running[one] for one, whose in self._of_claim.items() if uid and whose == uid]
                task = self._tasks.create_task(self._serve(message, earlier), name=f"{method.value}#{call_id}")
                self._running[call_id], self._of_claim[call_id] = task, uid
                task.add_done_callback(lambda done: self._forget(call_id, done))
            case Held():
                self._held.update(message)
            case Cancel(id=call_id) if call_id in self._running:
                where = self._find_wait(call_id)  # before it is cancelled: afterwards it waits in its cleanup
                self._running[call_id].cancel()
                asyncio.get_running_loop().call_later(_CANCEL_SECONDS, self._send_waiting, call_id, where)
            case Locate(id=call_id) if call_id in self._running:
                self._send_waiting(call_id, self._find_wait(call_id))

    def cancel_all(self) -> None:
        """Cancel every call."""
        for task in self._running.values():
            task.cancel()

    def _forget(self, call_id: int, task: asyncio.Task[None]) -> None:
        """Forget a call; answer for one that was cancelled before its task began to run."""
        del self._running[call_id], self._of_claim[call_id]
        self._threads_of.pop(call_id, None)
        self._status_of.pop(call_id, None)
        if task.cancelled():
            fault = Fault(kind=FaultKind.CANCELLED, message="it was cancelled", reached=False)
            self._send(Failure(id=call_id, fault=fault))

    def _send_waiting(self, call_id: int, where: str) -> None:
        """Report where a call waits that has not ended. One that was cancelled is about to cost the process."""
        if call_id in self._running:
            self._send(Waiting(id=call_id, where=where))

    def _find_wait(self, call_id: int) -> str:
        """Format the call's status, and the frames of its coroutine and of the threads that it waits for."""
        where = "".join(f"status: {encodable(str(text)[:MAX_NAME])}\n" for text in self._status_of.get(call_id, ()))
        where += _format(_coroutine_frames(self._running[call_id].get_coro()))
        running = sys._current_frames()  # noqa: SLF001 - the only way to see where a thread is
        for thread in tuple(self._threads_of.get(call_id, {}).values()):  # they end meanwhile, each in its thread
            where += _format(_thread_frames(running.get(thread[0]))) if thread else ""
        return where

    async def _serve(self, call: Call, earlier: Sequence[asyncio.Task[None]]) -> None:
        answer = await self._answer(call, earlier)
        if self.is_forked():
            sys.stderr.write(f"{FORKED.format(call.method.value)}; it is ended\n")
            sys.stderr.flush()
            os._exit(1)
        try:
            self._send(answer)
        except WireError as error:
            self._send(_broken(call, (f"{call.method.value} answered too much: {error}",)))

    def is_forked(self) -> bool:
        """Whether this is a copy of the process, by `os.fork` in a call: it has the connection and may not answer."""
        return os.getpid() != self._pid

    async def _answer(self, call: Call, earlier: Sequence[asyncio.Task[None]]) -> Reply | Failure:
        threads: _Threads = {}
        self._threads_of[call.id] = threads
        _threads.set(threads)
        running_call.set(call)
        self._status_of[call.id] = status = list[str]()
        call_status.set(status)
        call_deadline.set(math.inf if call.until is None else call.until)
        reached = False
        try:
            if earlier:
                await asyncio.wait(earlier)
            arguments = self._decode_arguments(call)
            reached = True
            result = await self._perform(call, arguments)
            violations = find_answer_type_violations(call.method, result)
            if not violations and call.method is Method.PLAN:
                result, violations = self._types.describe_plan(result)
            if violations:
                return _broken(call, violations)
            return self._reply(call, result)
        except asyncio.CancelledError as error:
            await _wait_ended(threads)
            trace = build_fault(error).traceback
            fault = Fault(kind=FaultKind.CANCELLED, message="it was cancelled", traceback=trace, reached=reached)
            return Failure(id=call.id, fault=fault)
        except BaseException as error:  # noqa: BLE001 - the child's call boundary
            return Failure(id=call.id, fault=replace(build_fault(error), reached=reached))

    def _reply(self, call: Call, result: Any) -> Reply | Failure:
        try:
            return Reply(id=call.id, result=build_result(result))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            parts = tuple(f"{call}: {part}" for part in find_unencodable(result, "$"))
            return _broken(call, parts or (f"{call} returned what JSON cannot hold: {error}",))

    def _decode_arguments(self, call: Call) -> tuple[Any, ...]:
        """Return what the coroutine is called with, in the backend's own types.

        Raises InvalidConfig, for the claim's author, or UndoLater for a step of a type that this version does not know.
        """
        claim, types = call.claim, self._types
        if claim is None and call.method is Method.RESTORE:
            return (self._held.read(),)
        if claim is None:
            return (call.directory,) if call.method is Method.INHERIT else ()
        if call.method in (Method.UNPREPARE, Method.UNDO):
            decoded = types.decode_what_fits(claim)
        else:
            decoded = types.decode_steps(decode_claim(claim, types.configs, self._check))
        match call.method:
            case Method.PLAN:
                return decoded, tuple([one for one in self._held.read() if one.claim.uid != claim.uid])
            case Method.APPLY | Method.UNDO:
                one = types.decode_step(claim.steps[call.step])
                return one.step, one.result, decoded
            case Method.UNPREPARE:
                return decoded, call.prepared
        return (decoded,)

    async def _perform(self, call: Call, arguments: tuple[Any, ...]) -> Any:
        hints = call.method is Method.WAIT_CHANGED
        coroutine: Any = self._wait_changed if hints else getattr(self._backend, call.method.value)
        return await coroutine(*arguments)

    async def _wait_changed(self) -> Any:
        """Call it from a function of its own, by which `crash_diagnosis` finds it in a stack."""
        return await self._backend.wait_changed()


async def _wait_ended(threads: _Threads) -> None:
    """Wait until the threads of a call have ended, whatever their result."""
    for future in tuple(threads):
        if not future.cancel():  # still queued: it never starts
            await asyncio.gather(asyncio.wrap_future(future), return_exceptions=True)


def _coroutine_frames(awaitable: Any) -> Iterator[FrameType]:
    """Yield the frames from the coroutine down to what it awaits: the stack that a signal handler cannot see."""
    while awaitable is not None:
        frame = getattr(awaitable, "cr_frame", None) or getattr(awaitable, "ag_frame", None)
        if frame is not None:
            yield frame
        awaitable = getattr(awaitable, "cr_await", None) or getattr(awaitable, "ag_await", None)


def _thread_frames(frame: FrameType | None) -> list[FrameType]:
    """Return the frames of a thread that runs a call's function, from that function on."""
    frames = []
    while frame is not None and frame.f_code.co_filename != __file__:
        frames.append(frame)
        frame = frame.f_back
    return frames[::-1]


def _format(frames: Iterator[FrameType] | Sequence[FrameType]) -> str:
    """Format the frames as in a traceback, without those of this package."""
    here = os.path.dirname(__file__)
    stack = ((one, one.f_lineno) for one in frames if os.path.dirname(one.f_code.co_filename) != here)
    return "".join(traceback.StackSummary.extract(stack).format())


def _broken(call: Call, violations: tuple[str, ...]) -> Failure:
    return Failure(id=call.id, fault=Fault(kind=FaultKind.CONTRACT, problems=violations))
