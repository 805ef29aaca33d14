"""The coroutines that pydra calls, composed of the rooms: read, decide, act, say what containers get."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from pydra import Claim, HeldClaim, Inventory, PreparedDevice, PydraError, Sample, UnknownDevice
from pydra_amd.cdi.edits import build_edits
from pydra_amd.device_names import name_gpu
from pydra_amd.hardware_types import Condition, Partition, Reading
from pydra_amd.health.diagnosis import diagnose
from pydra_amd.held_claims import HeldEntries, PlanUnknown, build_plan, parse_entry
from pydra_amd.host.filesystem import Tree
from pydra_amd.host.sensors import read_bad_pages, read_errors, read_sensors
from pydra_amd.inventory.build import build_inventory
from pydra_amd.inventory.samples import build_samples
from pydra_amd.offering import list_offered
from pydra_amd.settings import Settings
from pydra_amd.slicing.execution import StepExecutor
from pydra_amd.slicing.plan import plan_claim
from pydra_amd.steps import Entry, Hold
from pydra_amd.telemetry import Telemetry

_log = logging.getLogger(__name__)


class AmdBackend:
    """One node's AMD GPUs. Made by `composition.open_backend`."""

    def __init__(self, settings: Settings, tree: Tree) -> None:
        self._settings = settings
        self._tree = tree
        self._telemetry = Telemetry(tree)
        self._held = HeldEntries()
        self._executor = StepExecutor(tree, self._held)

    async def discover(self) -> Inventory:
        """Whole GPUs and partitions, with their health."""
        reading = await self._telemetry.read()
        conditions = await asyncio.to_thread(self._read_conditions, reading)
        return build_inventory(reading, self._settings.partitioning, diagnose(reading, conditions, self._settings))

    async def wait_changed(self) -> None:
        """Return when a GPU, a partition or a device node has come or gone since `discover`."""
        while not await self._telemetry.has_changed():  # noqa: ASYNC110 - files of the kernel have no event
            await asyncio.sleep(self._settings.poll_period)

    async def measure(self) -> Sequence[Sample]:
        """Memory, activity, power, temperature and errors of each GPU."""
        return await asyncio.to_thread(self._measure)

    async def restore(self, held: Sequence[HeldClaim], /) -> None:
        """Remember what claims hold; modes that a crash left are set back when the agent unprepares those claims."""
        self._held.restore(held)

    async def plan(self, claim: Claim, held: Sequence[HeldClaim], /) -> Any:
        """What the claim will hold, and which modes change for it."""
        self._held.refresh(held)
        offered = list_offered(await self._telemetry.read(), self._settings.partitioning)
        entry = plan_claim(claim, offered, entries=self._held.others(claim.uid), unread=self._held.unread.values())
        return build_plan(entry)

    async def prepare(self, claim: Claim, /) -> list[PreparedDevice]:
        """Set the modes that the plan says, and say what containers get of the partitions that there are then."""
        entry = parse_entry(claim)
        await self._executor.carry_out(entry)
        try:
            return await asyncio.to_thread(self._describe, claim, entry)
        except PydraError:
            await self._executor.undo(entry)
            raise

    async def unprepare(self, claim: Claim, prepared: Sequence[PreparedDevice], /) -> None:
        """Set the modes back that no other claim needs; nothing to do is success."""
        try:
            entry = parse_entry(claim)
        except PlanUnknown as error:
            _log.warning("nothing is undone: %s", error)
            self._held.remove(claim.uid)
            return
        await self._executor.undo(entry)

    def _read_conditions(self, reading: Reading) -> Mapping[str, Condition]:
        """What is wrong with each GPU, by address. Blocks."""
        found: dict[str, Condition] = {}
        for gpu in reading.gpus if self._settings.health else ():
            errors = read_errors(self._tree, gpu.address)
            found[gpu.address] = Condition(
                uncorrectable={block: counts.get("uncorrectable", 0) for block, counts in errors.items()},
                bad_pages=read_bad_pages(self._tree, gpu.address) or 0,
            )
        return found

    def _measure(self) -> Sequence[Sample]:
        """Of the GPUs of the last reading. Blocks."""
        return [
            sample
            for gpu in self._telemetry.last.gpus
            for sample in build_samples(
                name_gpu(gpu),
                read_sensors(self._tree, gpu.address),
                read_errors(self._tree, gpu.address),
                read_bad_pages(self._tree, gpu.address),
            )
        ]

    def _describe(self, claim: Claim, entry: Entry) -> list[PreparedDevice]:
        """What containers get, from the hardware as it is now. Blocks."""
        reading = self._telemetry.read_here()
        found = [_find_partition(hold, reading) for hold in entry.holds]
        return [
            device.prepared(
                build_edits(device, one, self._tree),
                attributes={"cardIndex": one.card, "renderIndex": one.render},
            )
            for device, one in zip(claim.devices, found, strict=True)
        ]


def _find_partition(hold: Hold, reading: Reading) -> Partition:
    """What exists of the hold. Raises UnknownDevice, also for admin access to a partition that nobody made."""
    gpu = reading.find(hold.gpu)
    if gpu is None:
        raise UnknownDevice(f"device {hold.device} is gone: the driver has no GPU {hold.gpu} any more")
    if gpu.mode != hold.mode:
        raise UnknownDevice(f"device {hold.device} does not exist: GPU {hold.gpu} is in the mode {gpu.mode}")
    for one in gpu.partitions:
        if one.index == hold.index:
            return one
    raise UnknownDevice(f"device {hold.device} does not exist: KFD has no partition {hold.index} of GPU {hold.gpu}")
