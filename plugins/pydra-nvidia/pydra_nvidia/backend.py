"""The coroutines that pydra calls, composed of the rooms: read, decide, write down, act, tell what containers get."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Mapping, Sequence

from pydra import Claim, Inheritance, Inventory, PreparedDevice, Sample
from pydra_nvidia.cdi.injection import Injection
from pydra_nvidia.hardware import Reading
from pydra_nvidia.health.monitor import HealthMonitor
from pydra_nvidia.inventory.build import build_inventory
from pydra_nvidia.journal import Journal
from pydra_nvidia.mig.reconcile import reconcile
from pydra_nvidia.migration.succession import VendorSuccession
from pydra_nvidia.names import GpuName, MigName, VfioName, parse_name
from pydra_nvidia.nvml.samples import read_samples
from pydra_nvidia.nvml.session import NvmlSession
from pydra_nvidia.plan import find_owned, plan_claim
from pydra_nvidia.settings import Settings
from pydra_nvidia.sharing.mps import MpsWatch
from pydra_nvidia.slicing import Slicer, build_state, entry_from
from pydra_nvidia.steps import Entry
from pydra_nvidia.targets import find_targets
from pydra_nvidia.telemetry import Hardware

_LOOKS = 3
"""How often the hardware is read anew that changes while it is read."""


class NvidiaBackend:
    """One node's NVIDIA hardware. Made by `composition.open_backend`."""

    def __init__(
        self,
        settings: Settings,
        *,
        session: NvmlSession,
        hardware: Hardware,
        journal: Journal,
        slicer: Slicer,
        injection: Injection,
        health: HealthMonitor,
        mps: MpsWatch,
        succession: VendorSuccession,
    ) -> None:
        self._settings = settings
        self._session = session
        self._hardware = hardware
        self._journal = journal
        self._slicer = slicer
        self._injection = injection
        self._health = health
        self._mps = mps
        self._succession = succession
        self._deciding = asyncio.Lock()
        self._planning = threading.Lock()
        self._reconciled = False
        self._seen: object = None

    async def discover(self) -> Inventory:
        """All GPUs, partitions and functions, with their health."""
        for _ in range(_LOOKS):
            self._seen = await asyncio.to_thread(self._hardware.signature)  # before reading: changes since are noticed
            if not self._reconciled:
                await self._reconcile()
            inventory = await asyncio.to_thread(self._take_stock)
            if await asyncio.to_thread(self._hardware.signature) == self._seen:
                break  # else this is half of the one and half of the other, and a change back would not be noticed
        return inventory

    async def prepare(self, claim: Claim, /) -> Sequence[PreparedDevice]:
        """Make the hardware what the claim asks for; all of it or nothing."""
        entry = await self._decide(claim)
        await self._slicer.carry_out(entry)
        try:
            return await asyncio.to_thread(self._describe, claim, entry)
        except Exception:
            await self._slicer.undo(entry)
            raise

    async def unprepare(self, claim: Claim, prepared: Sequence[PreparedDevice], /) -> None:
        """Undo what was done or begun; nothing to do is success."""
        entry = entry_from(claim, prepared, await asyncio.to_thread(self._journal.recover, claim.uid))
        if entry is None:
            await asyncio.to_thread(self._journal.remove, claim.uid)  # it may have been unreadable
        else:
            await self._slicer.undo(entry)

    async def wait_changed(self) -> None:
        """Return on an event of a GPU, or when something outside changed: functions, drivers, partitions."""
        while await asyncio.to_thread(self._hardware.signature) == self._seen:
            if await self._health.wait_event(self._settings.poll_period):
                return
            await self._mps.look(await self._entries())

    async def measure(self) -> Sequence[Sample]:
        """What the GPUs tell of themselves, and what went wrong since this process began."""
        reading = await self._hardware.latest()
        measured = await self._session.run(lambda nvml: read_samples(nvml, reading)) if reading.gpus else ()
        return (*measured, *self._health.samples(reading), *self._mps.samples())

    async def inherit(self, directory: str, /) -> Inheritance:
        """What NVIDIA's own driver prepared before; its plugin must have ended."""
        return await self._succession.inherit(directory)

    def _take_stock(self) -> Inventory:
        """All hardware as it is now. Blocks."""
        before = self._journal.entries()
        reading = self._hardware.read_here()
        entries = {**before, **self._journal.entries()}
        diagnosis = self._health.diagnose(reading)
        return build_inventory(reading, settings=self._settings, owned=find_owned(entries), diagnosis=diagnosis)

    async def _decide(self, claim: Claim) -> Entry:
        """The claim's entry, in the journal when this returns. One claim at a time: it is compared with all others."""
        async with self._deciding:
            written, entry = await asyncio.to_thread(self._plan, claim)
            if written not in (None, entry):
                await self._slicer.undo(written)
                _, entry = await asyncio.to_thread(self._plan, claim)
            return entry

    def _plan(self, claim: Claim) -> tuple[Entry | None, Entry]:
        """What is written down of the claim, and what should be; that is written if nothing was. Blocks."""
        with self._planning:  # the thread of a cancelled call goes on when the next claim's begins
            written, before = self._journal.read(claim.uid), self._journal.entries()
            reading = self._reread(claim)
            entries = {**before, **self._journal.entries()}
            targets = find_targets(claim.devices, reading)
            entry = plan_claim(claim, targets, reading, entries=entries, settings=self._settings)
            if written is None:
                self._journal.write(entry)
            return written, entry

    def _describe(self, claim: Claim, entry: Entry) -> list[PreparedDevice]:
        """What containers get, from the hardware as it is now. Blocks."""
        reading = self._reread(claim)
        targets = find_targets(claim.devices, reading)
        edits = self._injection.look(targets, reading, entry.steps)
        return [
            target.allocated.prepared(own, state=build_state(entry, target))
            for target, own in zip(targets, edits, strict=True)
        ]

    def _reread(self, claim: Claim) -> Reading:
        """The hardware, with what can have changed of the claim's GPUs read anew: all of it, to take one from NVML."""
        names = [parse_name(device.device) for device in claim.devices]
        if any(isinstance(name, VfioName) for name in names):
            reading = self._hardware.read_here()
        else:
            reading = self._hardware.reread_here([name.minor for name in names if isinstance(name, GpuName | MigName)])
        self._health.see(reading)
        return reading

    async def _reconcile(self) -> None:
        """Once, as soon as the hardware can be read: put right what a crash or somebody else left."""
        async with self._deciding:
            report = await reconcile(self._session, self._journal, await self._hardware.read(), settings=self._settings)
        self._reconciled = True
        for line in report.lines():
            sys.stderr.write(f"{line}\n")

    async def _entries(self) -> Mapping[str, Entry]:
        return await asyncio.to_thread(self._journal.entries)
