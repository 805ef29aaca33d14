"""Runs operations on claims: for one claim one after the other, for different claims concurrently.

The work on a claim is one task, which outlives the kubelet's call: if the kubelet gives up, the work continues, and the
retry joins it. An error of one claim does not affect another.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from functools import partial
from typing import Any, TypeAlias

import msgspec

from pydra.checkpoint.record import Record
from pydra.claim import ClaimRef
from pydra.errors import BackendError, DeviceInUse, InternalError, PydraError, Unavailable
from pydra.observability.logging import set_logging_fields

_log = logging.getLogger(__name__)


class Operation(Enum):
    """A request of the kubelet for a claim."""

    PREPARE = "prepare"
    UNPREPARE = "unprepare"


class OperationEnded(msgspec.Struct, frozen=True, kw_only=True):
    """A claim was prepared or unprepared, or could not be.

    `from_record`: an earlier call had done so. `timings` has seconds by step.
    """

    driver: str
    operation: Operation
    ref: ClaimRef
    seconds: float
    error: PydraError | None = None
    from_record: bool = False
    timings: Mapping[str, float] = {}


class StepsLeftOver(msgspec.Struct, frozen=True, kw_only=True):
    """A claim has ended, and steps of it cannot be undone now, for the reason; `ref` has the claim's own uid."""

    driver: str
    ref: ClaimRef
    reason: str


ClaimEvent: TypeAlias = OperationEnded | StepsLeftOver


class Work(msgspec.Struct, kw_only=True, eq=False):
    """One operation on one claim. The caller waits for `answer`; the task may continue after it, to undo.

    `carry_out` does it. `operation` is None for what the kubelet did not ask for, which no event reports. `fields` are
    log fields that come from the claim's object. `record` is the claim's, as far as its steps have come. `ended` says
    when each part of it ended, in their order.
    """

    carry_out: Callable[[Work], Awaitable[Any]]
    operation: Operation | None
    ref: ClaimRef
    answer: asyncio.Future[Any]
    began: float
    task: asyncio.Task[None] | None = None
    resource_claim: Mapping[str, Any] = {}
    fields: dict[str, str] = {}
    record: Record | None = None
    from_record: bool = False
    ended: dict[str, float] = {}


class WorkQueue:
    """The work in progress on the claims of one driver.

    `conflict` is set when work fails since another claim, which may be gone from the API, holds a device.
    """

    def __init__(self, *, driver: str, report: Callable[[ClaimEvent], None]) -> None:
        self.conflict = asyncio.Event()
        self._driver = driver
        self._report = report
        self._latest: dict[str, Work] = {}
        self._works: set[Work] = set()  # with those that the latest ones wait for
        self._clock = asyncio.get_running_loop().time

    def begin(
        self,
        carry_out: Callable[[Work], Awaitable[Any]],
        ref: ClaimRef,
        operation: Operation | None = None,
        *,
        joins: bool = True,
    ) -> asyncio.Future[Any]:
        """Begin work behind what is in progress for the claim, or join the same work; the future never raises.

        It gets what `carry_out` returns, or the PydraError for which it failed.
        """
        before = self._latest.get(ref.uid)
        is_same = before is not None and before.carry_out == carry_out and before.ref == ref
        if joins and before is not None and is_same and not before.answer.done():
            return before.answer
        loop = asyncio.get_running_loop()
        answer = loop.create_future()
        work = Work(carry_out=carry_out, operation=operation, ref=ref, answer=answer, began=self._clock())
        work.task = loop.create_task(self._run(work, before), name=f"claim {ref.uid}")
        work.task.add_done_callback(partial(self._end, work))
        self._latest[ref.uid] = work
        self._works.add(work)
        return work.answer

    def count(self, operation: Operation) -> int:
        """Return how many claims are being prepared, or unprepared; called from any thread."""
        return sum(work.operation is operation for work in tuple(self._works))

    async def wait_idle(self) -> None:
        """Wait until no work is in progress."""
        while tasks := self._tasks():
            await asyncio.wait(tasks)

    async def cancel(self) -> None:
        """Cancel the work in progress; what waits for it gets the error that the agent is stopping."""
        for task in self._tasks():
            task.cancel()
        await self.wait_idle()

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [work.task for work in self._works if work.task is not None]

    async def _run(self, work: Work, before: Work | None) -> None:
        ref, operation = work.ref, work.operation
        set_logging_fields(driver=self._driver, claim=str(ref), uid=ref.uid)
        # Not cancelled: a backend that is stopped halfway would have to undo at the same moment.
        if before is not None and before.task is not None:
            await asyncio.wait((before.task,))
        try:
            outcome = await work.carry_out(work)
        except Exception as error:  # noqa: BLE001 - one of the two boundaries: an error affects only its own claim
            outcome = self._note_failure(work, error)
        if not work.answer.done():
            work.answer.set_result(outcome)
        if operation is not None:
            self._report(self._build_event(work, operation, outcome))

    def _end(self, work: Work, _: asyncio.Task[None]) -> None:
        """Note that the work has ended, or was cancelled, maybe before it began."""
        if not work.answer.done():
            work.answer.set_result(Unavailable(f"claim {work.ref}: the agent is stopping; the kubelet will try again"))
        self._works.discard(work)
        if self._latest.get(work.ref.uid) is work:
            del self._latest[work.ref.uid]

    def _note_failure(self, work: Work, error: Exception) -> PydraError:
        """Log why the work failed; return the error for the claim."""
        if not isinstance(error, PydraError):
            _log.error(
                "internal error in pydra; the next attempt or garbage collection undoes what was started",
                exc_info=error,
            )
            what = f"{type(error).__name__}: {error}"
            return InternalError(
                f"claim {work.ref}: internal error in pydra ({what}); the agent's log has the traceback"
            )
        if isinstance(error, DeviceInUse):
            self.conflict.set()
        details = error.details if isinstance(error, BackendError) and not error.logged else ""
        fields = {"reason": error.reason, **work.fields, **({"details": details} if details else {})}
        _log.warning("%s", error, extra={"fields": fields})
        return error

    def _build_event(self, work: Work, operation: Operation, outcome: object) -> OperationEnded:
        seconds = self._clock() - work.began
        began = (work.began, *work.ended.values())
        timings = {step: end - begin for (step, end), begin in zip(work.ended.items(), began, strict=False)}
        error = outcome if isinstance(outcome, PydraError) else None
        # A repeated prepare, and an unprepare of what was never prepared, happen all the time.
        is_routine = work.from_record is (operation is Operation.PREPARE)
        level = logging.DEBUG if is_routine else logging.INFO
        if error is None and _log.isEnabledFor(level):
            steps = ", ".join([f"{step} {took * 1000:.0f}" for step, took in timings.items()])
            text = f"{operation.value}d in {seconds * 1000:.0f} ms" + (f" ({steps})" if steps else "")
            _log.log(level, "%s", text, extra={"fields": work.fields})
        return OperationEnded(
            driver=self._driver,
            operation=operation,
            ref=work.ref,
            seconds=seconds,
            error=error,
            from_record=work.from_record,
            timings=timings,
        )
