"""Takes over from NVIDIA's own DRA driver at a start beside its checkpoint. A shell.

Its plugin must have ended: two plugins of one driver name would prepare behind each other's back. What it completed is
kept, what it was stopped in is undone, what a reboot made void is dropped. A checkpoint that cannot be read costs the
claims in it, which are prepared again, and is put aside like one that was taken over.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Collection, Sequence
from typing import Any

from msgspec.structs import replace

from pydra import ClaimError, Inheritance, InheritedClaim, PreparedDevice, StepStage, describe_step
from pydra_nvidia.cdi.edits import DeviceEdits, merge, mps_client_edits
from pydra_nvidia.claim_records import build_data
from pydra_nvidia.claim_targets import Partition, Target, identify
from pydra_nvidia.hardware_reader import HardwareReader
from pydra_nvidia.hardware_types import Reading
from pydra_nvidia.settings import Settings
from pydra_nvidia.step_appliers import StepAppliers
from pydra_nvidia.steps import CreateMig, Step
from pydra_nvidia.takeover.vendor_checkpoint import (
    FILE,
    NoCheckpoint,
    VendorCheckpoint,
    VendorClaim,
    parse_vendor_checkpoint,
)
from pydra_nvidia.takeover.vendor_claims import ConvertedClaim, convert_claim, plan_cleaning
from pydra_pci import Tree, find_live_socket, is_vfio, read_function, read_left_checkpoint

_log = logging.getLogger(__name__)


class FabricUnknown(ClaimError):
    """Fabric Manager does not say which partitions are active."""

    reason = "FabricPartitionsUnknown"


class VendorTakeover:
    """What the admin should know is logged."""

    def __init__(
        self,
        *,
        settings: Settings,
        tree: Tree,
        hardware: HardwareReader,
        appliers: StepAppliers,
        edits: DeviceEdits,
    ) -> None:
        self._settings = settings
        self._tree = tree
        self._hardware = hardware
        self._appliers = appliers
        self._edits = edits

    async def inherit(self, directory: str) -> Inheritance:
        """What the plugin directory holds of that driver's. Raises VendorRuns, and what reading the hardware raises."""
        await self._warn_of_device_plugin(directory)
        path = os.path.join(directory, FILE)
        checkpoint = await read_left(directory, self._tree, switch="resources.gpus")
        if checkpoint is None:
            return Inheritance()
        if not checkpoint.claims:
            return Inheritance(files=(path,))
        reading = await self._hardware.read()
        if reading.fabric is not None and reading.fabric.problem:
            raise FabricUnknown(
                "the claims of NVIDIA's driver cannot be taken over before it is known which of Fabric Manager's"
                f" partitions they have: {reading.fabric.problem}; if it was restarted, run fmpm --set-activated-list"
            )
        completed = [vendor for vendor in checkpoint.claims if vendor.completed and vendor.devices]
        overridden = await asyncio.to_thread(self._find_overridden, reading)
        planned = [
            convert_claim(vendor, reading, settings=self._settings, overridden=overridden) for vendor in completed
        ]
        for note in (note for one in planned for note in one.notes):
            _log.warning("%s", note)
        converted = [one for one in planned if not one.is_void]
        await self._clean(
            checkpoint,
            reading,
            converted,
            driver=os.path.basename(directory),
            overridden=overridden if checkpoint.boot_id else (),  # else they may be of an earlier boot
        )
        devices = {vendor.uid: vendor for vendor in checkpoint.claims}
        claims = [await self._take(one, devices[one.claim.uid], reading, directory) for one in converted]
        return Inheritance(claims=tuple(claims), files=(path,))

    async def _warn_of_device_plugin(self, directory: str) -> None:
        """Its sockets are below the kubelet's root, as plugins' directories are. It may have been left on purpose."""
        kubelet = os.path.dirname(os.path.dirname(directory))
        place = self._tree.here(os.path.join(kubelet, "device-plugins"))
        if socket := await find_live_socket(place, "nvidia"):
            _log.warning(
                "NVIDIA's device plugin serves on this node too (%s answers): each of both gives out GPUs that the"
                " other has given, and nobody notices; keep one of them from this node",
                socket,
            )

    async def _clean(
        self,
        checkpoint: VendorCheckpoint,
        reading: Reading,
        taken: Sequence[ConvertedClaim],
        *,
        driver: str,
        overridden: Collection[str],
    ) -> None:
        """What cannot be undone keeps nobody waiting."""
        for vendor in checkpoint.claims:
            if vendor.completed:
                continue
            cleaning = plan_cleaning(
                vendor, reading, driver=driver, taken=taken, settings=self._settings, overridden=overridden
            )
            for note in cleaning.notes:
                _log.warning("%s", note)
            problems: list[str] = []
            for step in reversed(cleaning.steps):
                try:
                    await self._appliers.undo(step, None, cleaning.claim)
                except ClaimError as error:
                    problems.append(f"step {step}: {error}")
            begun = f"claim {vendor.uid} was begun by NVIDIA's driver"
            if problems:
                _log.warning("%s; what is not undone is not tried again: %s", begun, "; ".join(problems))
            elif cleaning.steps:
                _log.warning("%s; what it had done is undone", begun)

    def _find_overridden(self, reading: Reading) -> frozenset[str]:
        """The functions that are kept for a driver for passthrough. Blocks."""
        functions = (read_function(self._tree, address) for address in reading.functions)
        return frozenset(one.address for one in functions if is_vfio(one.override))

    async def _take(
        self, converted: ConvertedClaim, vendor: VendorClaim, reading: Reading, directory: str
    ) -> InheritedClaim:
        prepared: list[PreparedDevice] = []
        for allocated, target, device in zip(converted.claim.devices, converted.targets, vendor.devices, strict=True):
            if target is None:
                prepared.append(allocated.prepared())
                continue
            edits = await asyncio.to_thread(self._edits.build, (target,), reading, converted.steps)
            if device.mps:  # a daemon that NVIDIA's driver started, and whose directory may go with it
                place = f"{directory}/mps/{device.mps}"
                edits.append(mps_client_edits(f"{place}/pipe", f"{place}/shm", optional=True))
            prepared.append(allocated.prepared(merge(*edits), status=identify(target)))
        steps = tuple(
            [
                describe_step(step, stage=StepStage.DONE, result=_find_result(step, converted.targets))
                for step in converted.steps
            ]
        )
        claim = replace(converted.claim, plan=build_data(converted.holds), steps=steps)
        return InheritedClaim(claim=claim, prepared=tuple(prepared))


