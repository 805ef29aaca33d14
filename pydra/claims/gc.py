"""Looks, at start and by period, for what nobody will ask to be removed, and removes it.

The kubelet unprepares what it knows of. What it forgot (its own state lost, the claim deleted while
the node was away) and what a dead instance of the agent left half done would stay for ever, and with
it a device that nobody can have.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import anyio

from pydra.cdi.spec import build_spec_file
from pydra.checkpoint.record import Record
from pydra.claims.allocation import read_uid
from pydra.claims.leftovers import SweepPlan, plan_sweep
from pydra.claims.outcome import ClaimRef, UnprepareOutcome
from pydra.claims.outside import CdiFiles, Checkpoints, FetchClaim
from pydra.claims.preparer import Tidied, TidyOutcome
from pydra.claims.reports import SweepCounts, SweepDone, SweepEvent
from pydra.errors import CdiError, CheckpointError, KubeError, NotFound, PydraError, Unavailable, Unreadable

_log = logging.getLogger(__name__)
_AT_ONCE = 8


class SweepService(Protocol):
    """What a sweep asks of the preparer."""

    async def refresh(self) -> None:
        """See what another instance did. Raises CheckpointError."""
        ...

    async def unprepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, UnprepareOutcome]:
        """Unprepare the claims."""
        ...

    async def tidy(self, uid: str) -> TidyOutcome:
        """Make a claim's record and CDI file agree."""
        ...


def _ignore(event: SweepEvent) -> None:
    """Report to nobody."""


class Sweep:
    """The sweep of one driver. Periods and deadlines in seconds.

    `grace` is longer than the kubelet takes to notice a pod that was deleted by force (60 s), to end
    its containers (30 s by default) and to retry unprepare (10 to 15 s).
    """

    def __init__(
        self,
        *,
        driver: str,
        boot_id: str,
        fetch_claim: FetchClaim,
        checkpoints: Checkpoints,
        cdi: CdiFiles,
        service: SweepService,
        period: float = 600.0,
        grace: float = 120.0,
        fetch_deadline: float = 10.0,
        report: Callable[[SweepEvent], None] = _ignore,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._driver = driver
        self._boot_id = boot_id
        self._fetch_claim = fetch_claim
        self._checkpoints = checkpoints
        self._cdi = cdi
        self._service = service
        self._period = period
        self._grace = grace
        self._fetch_deadline = fetch_deadline
        self._report = report
        self._clock = clock
        self._absent_since: Mapping[str, float] = {}
        self._hinted = anyio.Event()

    async def run(self) -> None:
        """Sweep now and by period, until cancelled; sooner when a claim's grace ends, after a problem, or on a hint."""
        while True:
            self._hinted = anyio.Event()
            done = await self.sweep()
            pause = min(self._period, self._grace) if done.counts.waiting or done.problem else self._period
            with anyio.move_on_after(pause):
                await self._hinted.wait()

    def hint(self) -> None:
        """Something may be in the way: look now."""
        self._hinted.set()

    async def sweep(self) -> SweepDone:
        """One look at everything."""
        began = self._clock()
        problems: list[str] = []
        try:
            await self._service.refresh()
        except CheckpointError as error:
            problems.append(f"what another instance did was not seen: {error}")
        absent = await self._find_absent(problems)
        files = await self._read_files(problems)
        plan = plan_sweep(
            self._checkpoints.records(),
            files,
            unreadable=self._checkpoints.unreadable(),
            absent=absent,
            absent_since=self._absent_since,
            now=self._clock(),
            grace=self._grace,
            boot_id=self._boot_id,
            expected_file=self._expected_file,
        )
        self._absent_since = plan.absent_since
        counts = await self._apply(plan)
        done = SweepDone(driver=self._driver, counts=counts, seconds=self._clock() - began, problem="; ".join(problems))
        if counts != SweepCounts(waiting=counts.waiting):
            _log.info("swept: %s", counts)
        self._report(done)
        return done

    async def _find_absent(self, problems: list[str]) -> frozenset[str]:
        """The records' uids that the API server does not have; none at all when it does not say so of each."""
        absent: set[str] = set()
        silent: list[KubeError] = []
        room = anyio.Semaphore(_AT_ONCE)

        async def look(ref: ClaimRef) -> None:
            async with room:
                try:
                    if not silent and await self._is_absent(ref):
                        absent.add(ref.uid)
                except KubeError as error:
                    silent.append(error)

        async with anyio.create_task_group() as tasks:
            for record in tuple(self._checkpoints.records().values()):
                claim = record.claim
                tasks.start_soon(look, ClaimRef(uid=claim.uid, namespace=claim.namespace, name=claim.name))
        if silent:
            problems.append(f"claims were not looked up: {silent[0]}")
            return frozenset()
        return frozenset(absent)

    async def _is_absent(self, ref: ClaimRef) -> bool:
        try:
            with anyio.fail_after(self._fetch_deadline):
                found = await self._fetch_claim(ref)
        except NotFound as error:
            # A server that lost the whole API would make every claim seem gone, those of running pods too.
            if error.is_of_object:
                return True
            raise
        except Unreadable:
            return False  # the API server has it
        except TimeoutError as error:
            message = f"the API server did not return claim {ref} within {self._fetch_deadline:g} s"
            raise Unavailable(message) from error
        uid = read_uid(found)
        return uid is not None and uid != ref.uid

    async def _read_files(self, problems: list[str]) -> Mapping[str, bytes] | None:
        try:
            return await self._cdi.read()
        except CdiError as error:
            problems.append(f"CDI files were not looked at: {error}")
            return None

    async def _apply(self, plan: SweepPlan) -> SweepCounts:
        tidied: list[TidyOutcome] = []

        async def tidy(uid: str) -> None:
            tidied.append(await self._service.tidy(uid))

        async with anyio.create_task_group() as tasks:
            for uid in plan.tidy:
                tasks.start_soon(tidy, uid)
            unprepared = tuple((await self._service.unprepare(plan.unprepare)).values())
        return SweepCounts(
            claims_unprepared=unprepared.count(None),
            started_undone=tidied.count(Tidied.UNDONE),
            files_removed=tidied.count(Tidied.FILE_REMOVED),
            files_restored=tidied.count(Tidied.FILE_RESTORED),
            failed=sum(isinstance(outcome, PydraError) for outcome in (*unprepared, *tidied)),
            waiting=plan.waiting,
        )

    def _expected_file(self, record: Record) -> bytes | None:
        try:
            return build_spec_file(self._driver, record.claim.uid, record.prepared)
        except PydraError:
            return None  # so that it is tidied, and the error is that claim's
