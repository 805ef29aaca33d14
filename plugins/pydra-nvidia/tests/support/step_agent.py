"""Carries out the steps of claims, and undoes them, as pydra's agent does: by its rules for equal steps of claims."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from pydra import Claim, ClaimError, ClaimStep, HeldClaim, PydraError, StepStage, UndoLater, describe_step
from pydra.claims.steps import StepIndex, changed_nothing, set_stage


def build_claim(uid: str, *steps: Any, data: Any = None) -> Claim:
    """A claim with these steps planned."""
    described = tuple([describe_step(step) for step in steps])
    return Claim(
        uid=uid,
        namespace="default",
        name=f"claim-{uid}",
        devices=(),
        plan={} if data is None else data,
        steps=described,
    )


class StepAgent:
    """`backend` has `apply` and `undo`. `records` are what is held."""

    def __init__(self, backend: Any = None) -> None:
        self.backend = backend
        self.records: dict[str, HeldClaim] = {}

    def held(self) -> tuple[HeldClaim, ...]:
        """As `pydra.held_claims`."""
        return tuple(self.records.values())

    def note(self, claim: Claim, *, completed: bool = False) -> None:
        """Hold the claim as it is now."""
        self.records[claim.uid] = HeldClaim(claim=claim, completed=completed)

    async def carry_out(self, claim: Claim) -> Claim:
        """Do all steps; after a failure, what was begun is undone."""
        claim = self._index().adopt(claim)
        self.note(claim)
        try:
            for place in range(len(claim.steps)):
                claim = await self._apply(claim, place)
        except PydraError:
            with suppress(ClaimError):
                await self.undo(claim.uid)
            raise
        self.note(claim, completed=True)
        return claim

    async def undo(self, uid: str) -> None:
        """Undo what was begun for the claim, and forget it; what must wait for the hardware is left over."""
        record = self.records.get(uid)
        if record is None:
            return
        claim = record.claim
        self.note(claim)
        kept: list[ClaimStep] = []
        failed: PydraError | None = None
        for place, step in reversed([*enumerate(claim.steps)]):
            if step.stage is StepStage.PLANNED:
                continue
            others = self._index().find(step.key, but=uid)
            try:
                if any(_meet(step, one) for one in kept):
                    kept.append(step)
                    continue
                if all(one.stage is StepStage.PLANNED for one in others):
                    await self.backend.undo(step.step, step.result, claim)
            except PydraError as error:
                kept.append(step)
                failed = failed or (None if isinstance(error, UndoLater) else error)
                continue
            claim = set_stage(claim, place, StepStage.PLANNED)
            self.note(claim)
        if failed is not None:
            raise failed
        del self.records[uid]
        if kept:
            left = replace(claim, uid=f"{uid.removesuffix('.left')}.left", steps=tuple(reversed(kept)))
            self.records[left.uid] = HeldClaim(claim=left, completed=False, left_over=True)

    async def retry(self) -> None:
        """Try once more to undo what ended claims have left."""
        for uid in [uid for uid, one in self.records.items() if one.left_over]:
            await self.undo(uid)

    async def _apply(self, claim: Claim, place: int) -> Claim:
        step = claim.steps[place]
        done = [one for one in self._index().find(step.key, but=claim.uid) if one.stage is StepStage.DONE]
        claim = set_stage(claim, place, StepStage.BEGUN, done[0].result if done else step.result)
        self.note(claim)
        try:
            result = await self.backend.apply(step.step, claim.steps[place].result, claim)
        except PydraError as error:
            if changed_nothing(error):
                self.note(set_stage(claim, place, StepStage.PLANNED))
            raise
        claim = set_stage(claim, place, StepStage.DONE, json.loads(json.dumps(result)))
        self.note(claim)
        return claim

    def _index(self) -> StepIndex:
        index = StepIndex()
        for uid, one in self.records.items():
            index.note(uid, one.claim.steps)
        return index


def _meet(one: ClaimStep, other: ClaimStep) -> bool:
    return one.holds is None or other.holds is None or not set(one.holds).isdisjoint(other.holds)


def list_steps(records: Iterable[HeldClaim]) -> list[Any]:
    """All steps of the claims, in order."""
    return [one.step for record in records for one in record.claim.steps]
