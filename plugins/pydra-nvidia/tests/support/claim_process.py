"""What a backend's process does with one claim, to be killed in between."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from pathlib import Path
from typing import Any

import msgspec

from pydra_nvidia.held_claims import HeldEntries
from pydra_nvidia.mig.apply_partitions import CreateMigApplier, MigModeOffApplier, MigModeOnApplier
from pydra_nvidia.nvml.session import NvmlSession
from pydra_nvidia.simulation.simulation import open_simulation
from pydra_nvidia.step_executor import StepExecutor
from pydra_nvidia.steps import CreateMig, Entry, MigModeOff, MigModeOn, StepApplier


class Mortal:
    """Dies before the call with the number `boundary`, counted over all of them."""

    numbers = itertools.count()

    def __init__(self, applier: StepApplier, boundary: int | None) -> None:
        self._applier = applier
        self._boundary = boundary

    async def apply(self, step: Any, entry: Entry) -> None:
        self._meet()
        await self._applier.apply(step, entry)

    async def undo(self, step: Any, entry: Entry) -> None:
        self._meet()
        await self._applier.undo(step, entry)

    def _meet(self) -> None:
        if next(self.numbers) == self._boundary:
            os.kill(os.getpid(), signal.SIGKILL)


def work_on_claim(node: Path, action: str, boundary: int | None) -> None:
    """Prepare or undo the claim whose entry is in `entry.json` of the node's directory.

    With a boundary the process kills itself before the applier's call of that number.
    """
    asyncio.run(_work(node, action, boundary))


async def _work(node: Path, action: str, boundary: int | None) -> None:
    simulation = open_simulation(str(node / "scenario.json"), str(node / "machine"))
    session, held = NvmlSession(simulation.load), HeldEntries()
    appliers: dict[type, StepApplier] = {
        MigModeOn: Mortal(MigModeOnApplier(session, held), boundary),
        MigModeOff: Mortal(MigModeOffApplier(session, held), boundary),
        CreateMig: Mortal(CreateMigApplier(session, held), boundary),
    }
    executor = StepExecutor(held, appliers)
    entry = msgspec.json.decode((node / "entry.json").read_bytes(), type=Entry)
    if action == "prepare":
        await executor.carry_out(entry)
    else:
        await executor.undo(entry)
    if boundary == next(Mortal.numbers):
        os.kill(os.getpid(), signal.SIGKILL)  # all is done, and nobody was told
    session.close()
