"""Claims of a backend in this process: planned, carried out and undone as the agent does, without its disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from msgspec.structs import replace

from amd_values import claim_of, held_claim
from pydra import AllocatedDevice, Claim, HeldClaim, PreparedDevice, PydraError, StepStage, UndoLater
from pydra.backends.child.claim_values import BackendTypes
from pydra.backends.contract import held_copy
from pydra.claims.steps import StepIndex, changed_nothing, set_stage
from pydra_amd import STEP_TYPES

if TYPE_CHECKING:
    from pydra_amd.backend import AmdBackend

_TYPES = BackendTypes(configs={}, steps=STEP_TYPES)


class Claims:
    """The claims that a node holds, by uid, with the backend of one of its agents."""

    def __init__(self, backend: AmdBackend, held: dict[str, HeldClaim] | None = None) -> None:
        self.backend = backend
        self.held = {} if held is None else held
        self.later: list[str] = []
        """What could not be undone when its claim ended."""

    async def plan(self, *devices: str | AllocatedDevice, uid: str = "uid-1") -> Claim:
        claim = claim_of(*devices, uid=uid)
        others = tuple(one for other, one in sorted(self.held.items()) if other != uid)
        plan, violations = _TYPES.describe_plan(await self.backend.plan(claim, others))
        assert plan is not None, violations
        planned = self._index().adopt(replace(claim, plan=plan.data, steps=tuple(plan.steps)))
        self.hold(planned, completed=False)
        return planned

    def hold(self, claim: Claim, *, completed: bool = True) -> None:
        self.held[claim.uid] = held_claim(claim, completed=completed)

    async def carry_out(self, claim: Claim) -> list[PreparedDevice]:
        """Carry out the steps and prepare; what was begun is undone after an error, as far as it can be."""
        uid = claim.uid
        try:
            for place, one in enumerate(claim.steps):
                claim = set_stage(claim, place, StepStage.BEGUN)
                self.hold(claim, completed=False)
                try:
                    result = await self.backend.apply(one.step, None, claim)
                except PydraError as error:
                    if changed_nothing(error):
                        self.hold(set_stage(claim, place, StepStage.PLANNED), completed=False)
                    raise
                claim = set_stage(claim, place, StepStage.DONE, result)
            self.hold(claim, completed=False)
            prepared = await self.backend.prepare(claim)
        except PydraError as error:
            try:
                await self.end(uid)
            except PydraError as failed:
                error.add_note(str(failed))
            raise
        self.hold(claim)
        return prepared

    async def prepare(self, *devices: str | AllocatedDevice, uid: str = "uid-1") -> list[PreparedDevice]:
        return await self.carry_out(await self.plan(*devices, uid=uid))

    async def end(self, uid: str = "uid-1") -> None:
        """Undo what was begun, all although one fails; then the claim is gone."""
        held = self.held[uid]
        claim, failed = held.claim, None
        await self.backend.unprepare(claim, held.prepared)
        for place in reversed(range(len(claim.steps))):
            one = claim.steps[place]
            others = self._index().find(one.key, but=uid)
            try:
                if one.stage is not StepStage.PLANNED and all(other.stage is StepStage.PLANNED for other in others):
                    await self.backend.undo(one.step, one.result, claim)
            except UndoLater as error:
                self.later.append(str(error))
                continue
            except PydraError as error:
                failed = failed or error
                continue
            claim = set_stage(claim, place, StepStage.PLANNED)
            self.hold(claim, completed=False)
        if failed is not None:
            raise failed
        del self.held[uid]

    def _index(self) -> StepIndex:
        index = StepIndex()
        for uid, one in self.held.items():
            index.note(uid, one.claim.steps)
        return index


@contextmanager
def held_by(claims: Claims) -> Iterator[None]:
    """Let `pydra.held_claims` return these."""
    before = held_copy.read

    def read() -> tuple[HeldClaim, ...]:
        return tuple(one for _, one in sorted(claims.held.items()))

    held_copy.read = read
    try:
        yield
    finally:
        held_copy.read = before


def names(prepared: Sequence[PreparedDevice]) -> list[list[str]]:
    """The paths of the device nodes of each device."""
    return [[node.path for node in one.edits.device_nodes] for one in prepared]
