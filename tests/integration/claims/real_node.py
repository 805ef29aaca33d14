"""The preparer over real directories; its hardware is a directory too, so that it outlives a killed process."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from pydra.cdi.edits import ContainerEdits
from pydra.cdi.host_paths import resolve
from pydra.cdi.store import CdiStore
from pydra.checkpoint.lock import InstanceLock
from pydra.checkpoint.store import CheckpointDirectory
from pydra.claim import Claim, PreparedDevice
from pydra.claims.execution import Execution
from pydra.claims.gc import Sweep
from pydra.claims.holdings import Holdings
from pydra.claims.outcome import ClaimRef
from pydra.claims.outside import Limits, StoredCdiFiles
from pydra.claims.preparer import ClaimPreparer
from pydra.errors import NotFound
from tests.integration.claims.fakes import DRIVER, claim_object

BOOT = "boot-1"


class DirectoryHardware:
    """A backend whose devices are files named after them, with the uid of their claim in it."""

    def __init__(self, path: Path, step: Callable[[str], None]) -> None:
        self._path = path
        self._step = step

    async def prepare(self, claim: Claim, /, *, until: float) -> Sequence[PreparedDevice]:
        for device in claim.devices:
            self._step("configure device")
            holder = self._path / device.device
            assert not holder.exists() or holder.read_text() == claim.uid, "a device with two owners"
            holder.write_text(claim.uid)
        self._step("configured")
        edits = ContainerEdits().with_env("CLAIM", claim.uid)
        return [device.prepared(edits, state={"since": 1}) for device in claim.devices]

    async def unprepare(self, claim: Claim, prepared: Sequence[PreparedDevice], /, *, until: float) -> None:
        for device in claim.devices:
            self._step("free device")
            (self._path / device.device).unlink(missing_ok=True)
        self._step("freed")


class SteppedCdiStore(CdiStore):
    """A store of CDI files that says before and after each change that it is about to happen, or has."""

    def __init__(self, path: str, step: Callable[[str], None]) -> None:
        super().__init__(path, DRIVER)
        self._step = step

    def write(self, uid: str, content: bytes) -> None:
        self._step("write CDI file")
        super().write(uid, content)
        self._step("CDI file written")

    def remove(self, uid: str) -> None:
        self._step("remove CDI file")
        super().remove(uid)
        self._step("CDI file removed")


class RealNode:
    """One instance of the claims' part of the agent over the directories below `root`."""

    def __init__(self, root: Path, claims: Mapping[str, tuple[str, ...]], step: Callable[[str], None]) -> None:
        self.root = root
        self.claims = dict(claims)
        (root / "hardware").mkdir(exist_ok=True)
        self.checkpoints = CheckpointDirectory(str(root / "records"), step=step)
        self.cdi = SteppedCdiStore(str(root / "cdi"), step)
        self.lock = InstanceLock(str(root / "lock"))
        self._step = step

    async def fetch_claim(self, ref: ClaimRef) -> Mapping[str, Any]:
        if ref.uid not in self.claims:
            raise NotFound(f"no claim {ref}", status=404, cause="NotFound")
        return claim_object(ref.uid, *self.claims[ref.uid])

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ClaimPreparer]:
        async with self.lock.hold():
            await self.checkpoints.open()
            self.cdi.open()
        async with anyio.create_task_group() as tasks:
            execution = Execution(
                driver=DRIVER,
                boot_id=BOOT,
                backend=DirectoryHardware(self.root / "hardware", self._step),
                checkpoints=self.checkpoints,
                cdi=StoredCdiFiles(self.cdi),
                read_present=resolve,
                limits=Limits(),
                wall_clock=lambda: 1.0,
            )
            yield ClaimPreparer(
                driver=DRIVER,
                boot_id=BOOT,
                tasks=tasks,
                fetch_claim=self.fetch_claim,
                holdings=Holdings(self.checkpoints, self.lock),
                execution=execution,
            )
            tasks.cancel_scope.cancel()

    def sweep(self, preparer: ClaimPreparer) -> Sweep:
        return Sweep(
            driver=DRIVER,
            boot_id=BOOT,
            fetch_claim=self.fetch_claim,
            checkpoints=self.checkpoints,
            cdi=StoredCdiFiles(self.cdi),
            service=preparer,
            grace=0.0,
        )

    def traces(self) -> dict[str, list[str]]:
        """The names of all files, but for the lock's."""
        return {name: sorted(os.listdir(self.root / name)) for name in ("records", "cdi", "hardware")}


NOTHING: dict[str, list[str]] = {"records": [], "cdi": [], "hardware": []}
