"""Claims of a backend in this process: the agent's own code carries their steps out and undoes them, without a disk."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from msgspec.structs import replace

from pydra import Claim, HeldClaim, PreparedDevice, PydraError, describe_step
from pydra.checkpoint.record import Record, Stage
from pydra.checkpoint.record_files import find_claim_uid
from pydra.claims.steps import StepIndex, StepRunner, build_left_over

_SECONDS = 3600.0


def build_claim(uid: str, *steps: Any, data: Any = None) -> Claim:
    """A claim with these steps planned."""
    return Claim(
        uid=uid,
        namespace="default",
        name=f"claim-{uid}",
        devices=(),
        plan={} if data is None else data,
        steps=tuple([describe_step(step) for step in steps]),
    )


class StepAgent:
    """`backend` has `apply` and `undo`; for whole claims it has all coroutines. `records` are what is held."""

    def __init__(self, backend: Any = None, records: dict[str, HeldClaim] | None = None) -> None:
        self.backend = backend
        self.records = {} if records is None else records
        self.later: list[str] = []
        """Why steps could not be undone when their claim ended."""
        self._index = StepIndex()
        self._runner: StepRunner | None = None
        self._noted: set[str] = set()

    def held(self) -> tuple[HeldClaim, ...]:
        """As `pydra.held_claims`."""
        return tuple(one for _, one in sorted(self.records.items()))

    def hold(self, held: HeldClaim) -> None:
        """Keep the record of a claim."""
        self.records[held.claim.uid] = held

    def note(self, claim: Claim, *, completed: bool = False) -> None:
        """Hold the claim as it is now."""
        self.hold(HeldClaim(claim=claim, completed=completed))

    async def plan(self, claim: Claim) -> Claim:
        """Plan the claim, and hold it as begun."""
        others = tuple(one for one in self.held() if one.claim.uid != claim.uid)
        plan = await self.backend.plan(claim, others)
        steps = tuple([describe_step(step) for step in plan.steps])
        self._steps()
        planned = self._index.adopt(replace(claim, plan=_as_json(plan.data), steps=steps))
        self.note(planned)
        return planned

    async def carry_out(self, claim: Claim) -> Claim:
        """Do all steps; after a failure, what was begun is undone."""
        steps = self._steps()
        claim = self._index.adopt(claim)
        self.note(claim)
        try:
            record = await steps.carry_out(_build_record(self.records[claim.uid]), until=_until(), keep=self._keep)
        except PydraError as error:
            await self._undo_after(error, claim.uid)
            raise
        self.note(record.claim, completed=True)
        return record.claim

    async def prepare(self, claim: Claim) -> tuple[PreparedDevice, ...]:
        """Plan, carry out the steps, and prepare; what fails is undone."""
        return await self.finish(await self.plan(claim))

    async def finish(self, planned: Claim) -> tuple[PreparedDevice, ...]:
        """The same for a claim that is planned."""
        claim = await self.carry_out(planned)
        self.note(claim)
        try:
            prepared = as_kept(await self.backend.prepare(claim))
        except PydraError as error:
            await self._undo_after(error, claim.uid)
            raise
        self.hold(HeldClaim(claim=claim, prepared=prepared, completed=True))
        return prepared

    async def unprepare(self, uid: str) -> None:
        """Have the backend unprepare the claim, and undo its steps."""
        if (held := self.records.get(uid)) is not None:
            if hasattr(self.backend, "unprepare"):
                await self.backend.unprepare(held.claim, held.prepared)
            await self.undo(uid)

    async def undo(self, uid: str) -> None:
        """Undo what was begun for the claim, and forget it; what must wait for the hardware is left over."""
        if (held := self.records.get(uid)) is None:
            return
        latest = _build_record(replace(held, completed=False))
        self._keep(latest)

        def keep(record: Record) -> None:
            nonlocal latest
            latest = record
            self._keep(record)

        later = await self._steps().undo(latest, until=_until(), keep=keep)
        del self.records[uid]
        if later:
            self.later.extend(later.values())
            left = build_left_over(latest, later)
            self._keep(replace(left, claim=replace(left.claim, uid=f"{find_claim_uid(uid)}.left")))

    async def retry(self) -> None:
        """Try once more to undo what ended claims have left."""
        for uid in [uid for uid, one in self.records.items() if one.left_over]:
            await self.undo(uid)

    async def _undo_after(self, error: PydraError, uid: str) -> None:
        try:
            await (self.unprepare(uid) if hasattr(self.backend, "unprepare") else self.undo(uid))
        except PydraError as failed:
            error.add_note(str(failed))

    def _keep(self, record: Record) -> None:
        self.hold(record.held())

    def _steps(self) -> StepRunner:
        """The agent's code, which knows all steps of the records as they are now."""
        if self._runner is None:
            store = cast("Any", _Records(self._write))
            self._runner = StepRunner(store, cast("Any", _Calls(self)), self._index, lambda _claim, _names: True)
        for uid in self._noted | self.records.keys():
            self._index.note(uid, self.records[uid].claim.steps if uid in self.records else ())
        self._noted = set(self.records)
        return self._runner

    def _write(self, record: Record) -> None:
        self._keep(record)
        self._steps()


class _Calls:
    """What the supervisor of a backend's process does."""

    def __init__(self, agent: StepAgent) -> None:
        self._agent = agent

    async def apply(self, claim: Claim, place: int, *, until: float) -> Any:
        """Call the backend, whose results are JSON."""
        one = claim.steps[place]
        return _as_json(await self._agent.backend.apply(one.step, one.result, claim))

    async def undo(self, claim: Claim, place: int, *, until: float) -> None:
        """Call the backend."""
        one = claim.steps[place]
        await self._agent.backend.undo(one.step, one.result, claim)


class _Records:
    """What a `RecordStore` is to the steps, of the only instance."""

    unreadable: Mapping[str, Any] = {}

    def __init__(self, write: Any) -> None:
        self.lock = _NoLock()
        self._write = write

    async def __aenter__(self) -> None:
        """Others do not change anything."""

    async def __aexit__(self, *_: object) -> None:
        """Nothing is locked."""

    async def write(self, record: Record, *, in_place: bool = False) -> None:
        """Keep the record."""
        self._write(record)


class _NoLock:
    async def lock(self, *_: object, **__: object) -> None:
        """There is no other instance."""

    def release_step(self, _offset: int) -> None:
        """Nothing is locked."""


def _build_record(held: HeldClaim) -> Record:
    stage = Stage.COMPLETED if held.completed else Stage.STARTED
    left_over = "left over" if held.left_over else ""
    return Record(
        claim=held.claim, driver="test", stage=stage, boot_id="boot", prepared=held.prepared, left_over=left_over
    )


def _until() -> float:
    return asyncio.get_running_loop().time() + _SECONDS


def _as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def as_kept(prepared: Sequence[PreparedDevice]) -> tuple[PreparedDevice, ...]:
    """As JSON keeps their state."""
    return tuple(replace(one, state=_as_json(one.state)) for one in prepared)


def list_steps(records: Iterable[HeldClaim]) -> list[Any]:
    """All steps of the claims, in order."""
    return [one.step for record in records for one in record.claim.steps]
