"""An agent of a few lines, for backends that are started one after the other."""

from __future__ import annotations

from typing import Any

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
                await self.unprepare(record.claim.uid)
