"""The kubelet's calls, claim by claim: fetch, decide, carry out, answer. The shell around the claims' plans.

Nothing that goes wrong with one claim is seen by another. A device is looked up and taken in one
step, without an await between; a claim's own calls take turns.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Generic, TypeAlias, TypeVar

import anyio
from anyio.abc import TaskGroup

from pydra.cdi.spec import cdi_ids
from pydra.checkpoint.record import Record, Stage
from pydra.checkpoint.scan import RecordTooNew
from pydra.claim import Claim
from pydra.claims.allocation import base_request, check_ref, parse_allocation
from pydra.claims.execution import Execution
from pydra.claims.holdings import Holdings
from pydra.claims.lifecycle import (
    Answer,
    Prepare,
    Refuse,
    RemoveFile,
    RestoreFile,
    Unprepare,
    decide_prepare,
    decide_tidy,
    decide_unprepare,
)
from pydra.claims.outcome import ClaimRef, ContainerDevice, PodRef, PrepareOutcome, UnprepareOutcome
from pydra.claims.outside import FetchClaim, Limits, Span
from pydra.claims.reports import ClaimEvent, ClaimFailed, ClaimPrepared, ClaimUnprepared, Operation, OperationStarted
from pydra.claims.stages import Stages, no_span
from pydra.claims.turns import Turn, Turns
from pydra.errors import BackendError, ClaimError, InternalError, PydraError, Unavailable
from pydra.observability.logging import logging_fields

T = TypeVar("T")
_log = logging.getLogger(__name__)


class Tidied(Enum):
    """What was put right for a claim that nobody asked about."""

    NOTHING = "nothing"
    UNDONE = "undone"
    FILE_REMOVED = "file removed"
    FILE_RESTORED = "file restored"


TidyOutcome: TypeAlias = Tidied | PydraError


@dataclass(slots=True)
class _Course(Generic[T]):
    """One operation on one claim, on its way."""

    ref: ClaimRef
    stages: Stages
    answer: Callable[[T | PydraError], None]
    pods: tuple[PodRef, ...] = ()
    devices: tuple[str, ...] = ()
    from_record: bool = False

    def fields(self) -> dict[str, str]:
        """What is known only on the way, for the log."""
        known = {"pods": ",".join(pod.name for pod in self.pods), "devices": ",".join(self.devices)}
        return {name: text for name, text in known.items() if text}


def _ignore(event: ClaimEvent) -> None:
    """Report to nobody."""


class ClaimPreparer:
    """The claims of one driver on this node.

    Work goes on in `tasks`, whoever waits for it; cancelling that task group is as safe as a crash.
    """

    def __init__(
        self,
        *,
        driver: str,
        boot_id: str,
        tasks: TaskGroup,
        fetch_claim: FetchClaim,
        holdings: Holdings,
        execution: Execution,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        report: Callable[[ClaimEvent], None] = _ignore,
        clock: Callable[[], float] = time.monotonic,
        span: Span = no_span,
    ) -> None:
        self._driver = driver
        self._boot_id = boot_id
        self._turns = Turns(tasks)
        self._fetch_claim = fetch_claim
        self._holdings = holdings
        self._execution = execution
        self._limits = limits
        self._report = report
        self._clock = clock
        self._span = span

    async def prepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, PrepareOutcome]:
        """Prepare the claims, all at once; an outcome for each uid."""
        return await self._serve(Operation.PREPARE, refs, self._prepare)

    async def unprepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, UnprepareOutcome]:
        """Unprepare the claims, all at once, without the API server; an outcome for each uid."""
        return await self._serve(Operation.UNPREPARE, refs, self._unprepare)

    async def tidy(self, uid: str) -> TidyOutcome:
        """Make a claim's record and CDI file agree: undo what was only begun, restore or remove the file."""
        record = self._holdings.record(uid)
        claim = record.claim if record else Claim(uid=uid, namespace="", name="", devices=())
        ref = ClaimRef(uid=uid, namespace=claim.namespace, name=claim.name)

        async def work(answer: Callable[[TidyOutcome], None]) -> None:
            course: _Course[Tidied] = _Course(ref=ref, stages=Stages(self._clock, self._span), answer=answer)
            with logging_fields(driver=self._driver, claim=str(ref), uid=uid):
                outcome = await self._guarded(course, self._tidy)
            answer(outcome)

        return await self._turns.take(uid, "tidy", work, interrupted=_stopping(ref)).wait()

    async def refresh(self) -> None:
        """See what another instance did. Raises CheckpointError."""
        async with self._holdings.held():
            pass

    async def wait_idle(self) -> None:
        """Return when no claim is in work."""
        await self._turns.wait_idle()

    # One operation: its turn, its boundary, its report

    async def _serve(
        self, operation: Operation, refs: Sequence[ClaimRef], perform: Callable[[_Course[T]], Awaitable[T]]
    ) -> Mapping[str, T | PydraError]:
        outcomes: dict[str, T | PydraError] = {}
        turns: dict[str, Turn[T]] = {}
        for ref in refs:
            try:
                check_ref(ref)
            except ClaimError as error:
                outcomes[ref.uid] = error
                continue
            work = partial(self._operate, operation, ref, perform)
            turns[ref.uid] = self._turns.take(ref.uid, (operation, ref), work, interrupted=_stopping(ref))
        for uid, turn in turns.items():
            outcomes[uid] = await turn.wait()
        return outcomes

    async def _operate(
        self,
        operation: Operation,
        ref: ClaimRef,
        perform: Callable[[_Course[T]], Awaitable[T]],
        answer: Callable[[T | PydraError], None],
    ) -> None:
        fields = {"driver": self._driver, "claim": str(ref), "uid": ref.uid}
        with logging_fields(**fields), self._span(operation.value, **fields):
            self._report(OperationStarted(driver=self._driver, operation=operation, ref=ref))
            course: _Course[T] = _Course(ref=ref, stages=Stages(self._clock, self._span), answer=answer)
            outcome = await self._guarded(course, perform)
            answer(outcome)
            self._report(self._ended(operation, course, outcome))

    async def _guarded(self, course: _Course[T], perform: Callable[[_Course[T]], Awaitable[T]]) -> T | PydraError:
        """The boundary of a claim: whatever happens to it stays with it."""
        try:
            return await perform(course)
        except PydraError as error:
            details = error.details if isinstance(error, BackendError) and not error.logged else ""
            fields = {"reason": error.reason, **course.fields(), **({"details": details} if details else {})}
            _log.warning("%s", error, extra={"fields": fields})
            return error
        except Exception as error:  # noqa: BLE001 - one of the two boundaries
            _log.exception("a bug in pydra; what was begun is undone by the next attempt, or the sweep")
            what = f"{type(error).__name__}: {error}"
            return InternalError(f"claim {course.ref}: pydra has a bug ({what}); the agent's log has the traceback")

    def _ended(self, operation: Operation, course: _Course[T], outcome: T | PydraError) -> ClaimEvent:
        driver, ref, seconds, stages = self._driver, course.ref, course.stages.elapsed, course.stages.seconds
        if isinstance(outcome, PydraError):
            return ClaimFailed(
                driver=driver,
                operation=operation,
                ref=ref,
                error=outcome,
                terminal=not outcome.retryable,
                seconds=seconds,
                pods=course.pods,
            )
        repeated = course.from_record is (operation is Operation.PREPARE)
        level = logging.DEBUG if repeated else logging.INFO
        _log.log(level, "%sd in %.0f ms", operation.value, seconds * 1000, extra={"fields": course.fields()})
        event = ClaimPrepared if operation is Operation.PREPARE else ClaimUnprepared
        return event(driver=driver, ref=ref, seconds=seconds, stages=stages, from_record=course.from_record)

    # What the kubelet and the sweep ask for

    async def _prepare(self, course: _Course[tuple[ContainerDevice, ...]]) -> tuple[ContainerDevice, ...]:
        asked = await self._ask(course)
        async with self._holdings.held():
            before = self._holdings.record(course.ref.uid)
            match decide_prepare(asked, before, boot_id=self._boot_id, holders=self._holdings.holders):
                case Refuse(error=error):
                    raise error
                case Answer(record=record):
                    course.from_record = True
                    if isinstance(asked, PydraError):
                        _log.warning("answered from the record: %s", asked)
                    if await self._execution.check_file(record, course.stages):
                        _log.warning("the claim's CDI file was missing or changed, and is restored")
                case Prepare() as step:
                    record = await self._carry_out(step, before, course)
        return tuple(self._container_devices(record))

    async def _carry_out(
        self, step: Prepare, before: Record | None, course: _Course[tuple[ContainerDevice, ...]]
    ) -> Record:
        uid = course.ref.uid
        self._holdings.reserve(uid, (step.claim, *((before.claim,) if before else ())))
        try:
            return await self._execution.prepare(step, before, course.stages, course.answer)
        finally:
            self._holdings.settle(uid)

    async def _unprepare(self, course: _Course[None]) -> None:
        uid = course.ref.uid
        trouble = self._holdings.trouble(uid)
        asked = None if trouble is None or isinstance(trouble, RecordTooNew) else await self._ask(course)
        async with self._holdings.held():
            match decide_unprepare(self._holdings.record(uid), trouble=trouble, asked=asked):
                case Refuse(error=error):
                    raise error
                case Unprepare(record=record):
                    course.from_record = True
                    await self._take_back(record, course)
                case RemoveFile():
                    await self._execution.remove_file(uid, course.stages)

    async def _tidy(self, course: _Course[Tidied]) -> Tidied:
        uid = course.ref.uid
        async with self._holdings.held():
            match decide_tidy(self._holdings.record(uid), boot_id=self._boot_id, trouble=self._holdings.trouble(uid)):
                case Unprepare(record=record):
                    await self._take_back(record, course)
                    return Tidied.UNDONE
                case RemoveFile():
                    await self._execution.remove_file(uid, course.stages)
                    return Tidied.FILE_REMOVED
                case RestoreFile(record=record) if await self._execution.check_file(record, course.stages):
                    return Tidied.FILE_RESTORED
        return Tidied.NOTHING

    async def _take_back(self, record: Record, course: _Course[T]) -> None:
        try:
            await self._execution.unprepare(record, course.stages)
        finally:
            self._holdings.settle(record.claim.uid)

    async def _ask(self, course: _Course[T]) -> Claim | PydraError:
        """The claim as the API server has it now, or why that is not known."""
        known = self._holdings.record(course.ref.uid)
        patience = self._limits.fetch_known if known and known.stage is Stage.COMPLETED else self._limits.fetch
        try:
            with course.stages("fetch"), anyio.fail_after(patience):
                found = await self._fetch_claim(course.ref)
            allocation = parse_allocation(found, course.ref, self._driver)
        except TimeoutError:
            return Unavailable(f"the API server did not return claim {course.ref} within {patience:g} s")
        except PydraError as error:
            return error
        course.pods = allocation.pods
        course.devices = tuple(device.device for device in allocation.claim.devices)
        return allocation.claim

    def _container_devices(self, record: Record) -> Iterator[ContainerDevice]:
        for device in record.prepared:
            yield ContainerDevice(
                requests=(base_request(device.request),),
                pool=device.pool,
                device=device.device,
                cdi_ids=cdi_ids(self._driver, record.claim.uid, device),
                share_id=device.share_id,
            )


def _stopping(ref: ClaimRef) -> PydraError:
    return Unavailable(f"claim {ref}: the agent is stopping; its successor answers the kubelet's next attempt")
