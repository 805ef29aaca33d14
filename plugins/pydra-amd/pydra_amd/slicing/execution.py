"""Carries out a claim's steps and undoes them. A shell: what the steps are is decided in `slicing.plan`.

A process that is killed anywhere leaves a plan that says at most too much, and undoing what was not done is fine.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager

from pydra import set_status
from pydra_amd.held_claims import HeldEntries
from pydra_amd.host.filesystem import Tree
from pydra_amd.slicing.compute_mode import GpuGone, set_compute_mode
from pydra_amd.steps import Entry, Step

_log = logging.getLogger(__name__)


class StepExecutor:
    """One change at a time of each GPU."""

    def __init__(self, tree: Tree, held: HeldEntries) -> None:
        self._tree = tree
        self._held = held
        self._locks: dict[str, asyncio.Lock] = {}

    async def carry_out(self, entry: Entry) -> None:
        """Do the steps. Raises what a step raised, with the others undone."""
        self._held.write(entry)
        async with self._turn(entry.steps):
            for step in entry.steps:
                try:
                    set_status(f"setting the mode of GPU {step.gpu} to {step.target}")
                    await asyncio.to_thread(set_compute_mode, self._tree, step.gpu, step.target)
                except Exception:
                    await self._undo(entry)
                    raise

    async def undo(self, entry: Entry) -> None:
        """Undo the steps whose GPU no other claim holds, last first, then forget the claim."""
        async with self._turn(entry.steps):
            await self._undo(entry)
        self._held.remove(entry.uid)

    async def _undo(self, entry: Entry) -> None:
        staying = {hold.gpu for other in self._held.others(entry.uid) for hold in other.holds if not hold.admin}
        for step in reversed(entry.steps):
            if step.gpu not in staying:
                set_status(f"setting the mode of GPU {step.gpu} back to {step.before}")
                try:
                    await asyncio.to_thread(set_compute_mode, self._tree, step.gpu, step.before)
                except (
                    GpuGone
                ) as error:  # it comes back as the driver makes it, and the claim's pod must be able to end
                    _log.warning("the mode of a GPU is not set back for claim %s: %s", entry.name, error)

    @asynccontextmanager
    async def _turn(self, steps: Iterable[Step]) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for address in sorted({step.gpu for step in steps}):
                await stack.enter_async_context(self._locks.setdefault(address, asyncio.Lock()))
            yield
