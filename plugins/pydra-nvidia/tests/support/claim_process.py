"""What a backend's process does with one claim, to be killed in between."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from pathlib import Path
from typing import Any

import msgspec

from pydra_nvidia.held import HeldEntries
from pydra_nvidia.mig.operators import CreateMigOperator, MigModeOffOperator, MigModeOnOperator
from pydra_nvidia.nvml.session import NvmlSession
from pydra_nvidia.simulation.install import open_simulation
from pydra_nvidia.slicing import Operator, Slicer
from pydra_nvidia.steps import CreateMig, Entry, MigModeOff, MigModeOn


class Mortal:
    """Dies before the call with the number `boundary`, counted over all of them."""

    numbers = itertools.count()

    def __init__(self, operator: Operator, boundary: int | None) -> None:
        self._operator = operator
        self._boundary = boundary

    async def apply(self, step: Any, entry: Entry) -> None:
        self._meet()
        await self._operator.apply(step, entry)

    async def undo(self, step: Any, entry: Entry) -> None:
        self._meet()
        await self._operator.undo(step, entry)

    def _meet(self) -> None:
        if next(self.numbers) == self._boundary:
            os.kill(os.getpid(), signal.SIGKILL)


def work_on_claim(node: Path, action: str, boundary: int | None) -> None:
    """Prepare or undo the claim whose entry is in `entry.json` of the node's directory.

    With a boundary the process kills itself before the operator's call of that number.
    """
    asyncio.run(_work(node, action, boundary))


async def _work(node: Path, action: str, boundary: int | None) -> None:
    simulation = open_simulation(str(node / "scenario.json"), str(node / "machine"))
    session, held = NvmlSession(simulation.load), HeldEntries()
    operators: dict[type, Operator] = {
        MigModeOn: Mortal(MigModeOnOperator(session, held), boundary),
        MigModeOff: Mortal(MigModeOffOperator(session, held), boundary),
        CreateMig: Mortal(CreateMigOperator(session, held), boundary),
    }
    slicer = Slicer(held, operators)
    entry = msgspec.json.decode((node / "entry.json").read_bytes(), type=Entry)
    if action == "prepare":
        await slicer.carry_out(entry)
    else:
        await slicer.undo(entry)
    if boundary == next(Mortal.numbers):
        os.kill(os.getpid(), signal.SIGKILL)  # all is done, and nobody was told
    session.close()
