"""An agent of a few lines: it keeps the plan of each claim from before the first effect, as pydra's agent does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from pydra import Claim, ClaimError, HeldClaim, PreparedDevice, describe_step
from pydra.backends.contract import held_copy
from step_agent import StepAgent


class SmallAgent(StepAgent):
    """Calls one backend after another: `records` outlive each of them."""

    def __init__(self, backend: Any = None) -> None:
        super().__init__(backend)
        held_copy.read = self.held

    async def start(self, backend: Any) -> None:
        """With a new process of the backend; claims that were not completed are undone."""
        self.backend = backend
        await backend.restore(self.held())
        for record in self.held():
            if not record.completed:
                await self.unprepare(record.claim)

    async def prepare(self, claim: Claim) -> tuple[PreparedDevice, ...]:
        """Plan, write, do; what fails is undone."""
        planned = await self.carry_out((await self.plan(claim)).claim)
        try:
            prepared = as_kept(await self.backend.prepare(planned))
        except ClaimError:
            await self.unprepare(claim)
            raise
        self.records[claim.uid] = HeldClaim(claim=planned, prepared=prepared, completed=True)
        return prepared

    async def plan(self, claim: Claim) -> HeldClaim:
        """The record of a claim that has begun."""
        others = tuple(one for uid, one in self.records.items() if uid != claim.uid)
        plan = await self.backend.plan(claim, others)
        steps = tuple([describe_step(step) for step in plan.steps])
        self.note(replace(claim, plan=json.loads(json.dumps(plan.data)), steps=steps))
        return self.records[claim.uid]

    async def unprepare(self, claim: Claim) -> None:
        """Undo, and forget."""
        if (record := self.records.get(claim.uid)) is not None:
            await self.backend.unprepare(record.claim, record.prepared)
            await self.undo(claim.uid)


def as_kept(prepared: Sequence[PreparedDevice]) -> tuple[PreparedDevice, ...]:
    """As JSON keeps their state."""
    return tuple(replace(one, state=json.loads(json.dumps(one.state))) for one in prepared)