async def read_left(directory: str, tree: Tree, *, switch: str) -> VendorCheckpoint | None:
    """What a plugin of NVIDIA left in its directory; None without a checkpoint. What is void is empty.

    `switch` is the value of its chart that ends it. Raises VendorRuns, and ClaimError for a file that cannot be read.
    """
    path = os.path.join(directory, FILE)
    text = await read_left_checkpoint(path, "NVIDIA", f"uninstall it, or switch off its {switch}")
    return None if text is None else await asyncio.to_thread(_parse, path, text, tree)


def _parse(path: str, text: bytes, tree: Tree) -> VendorCheckpoint:
    """Old versions kept no boot id; they are believed, as that driver believes them."""
    try:
        checkpoint = parse_vendor_checkpoint(text)
    except NoCheckpoint as error:
        _log.warning("%s cannot be read, its claims are prepared again: %s", path, error)
        return VendorCheckpoint()
    for problem in checkpoint.problems:
        _log.warning("%s: %s", path, problem)
    now = tree.read(tree.proc("sys/kernel/random/boot_id"))
    if not checkpoint.boot_id or not now or checkpoint.boot_id == now:
        return checkpoint
    _log.warning("%s is of another boot, its claims are void: %d", path, len(checkpoint.claims))
    return VendorCheckpoint()


def _find_result(step: Step, targets: Sequence[Target | None]) -> Any:
    """What `apply` would have returned."""
    if not isinstance(step, CreateMig):
        return True
    for one in targets:
        if isinstance(one, Partition) and (one.gpu.uuid, one.placement) == (step.gpu, step.placement):
            return one.uuid
    return None
