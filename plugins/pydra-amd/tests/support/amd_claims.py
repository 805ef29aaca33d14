"""Claims of a backend in this process, by the names of their devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from amd_values import claim_of
from pydra import AllocatedDevice, Claim, HeldClaim, PreparedDevice
from pydra.backends.contract import held_copy
from step_agent import StepAgent

if TYPE_CHECKING:
    from pydra_amd.backend import AmdBackend


class Claims:
    """The claims that a node holds, by uid, with the backend of one of its agents."""

    def __init__(self, backend: AmdBackend, held: dict[str, HeldClaim] | None = None) -> None:
        self.backend = backend
        self.agent = StepAgent(backend, held)
        self.held, self.later = self.agent.records, self.agent.later
        self.carry_out = self.agent.finish

    def hold(self, claim: Claim, *, completed: bool = True) -> None:
        self.agent.note(claim, completed=completed)

    async def plan(self, *devices: str | AllocatedDevice, uid: str = "uid-1") -> Claim:
        return await self.agent.plan(claim_of(*devices, uid=uid))

    async def prepare(self, *devices: str | AllocatedDevice, uid: str = "uid-1") -> Sequence[PreparedDevice]:
        return await self.agent.prepare(claim_of(*devices, uid=uid))

    async def end(self, uid: str = "uid-1") -> None:
        assert uid in self.held
        await self.agent.unprepare(uid)


@contextmanager
def held_by(claims: Claims) -> Iterator[None]:
    """Let `pydra.held_claims` return these."""
    before = held_copy.read
    held_copy.read = claims.agent.held
    try:
        yield
    finally:
        held_copy.read = before


def names(prepared: Sequence[PreparedDevice]) -> list[list[str]]:
    """The paths of the device nodes of each device."""
    return [[node.path for node in one.edits.device_nodes] for one in prepared]
