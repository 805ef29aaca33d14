"""The calls that a backend's process has not answered yet: their deadlines, cancellation, answers, and where they wait.

Calls are plain futures and timers, because the start of every pod waits for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from pydra.backends.crash_attribution import Involvement
from pydra.backends.crash_diagnosis import CallInFlight, Cause, Ending, find_wait
from pydra.backends.error_codec import FaultKind
from pydra.backends.timeouts import ProcessTimeouts
from pydra.backends.wire import (
    MAX_EXCEPTION,
    Call,
    Cancel,
    Failure,
    Locate,
    Method,
    Reply,
    ToBackend,
    Waiting,
    WireError,
)
from pydra.errors import BackendError, BackendTimeout, PydraError, of_call
from pydra.message_text import cut

Outcome: TypeAlias = Reply | Failure | Involvement | PydraError
"""Of a call: the backend's answer; or, if its process ended, the error, or an Involvement that says to call again."""

MAX_UNSOLICITED = 100
"""Unsolicited answers that a process may send before it is killed."""


class _Pending(msgspec.Struct, kw_only=True, eq=False):
    """A call in flight."""

    call: Call
    deadline: float
    started: float
    answer: asyncio.Future[Outcome]
    timer: asyncio.TimerHandle | None = None
    cancel_sent: bool = False
    is_slow: bool = False
    is_located: bool = False
    loop_runs: bool = False
    where: str = ""


