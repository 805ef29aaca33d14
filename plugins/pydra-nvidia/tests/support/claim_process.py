"""What a backend's process does with one claim, to be killed in between."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from pydra import Claim, HeldClaim
from pydra.backends.child.claim_values import BackendTypes
from pydra_nvidia.mig.apply_partitions import CreateMigApplier, MigModeOffApplier, MigModeOnApplier
from pydra_nvidia.nvml.session import NvmlSession
from pydra_nvidia.simulation.simulation import open_simulation
from pydra_nvidia.step_appliers import StepApplier, StepAppliers
from pydra_nvidia.steps import STEP_TYPES, CreateMig, MigModeOff, MigModeOn
from step_agent import StepAgent


class Mortal:
    """Dies before the call with the number `boundary`, counted over all of them."""

    numbers = itertools.count()

    def __init__(self, applier: StepApplier, boundary: int | None) -> None:
        self._applier = applier
        self._boundary = boundary

    async def apply(self, step: Any, result: Any, claim: Claim) -> Any:
        self._meet()
        return await self._applier.apply(step, result, claim)

    async def undo(self, step: Any, result: Any, claim: Claim) -> None:
        self._meet()
        await self._applier.undo(step, result, claim)

    def _meet(self) -> None:
        if next(self.numbers) == self._boundary:
            os.kill(os.getpid(), signal.SIGKILL)


class FileAgent(StepAgent):
    """Keeps the record of its one claim in a file, as the agent does: a killed process loses nothing of it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        if path.exists() and (text := path.read_bytes()):
            record = msgspec.json.decode(text, type=HeldClaim)
            types = BackendTypes(configs={}, steps=STEP_TYPES)
            self.records[record.claim.uid] = replace(record, claim=types.decode_steps(record.claim))

    def keep(self, held: HeldClaim) -> None:
        super().keep(held)
        self._path.write_bytes(msgspec.json.encode(held))


def work_on_claim(node: Path, action: str, boundary: int | None) -> None:
    """Prepare or undo the claim whose record is in `record.json` of the node's directory.

    With a boundary the process kills itself before the applier's call of that number.
    """
    asyncio.run(_work(node, action, boundary))


async def _work(node: Path, action: str, boundary: int | None) -> None:
    simulation = open_simulation(str(node / "scenario.json"), str(node / "machine"))
    session, agent = NvmlSession(simulation.load), FileAgent(node / "record.json")
    appliers: dict[type, StepApplier] = {
        MigModeOn: Mortal(MigModeOnApplier(session, simulation.tree), boundary),
        MigModeOff: Mortal(MigModeOffApplier(session, simulation.tree), boundary),
        CreateMig: Mortal(CreateMigApplier(session, simulation.tree, agent.held), boundary),
    }
    agent.backend = StepAppliers(appliers)
    (claim,) = (record.claim for record in agent.held())
    if action == "prepare":
        await agent.carry_out(claim)
    else:
        await agent.undo(claim.uid)
    if boundary == next(Mortal.numbers):
        os.kill(os.getpid(), signal.SIGKILL)  # all is done, and nothing was reported
    session.close()
