"""The coroutines that pydra calls, composed of the other modules: read, decide, act, say what containers get."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from pydra import (
    AllocatedDevice,
    Claim,
    DeviceStatus,
    HeldClaim,
    Inheritance,
    Inventory,
    Plan,
    PreparedDevice,
    Sample,
    UnknownDevice,
    held_claims,
)
from pydra_amd.amdsmi.links_and_throttling import GpuReading
from pydra_amd.amdsmi.session import AmdsmiHangs, AmdsmiSession
from pydra_amd.cdi.edits import build_edits, build_function_edits
from pydra_amd.claim_plan import find_memory_step, plan_claim
from pydra_amd.claim_records import Hold, read_holds
from pydra_amd.devices import identify, list_functions, list_offered
from pydra_amd.hardware_reader import HardwareReader
from pydra_amd.hardware_types import Gpu, Partition, Reading
from pydra_amd.health.diagnosis import diagnose
from pydra_amd.health.monitor import HealthMonitor
from pydra_amd.host.amdgpu import is_asleep
from pydra_amd.host.driver_reload import DriverModule
from pydra_amd.inventory.build import build_inventory
from pydra_amd.models import CLASSES, VENDOR
from pydra_amd.modes.compute_partition import GpuGone
from pydra_amd.samples import read_samples
from pydra_amd.settings import Partitioning, Settings
from pydra_amd.sharing import MASK, build_mask
from pydra_amd.step_appliers import StepAppliers
from pydra_amd.steps import Step
from pydra_amd.takeover import inherit_claims
from pydra_amd.vfio.apply_passthrough import Passthrough
from pydra_amd.vfio.plan_passthrough import read_policy
from pydra_pci import Assessment, PciBus, Tree

_log = logging.getLogger(__name__)

_MEMORY_POLL_SECONDS = 1.0
"""Between two looks for a memory mode that no claim needs any more: nothing calls the backend when a claim is gone."""


class AmdBackend:
    """One node's AMD GPUs. Made by `composition.open_backend`."""

    def __init__(self, settings: Settings, tree: Tree, driver: DriverModule, importer: Callable[[], Any]) -> None:
        self.DEADLINE = settings.reload_deadline if settings.partitioning is Partitioning.MEMORY else 0.0
        self._settings = settings
        self._tree = tree
        self._hardware = HardwareReader(tree, vfio=settings.vfio)
        self._health = HealthMonitor(tree)
        self._library = AmdsmiSession(importer, self._health.hear)
        self._changing = Counter[str]()
        self._appliers = StepAppliers(tree, driver, Passthrough(tree, settings.vfio_idle_deadline))
        self._kept: str | None = None
        self._has_hinted = False
        chooses_memory = settings.partitioning is Partitioning.MEMORY
        self._poll_period = min(settings.poll_period, _MEMORY_POLL_SECONDS if chooses_memory else math.inf)

    async def discover(self) -> Inventory:
        """Whole GPUs and partitions, with their health."""
        reading = await self._hardware.read_to_publish(self._changing.keys())
        if not (reading.gpus or self._settings.vfio or self._has_hinted):
            self._has_hinted = True
            await asyncio.to_thread(self._hint_at_functions)
        assessments = await asyncio.to_thread(self._diagnose, reading)
        self._kept = kept = self._find_kept_memory()
        memory = {gpu.address: kept or gpu.mode.memory for gpu in reading.known if gpu.mode and kept is not None}
        settings = self._settings
        return build_inventory(reading, settings.partitioning, assessments, memory, sharing=settings.sharing)

    async def wait_changed(self) -> None:
        """Return when a GPU, a partition or a device node has come or gone since `discover`, or a GPU is reset.

        While modes change for a claim, GPUs come and go as expected and are not reported; the end of the change is.
        """
        while self._changing or (self._kept == self._find_kept_memory() and not await self._hardware.has_changed()):
            if await self._health.wait_event(self._poll_period):
                return

    async def measure(self) -> Sequence[Sample]:
        """Memory, activity, power, temperature and errors of each GPU."""
        return await asyncio.to_thread(self._measure)

    async def inherit(self, directory: str, /) -> Inheritance:
        """Claims that AMD's own driver had prepared. Raises VendorRuns."""
        return await inherit_claims(directory, await self._hardware.read(), self._tree)

    async def plan(self, claim: Claim, held: Sequence[HeldClaim], /) -> Plan:
        """What the claim will hold, and which modes change for it."""
        reading = await self._hardware.read(self._changing.keys())
        offered = list_offered(reading, self._settings.partitioning)
        return plan_claim(claim, offered, list_functions(reading), host=reading.vfio, held=held)

    async def apply(self, step: Step, result: Any, claim: Claim, /) -> None:
        """Set a mode, or take a function for a guest."""
        async with self._change_modes(step):
            await self._appliers.apply(step, claim)

    async def undo(self, step: Step, result: Any, claim: Claim, /) -> None:
        """Set the mode back, or give the function back."""
        async with self._change_modes(step):
            await self._appliers.undo(step)

    async def prepare(self, claim: Claim, /) -> list[PreparedDevice]:
        """Say what containers get of the partitions that there are."""
        prepared = await asyncio.to_thread(self._describe, claim, read_holds(claim))
        if self._kept != self._find_kept_memory():
            self._health.wake()
        return prepared

    async def close(self) -> None:
        """End what is open of AMD's library."""
        with suppress(AmdsmiHangs):  # the end of the process ends it
            await asyncio.to_thread(self._library.close)

    @asynccontextmanager
    async def _change_modes(self, step: Step) -> AsyncIterator[None]:
        """While modes change AMD's library is closed, which would keep the GPUs busy, and nobody publishes the GPUs."""
        self._changing.update(step.gpus)
        try:
            async with self._library.paused():
                yield
        finally:
            self._changing -= Counter(step.gpus)
            self._health.wake()

    def _hint_at_functions(self) -> None:
        """Say what would be offered with another setting, where nothing is."""
        if count := sum(one.is_virtual for one in PciBus(self._tree, VENDOR, CLASSES).functions().values()):
            _log.info("%d virtual functions are not offered; with PYDRA_AMD_VFIO=true they are, to guests", count)

    def _find_kept_memory(self) -> str | None:
        """The memory mode that the GPUs must have for the claims that there are.

        Empty: the one that they have. None: no claim needs any.
        """
        if self._settings.partitioning is not Partitioning.MEMORY or not (held := held_claims()):
            return None
        step = find_memory_step(held)
        return step.target if step else ""

    def _diagnose(self, reading: Reading) -> Mapping[str, Assessment]:
        """How each GPU is, by address. Blocks."""
        if not self._settings.health:
            return {}
        return diagnose(reading, self._health.read(reading, self._ask_library()), self._settings)

    def _ask_library(self) -> Mapping[str, GpuReading]:
        return self._library.read() if self._settings.amdsmi else {}

    def _measure(self) -> Sequence[Sample]:
        """Of the GPUs of the last reading that are awake. Blocks."""
        readings = self._ask_library()
        return [
            sample
            for gpu in self._hardware.last.gpus
            if not is_asleep(self._tree, gpu.address)
            for sample in read_samples(self._tree, gpu, readings.get(gpu.address, GpuReading()))
        ]

    def _describe(self, claim: Claim, holds: Sequence[Hold]) -> list[PreparedDevice]:
        """What containers get, from the hardware as it is now. Blocks."""
        reading = self._hardware.read_here()
        return [self._describe_device(*pair, reading) for pair in zip(claim.devices, holds, strict=True)]

    def _describe_device(self, device: AllocatedDevice, hold: Hold, reading: Reading) -> PreparedDevice:
        if hold.passthrough:
            uses_iommufd = read_policy(device) != "LegacyOnly" and reading.vfio.iommufd
            return device.prepared(
                build_function_edits(device, hold.gpu, self._tree, iommufd=uses_iommufd),
                status=DeviceStatus(data={"pciBusID": hold.gpu}),
            )
        gpu, one = _find_partition(hold, reading)
        if hold.units:
            memory = device.consumed_capacity.get("memory", "no amount")
            _log.info(
                "%s is shared: its compute units %s are kept to by ROCm, and %s of its memory are counted only",
                device.device,
                build_mask(hold.units)[MASK],
                memory,
            )
        return device.prepared(
            build_edits(device, one, self._tree, hold.units),
            attributes={"cardIndex": one.card, "renderIndex": one.render},
            status=identify(gpu, one),
        )


def _find_partition(hold: Hold, reading: Reading) -> tuple[Gpu, Partition]:
    """What exists of the hold, and the GPU that it is of.

    Raises:
        UnknownDevice: it does not exist, also for admin access to a partition that nobody made.
        GpuGone: it is lost, or the driver and KFD contradict each other.
    """
    gpu = reading.find(hold.gpu)
    for lost in reading.lost:
        if lost.gpu.address == hold.gpu:
            raise GpuGone(
                f"GPU {hold.gpu} cannot be used: {lost.why}; it is tried again, and the kernel's log says why if that "
                "goes on"
            )
    if gpu is None:
        raise UnknownDevice(
            f"device {hold.device} is gone: the driver has no GPU {hold.gpu} any more; delete the pod to have another"
        )
    if gpu.mode != hold.mode:
        raise UnknownDevice(f"device {hold.device} does not exist: GPU {hold.gpu} is in the mode {gpu.mode}")
    for one in gpu.partitions:
        if one.index == hold.index:
            return gpu, one
    raise UnknownDevice(f"device {hold.device} does not exist: KFD has no partition {hold.index} of GPU {hold.gpu}")
