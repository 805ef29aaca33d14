"""Claims of a backend in this process: what fails is undone, and what must wait for the hardware is left over."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from pydra import Claim, HeldClaim, PreparedDevice, PydraError, describe_step
from pydra.checkpoint.record import Record
from pydra.checkpoint.record_files import find_claim_uid
from pydra.claims.steps import build_left_over
from pydra.testing.claims_in_memory import CallsInProcess, ClaimsInMemory


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


class StepAgent(ClaimsInMemory):
    """`backend` has `apply` and `undo`; for whole claims it has all coroutines. `records` are what is held."""

    def __init__(self, backend: Any = None, records: dict[str, HeldClaim] | None = None) -> None:
        self._in_process = _Calls(backend, self.held)
        super().__init__(self._in_process, records)
        self.later: list[str] = []
        """Why steps could not be undone when their claim ended."""

    @property
    def backend(self) -> Any:
        """What is called; another one after a restart."""
        return self._in_process.backend

    @backend.setter
    def backend(self, backend: Any) -> None:
        self._in_process.backend = backend

    def held(self) -> tuple[HeldClaim, ...]:
        """As `pydra.held_claims`."""
        return tuple(one for _, one in sorted(self.records.items()))

    async def carry_out(self, claim: Claim) -> Claim:
        """Do all steps; after a failure, what was begun is undone."""
        try:
            done = await super().carry_out(claim)
        except PydraError as error:
            await self._undo_after(error, claim.uid)
            raise
        self.note(done, completed=True)
        return done

    async def prepare(self, claim: Claim) -> tuple[PreparedDevice, ...]:
        """Plan, carry out the steps, and prepare; what fails is undone."""
        return await self.finish(await self.plan(claim))

    async def finish(self, planned: Claim) -> tuple[PreparedDevice, ...]:
        """The same for a claim that is planned."""
        done = await self.carry_out(planned)
        self.note(done)
        try:
            return await self.hold(done)
        except PydraError as error:
            await self._undo_after(error, done.uid)
            raise

    async def unprepare(self, uid: str) -> None:
        """Have the backend unprepare the claim, and undo its steps."""
        if (held := self.records.get(uid)) is not None:
            await self.release(held.claim, held.prepared)

    def leave(self, record: Record, later: Mapping[str, str]) -> None:
        """Keep what is left over, as of another claim."""
        self.forget(record.claim)
        self.later.extend(later.values())
        left = build_left_over(record, later).held()
        self.keep(replace(left, claim=replace(left.claim, uid=f"{find_claim_uid(record.claim.uid)}.left")))

    async def retry(self) -> None:
        """Try once more to undo what ended claims have left."""
        for uid in [uid for uid, one in self.records.items() if one.left_over]:
            await self.undo(uid)

    async def _undo_after(self, error: PydraError, uid: str) -> None:
        try:
            await self.unprepare(uid)
        except PydraError as failed:
            error.add_note(str(failed))


class _Calls(CallsInProcess):
    """What the supervisor of a backend's process does: what the backend returns comes as JSON."""

    def __init__(self, backend: Any, held: Callable[[], tuple[HeldClaim, ...]]) -> None:
        super().__init__(backend)
        self._held = held

    async def plan(self, claim: Claim, *, until: float) -> Claim:
        """Plan with what else is held."""
        plan = await self.backend.plan(claim, self._held())
        return replace(claim, plan=_as_json(plan.data), steps=tuple([describe_step(step) for step in plan.steps]))

    async def apply(self, claim: Claim, step: int, *, until: float) -> Any:
        """Apply a step."""
        return _as_json(await super().apply(claim, step, until=until))

    async def prepare(self, claim: Claim, *, until: float) -> tuple[PreparedDevice, ...]:
        """Prepare a claim."""
        return as_kept(await super().prepare(claim, until=until))


def _as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def as_kept(prepared: Sequence[PreparedDevice]) -> tuple[PreparedDevice, ...]:
    """As JSON keeps their state."""
    return tuple(replace(one, state=_as_json(one.state)) for one in prepared)


def list_steps(records: Iterable[HeldClaim]) -> list[Any]:
    """All steps of the claims, in order."""
    return [one.step for record in records for one in record.claim.steps]