class CallsInFlight:
    """The calls of one process. `end` ends the process for a call that it does not end, or for answers to no call.

    `on_change` is called when one call fewer keeps the process busy, `on_unsolicited` for an answer to no call, and
    `on_slow` for a call, how many seconds it has taken, and where it waits.
    """

    def __init__(
        self,
        backend: str,
        send: Callable[[ToBackend], None],
        *,
        timeouts: ProcessTimeouts,
        end: Callable[[Ending], None],
        on_change: Callable[[], None],
        on_unsolicited: Callable[[int], None],
        on_slow: Callable[[Call, float, str], None],
    ) -> None:
        self._backend = backend
        self._send = send
        self._timeouts = timeouts
        self._end = end
        self._on_change = on_change
        self._on_unsolicited = on_unsolicited
        self._on_slow = on_slow
        self._loop = asyncio.get_running_loop()
        self._pending: dict[int, _Pending] = {}
        self._abandoned: dict[int, float] = {}
        self._unsolicited = 0
        self._closed = False

    @property
    def busy(self) -> bool:
        """Whether anything but `wait_changed` is in flight."""
        return any(pending.call.method is not Method.WAIT_CHANGED for pending in self._pending.values())

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight, `wait_changed` and calls that are just being cancelled included."""
        recent = self._loop.time() - self._timeouts.cancel_timeout
        return not self._pending and all(cancelled <= recent for cancelled in self._abandoned.values())

    def describe(self) -> tuple[CallInFlight, ...]:
        """Return the calls in flight, in the order of their start."""
        now = self._loop.time()
        return tuple(_describe(pending, now) for pending in self._pending.values())

    async def call(self, call: Call, *, deadline: float) -> Outcome:
        """Call the backend. At `call.until` the call is cancelled, and the process is killed if the call does not end.

        `deadline` is the same limit in seconds, for messages. The outcome is BackendTimeout for a call that ended when
        it was cancelled. Raises BackendError if the call is too large to be sent.
        """
        if self._closed:
            return Involvement.BYSTANDER
        answer = self._loop.create_future()
        pending = _Pending(call=call, deadline=deadline, started=self._loop.time(), answer=answer)
        self._pending[call.id] = pending
        if call.until is not None:
            pending.timer = self._loop.call_at(call.until, self._cancel, pending)
        try:
            self._send(call)
            return await pending.answer
        except WireError as error:
            failure = BackendError(self._backend, f"{call} cannot be called: {error}")
            raise of_call(failure, reached_backend=False) from error
        finally:
            if pending.timer is not None:
                pending.timer.cancel()
            del self._pending[call.id]
            if pending.answer.cancelled():  # by the caller
                self._abandoned[call.id] = self._loop.time()
                self._send(Cancel(id=call.id))
                self._loop.call_later(self._timeouts.cancel_timeout, self._on_change)

    def close(self) -> tuple[CallInFlight, ...]:
        """Take no more calls, since the process ends; return those in flight."""
        self._closed = True
        return self.describe()

    def find(self, call_id: int) -> Call | None:
        """Return the call if its caller still waits."""
        pending = self._pending.get(call_id)
        return pending.call if pending is not None and not pending.answer.done() else None

    def conclude(self, call_id: int, outcome: Outcome) -> None:
        """Pass the outcome to a caller that still waits, after the end of the process."""
        pending = self._pending.get(call_id)
        if pending is not None and not pending.answer.done():
            pending.answer.set_result(outcome)

    def conclude_all(self, build_error: Callable[[], PydraError]) -> None:
        """Raise an error of its own in each caller that still waits."""
        for call_id in self._pending:
            self.conclude(call_id, build_error())

    # What the process answers

    def receive_reply(self, reply: Reply) -> None:
        """Pass what the call returned to its caller."""
        pending = self._pending.get(reply.id)
        if pending is not None and not pending.answer.done():
            pending.answer.set_result(reply)
        else:
            self._note_unexpected(reply.id)

    def receive_failure(self, failure: Failure) -> None:
        """Pass what the call raised to its caller."""
        pending = self._pending.get(failure.id)
        if pending is None or pending.answer.done():
            self._note_unexpected(failure.id)
        elif pending.cancel_sent and failure.fault.kind is FaultKind.CANCELLED:
            pending.answer.set_result(self._timed_out(pending, failure))
        else:
            pending.answer.set_result(failure)

    def receive_place(self, waiting: Waiting) -> None:
        """Note where a call waits: one that is slow, or one that is being cancelled."""
        if (pending := self._pending.get(waiting.id)) is None:
            return
        pending.where = cut(waiting.where, MAX_EXCEPTION)
        pending.loop_runs = pending.cancel_sent
        if pending.is_slow and not pending.is_located and not pending.cancel_sent:
            pending.is_located = True
            self._on_slow(pending.call, self._loop.time() - pending.started, find_wait(pending.where))

    def locate_slow(self) -> None:
        """Ask the process where the calls wait that have become slow."""
        now = self._loop.time()
        for pending in self._pending.values():
            if pending.call.until is not None and not pending.is_slow:  # wait_changed has no deadline
                pending.is_slow = now - pending.started >= self._timeouts.slow_call
                if pending.is_slow:
                    self._send(Locate(id=pending.call.id))

    def _note_unexpected(self, call_id: int) -> None:
        if call_id in self._abandoned:
            del self._abandoned[call_id]
            self._on_change()
        else:
            self._unsolicited += 1
            self._on_unsolicited(call_id)
            if self._unsolicited >= MAX_UNSOLICITED:
                reason = f"{self._unsolicited} answers to calls that are not in flight"
                self._end(Ending(cause=Cause.GARBLED, reason=reason))

    # Deadlines

    def _cancel(self, pending: _Pending) -> None:
        pending.cancel_sent = True
        self._send(Cancel(id=pending.call.id))
        pending.timer = self._loop.call_later(self._timeouts.cancel_timeout, self._kill_for_timeout, pending)

    def _kill_for_timeout(self, pending: _Pending) -> None:
        """End the process for a call that did not end when cancelled; for its event loop, if that did not cancel it."""
        if pending.loop_runs:
            self._end(Ending(cause=Cause.STUCK_CALL, failed_call=pending.call.id, where=pending.where))
        else:
            self._end(Ending(cause=Cause.STUCK_LOOP, reason=f"when {pending.call} had to be cancelled"))

    def _timed_out(self, pending: _Pending, answer: Failure) -> BackendTimeout:
        fault = answer.fault
        trace = pending.where or fault.traceback
        error = BackendTimeout(
            self._backend, str(pending.call), pending.deadline, where=find_wait(trace), details=trace
        )
        return of_call(error, reached_backend=fault.reached)


def _describe(pending: _Pending, now: float) -> CallInFlight:
    call = pending.call
    return CallInFlight(
        id=call.id,
        method=call.method,
        doing=str(call),
        elapsed=now - pending.started,
        deadline=pending.deadline,
        claim=str(call.claim) if call.claim else "",
        uid=call.claim.uid if call.claim else "",
    )
