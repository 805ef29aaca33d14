"""Answers the agent's calls in the backend's process: each call a task, each outcome a message.

Plain asyncio instead of anyio: a child needs task groups and timeouts only, and stays smaller.
The one place outside the agent's per-claim boundary where any exception is caught: whatever a
backend raises, `SystemExit` included, costs the call that raised it.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from pydra.backends.answers import find_answer_type_violations
from pydra.backends.config import decode_claim, decode_what_fits
from pydra.backends.contract import call_deadline
from pydra.backends.faults import Fault, FaultKind, build_fault
from pydra.backends.stacks import format_wait
from pydra.backends.threads import account_for_threads, wait_ended
from pydra.backends.wire import Call, Cancel, Failure, Method, Reply, ToAgent, ToBackend, WireError, build_result
from pydra.claim import Claim, HeldClaim
from pydra.errors import InvalidConfig

_OBEY_SECONDS = 0.1


class _Unreached(Exception):
    """The call failed before the backend's code ran, because of `cause`."""

    def __init__(self, cause: InvalidConfig) -> None:
        self.cause = cause
        super().__init__(str(cause))


class CallServer:
    """Runs calls side by side on the object that `connect` yielded (or the backend itself).

    Those of one claim one after the other: the agent may go on with a claim whose cancelled call has threads that
    still touch the hardware.
    """

    def __init__(
        self,
        backend: Any,
        config_types: Mapping[str, type[Any]],
        send: Callable[[ToAgent], None],
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._backend = backend
        self._config_types = config_types
        self._send = send
        self._tasks = tasks
        self._running: dict[int, asyncio.Task[None]] = {}
        self._of_claim: dict[int, str] = {}

    def receive(self, message: ToBackend) -> None:
        """Start or cancel a call."""
        match message:
            case Call(id=call_id, method=method, claim=claim):
                uid = claim.uid if claim is not None else ""
                earlier = [self._running[one] for one, whose in self._of_claim.items() if uid and whose == uid]
                task = self._tasks.create_task(self._serve(message, earlier), name=f"{method.value}#{call_id}")
                self._running[call_id], self._of_claim[call_id] = task, uid
                task.add_done_callback(lambda done: self._forget(call_id, done))
            case Cancel(id=call_id) if call_id in self._running:
                task = self._running[call_id]
                task.cancel()
                asyncio.get_running_loop().call_later(_OBEY_SECONDS, _tell_where_it_waits, task)

    def cancel_all(self) -> None:
        """Ask every call to end."""
        for task in self._running.values():
            task.cancel()

    def _forget(self, call_id: int, task: asyncio.Task[None]) -> None:
        """A call that was cancelled before its first step never began, and so cannot answer for itself."""
        del self._running[call_id], self._of_claim[call_id]
        if task.cancelled():
            fault = Fault(kind=FaultKind.CANCELLED, message="it was cancelled", reached=False)
            self._send(Failure(id=call_id, fault=fault))

    async def _serve(self, call: Call, earlier: Sequence[asyncio.Task[None]]) -> None:
        answer = await self._answer(call, earlier)
        try:
            self._send(answer)
        except WireError as error:
            self._send(_broken(call, (f"{call.method.value} answered too much: {error}",)))

    async def _answer(self, call: Call, earlier: Sequence[asyncio.Task[None]]) -> Reply | Failure:
        threads = account_for_threads()
        call_deadline.set(math.inf if call.until is None else call.until)
        try:
            if earlier:
                await asyncio.wait(earlier)
            result = await self._perform(call)
            violations = find_answer_type_violations(call.method, result)
            if violations:
                return _broken(call, violations)
            return self._reply(call, result)
        except asyncio.CancelledError as error:
            await wait_ended(threads)
            trace = build_fault(error).traceback
            return Failure(
                id=call.id, fault=Fault(kind=FaultKind.CANCELLED, message="it was cancelled", traceback=trace)
            )
        except _Unreached as error:
            return Failure(id=call.id, fault=replace(build_fault(error.cause), reached=False, traceback=""))
        except BaseException as error:  # noqa: BLE001 - the child's call boundary
            return Failure(id=call.id, fault=build_fault(error))

    def _reply(self, call: Call, result: Any) -> Reply | Failure:
        try:
            return Reply(id=call.id, result=build_result(result))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            return _broken(call, (f"{call.method.value} returned what JSON cannot carry: {error}",))

    async def _perform(self, call: Call) -> Any:
        coroutine = getattr(self._backend, call.method.value)
        match call:
            case Call(method=Method.PLAN, claim=claim) if claim is not None:
                return await coroutine(self._decode(claim), self._decode_held(call))
            case Call(method=Method.RESTORE):
                return await coroutine(self._decode_held(call))
            case Call(method=Method.PREPARE, claim=claim) if claim is not None:
                return await coroutine(self._decode(claim))
            case Call(method=Method.UNPREPARE, claim=claim) if claim is not None:
                return await coroutine(decode_what_fits(claim, self._config_types), call.prepared)
            case Call(method=Method.INHERIT):
                return await coroutine(call.directory)
            case _:
                return await coroutine()

    def _decode(self, claim: Claim) -> Claim:
        """Raises _Unreached: the claim's author has to change something, and the backend saw nothing of it."""
        try:
            return decode_claim(claim, self._config_types)
        except InvalidConfig as error:
            raise _Unreached(error) from error

    def _decode_held(self, call: Call) -> tuple[HeldClaim, ...]:
        return tuple(replace(one, claim=decode_what_fits(one.claim, self._config_types)) for one in call.held)


def _tell_where_it_waits(task: asyncio.Task[None]) -> None:
    """For the report on a call that does not obey; the agent is about to end the process."""
    if not task.done():
        where = format_wait(task.get_coro())
        sys.stderr.write(f"{task.get_name()} was cancelled and still waits (innermost last):\n{where}")


def _broken(call: Call, violations: tuple[str, ...]) -> Failure:
    return Failure(id=call.id, fault=Fault(kind=FaultKind.CONTRACT, problems=violations))
