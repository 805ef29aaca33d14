"""Applies and undoes the MIG steps: modes of GPUs, and partitions at their places.

What is there is read anew within each piece of work, which has NVML for itself. A GPU that is gone, or whose driver is
not loaded, has no partitions any more: there is nothing to undo on it. A lost GPU has those that it had if it answers
again without a reset, so what is to be undone on it waits for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from pydra import ClaimError
from pydra_nvidia.hardware_types import GpuInstance
from pydra_nvidia.held_claims import HeldEntries
from pydra_nvidia.mig.plan_partitions import describe, slices
from pydra_nvidia.nvml.errors import PASSING, Code, NvmlError
from pydra_nvidia.nvml.gpus import name_processes
from pydra_nvidia.nvml.library import Nvml
from pydra_nvidia.nvml.mig_control import (
    GONE,
    ModeNotRestored,
    ModePending,
    count_slices,
    create_instance,
    destroy_instance,
    fill_instance,
    find_all,
    find_instance,
    find_mode,
    is_resetless,
    read_address,
    set_mig_mode,
)
from pydra_nvidia.nvml.session import NvmlSession
from pydra_nvidia.steps import BindVfio, CreateMig, Entry, MigModeOff, MigModeOn
from pydra_pci import LeftBehind

PATIENCE = 3.0
"""Seconds for processes to release a GPU: they do so a while after they were told to end."""

PAUSE = 0.2


class GpuBusy(ClaimError):
    """Processes still use what should be changed."""

    reason = "GpuBusy"


class PlaceTaken(ClaimError):
    """Something else is where the partition should be."""

    reason = "MigPlaceTaken"


class _Applier:
    """What the three have."""

    def __init__(self, session: NvmlSession, held: HeldEntries, *, patience: float = PATIENCE) -> None:
        self._session = session
        self._held = held
        self._patience = patience

    async def _do(self, gpu: str, work: Callable[[Nvml], None]) -> None:
        """The work, again while it is only busy; then GpuBusy, with what keeps it so."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience
        while True:
            try:
                return await self._session.run(work)
            except NvmlError as error:
                if error.code not in PASSING:
                    raise
                if loop.time() >= deadline:
                    users = await self._session.run(lambda nvml: name_processes(nvml, gpu))
                    raise GpuBusy(f"{error}; NVML names {users or 'none of them'}") from error
            await asyncio.sleep(PAUSE)

    async def _undo(self, gpu: str, work: Callable[[Nvml], None]) -> None:
        """The same; on a GPU that is not there it is done."""
        try:
            await self._do(gpu, work)
        except NvmlError as error:
            if not (_is_absent(error) or error.code == Code.DRIVER_NOT_LOADED):
                raise


class MigModeOnApplier(_Applier):
    """Switches to MIG mode, and back when the last claim on the GPU has left."""

    async def apply(self, step: MigModeOn, _entry: Entry) -> None:
        """Raises NvmlError, GpuBusy, ModePending, and the mode is as it was; or LeftBehind."""
        try:
            await self._do(step.gpu, lambda nvml: set_mig_mode(nvml, step.gpu, on=True))
        except ModeNotRestored as error:
            raise LeftBehind(str(error)) from error

    async def undo(self, step: MigModeOn, entry: Entry) -> None:
        """Leave MIG mode where no other claim has anything, no partition is left, and no reset is needed for it."""
        # The claim has nothing there any more: its pods need not be kept because other processes have the GPU open.
        with suppress(GpuBusy, ModePending):
            await self._undo(step.gpu, lambda nvml: self._leave(nvml, step.gpu, entry.uid))

    def _leave(self, nvml: Nvml, gpu: str, uid: str) -> None:
        if not any(find_mode(nvml, gpu)) or not is_resetless(nvml, gpu):
            return
        names = (gpu, read_address(nvml, gpu))
        holds = (hold for other in self._held.staying(uid) for hold in other.holds if not hold.admin)
        if any(hold.hardware in names for hold in holds):
            return
        if not find_all(nvml, gpu)[0]:
            set_mig_mode(nvml, gpu, on=False)


class MigModeOffApplier(_Applier):
    """Leaves MIG mode, so that the GPU can be used whole or passed through."""

    async def apply(self, step: MigModeOff, entry: Entry) -> None:
        """Raises NvmlError, GpuBusy, ModePending, PlaceTaken; the mode is then as it was.

        A GPU that this claim has bound for passthrough already is not there, and has no mode.
        """
        try:
            await self._do(step.gpu, lambda nvml: self._leave(nvml, step.gpu))
        except NvmlError as error:
            if not (_is_absent(error) and any(isinstance(one, BindVfio) for one in entry.steps)):
                raise

    async def undo(self, step: MigModeOff, _entry: Entry) -> None:
        """Nothing: who needs MIG mode switches it on."""

    def _leave(self, nvml: Nvml, gpu: str) -> None:
        if not any(find_mode(nvml, gpu)):
            return
        instances, profiles = find_all(nvml, gpu)
        if instances:
            found = ", ".join(describe(one, profiles) for one in instances)
            raise PlaceTaken(f"{gpu} cannot be given whole, it is partitioned: {found}")
        set_mig_mode(nvml, gpu, on=False)


class CreateMigApplier(_Applier):
    """Creates a partition at its place, or completes it; destroys it when the last claim that has it leaves."""

    async def apply(self, step: CreateMig, entry: Entry) -> None:
        """Raises NvmlError, PlaceTaken, GpuBusy with nothing left behind, or LeftBehind."""
        await self._do(step.gpu, lambda nvml: self._create(nvml, step, entry))

    async def undo(self, step: CreateMig, entry: Entry) -> None:
        """Raises NvmlError, GpuBusy while a process lives on it. What somebody else made, or needs as well, stays."""
        await self._undo(step.gpu, lambda nvml: self._destroy(nvml, step, entry))

    def _create(self, nvml: Nvml, step: CreateMig, entry: Entry) -> None:
        found = find_instance(nvml, step.gpu, step.profile, step.placement.start)
        if found is not None and found.compute:
            if _is_filled(nvml, step, found):
                if not step.absent or self._has_maker(step, entry):
                    return
                raise PlaceTaken(
                    f"the partition {step.profile_name} at {slices(step.placement)} of {step.gpu} was made outside of"
                    " this driver a moment ago; the next try uses it as it is"
                )
            raise PlaceTaken(
                f"the partition {step.profile_name} at {slices(step.placement)} of {step.gpu} was divided outside of"
                f" this driver; who did it can undo it (nvidia-smi mig -i {step.gpu} -gi {found.id} -dci)"
            )
        try:
            if found is None:
                create_instance(nvml, step.gpu, step.profile, step.placement)
                found = find_instance(nvml, step.gpu, step.profile, step.placement.start)
            if found is None:
                raise NvmlError(Code.NOT_FOUND, "nvmlDeviceGetGpuInstances", step.gpu)
            fill_instance(nvml, step.gpu, found)
        except NvmlError as error:
            if found is None and error.code == Code.INSUFFICIENT_RESOURCES:
                raise self._explain(nvml, step, entry) from error
            _clean_up(nvml, step, error)
            raise

    def _has_maker(self, step: CreateMig, entry: Entry) -> bool:
        """Whether another claim has a step that made it."""
        others = (other for uid, other in self._held.entries().items() if uid != entry.uid)
        return any(isinstance(one, CreateMig) and _is_same(one, step) for other in others for one in other.steps)

    def _explain(self, nvml: Nvml, step: CreateMig, entry: Entry) -> PlaceTaken:
        """NVML says only that there is no room: what is in the way, and whose it is."""
        owners = {
            (one.gpu, one.placement): f"of claim {other.namespace}/{other.name}"
            for uid, other in self._held.entries().items()
            for one in other.steps
            if isinstance(one, CreateMig) and uid != entry.uid
        }
        instances, profiles = find_all(nvml, step.gpu)
        found = [
            f"{describe(one, profiles)}, {owners.get((step.gpu, one.placement), 'made outside of this driver')}"
            for one in instances
            if one.placement.overlaps(step.placement)
        ]
        where = f"at {slices(step.placement)} of {step.gpu}"
        if found:
            return PlaceTaken(
                f"the partition {step.profile_name} cannot be created {where}: there is {'; '.join(found)}"
            )
        rest = ", ".join(describe(one, profiles) for one in instances) or "no other partition"
        return PlaceTaken(
            f"the partition {step.profile_name} cannot be created {where}: the place is free, but the GPU has no more"
            f" engines or compute slices for it; it has {rest}"
        )

    def _destroy(self, nvml: Nvml, step: CreateMig, entry: Entry) -> None:
        for other in self._held.staying(entry.uid):
            if any(isinstance(one, CreateMig) and _is_same(one, step) for one in other.steps):
                return
        found = find_instance(nvml, step.gpu, step.profile, step.placement.start)
        if found is not None and _is_ours(nvml, step, found):
            destroy_instance(nvml, step.gpu, found)


def _is_absent(error: NvmlError) -> bool:
    """Whether NVML does not know the GPU."""
    return error.code in GONE and error.call == "nvmlDeviceGetHandleByUUID"


def _is_filled(nvml: Nvml, step: CreateMig, found: GpuInstance) -> bool:
    return len(found.compute) == 1 and found.compute[0].slices == count_slices(nvml, step.gpu, step.profile)


def _is_same(one: CreateMig, other: CreateMig) -> bool:
    return (one.gpu, one.profile, one.placement) == (other.gpu, other.profile, other.placement)


def _is_ours(nvml: Nvml, step: CreateMig, found: GpuInstance) -> bool:
    """Whether the step can have made what is at its place: half made, or the only shape that it makes.

    Another UUID than the known one is somebody else's. The same one proves nothing: NVML makes it of the GPU and the
    ids of the instances, so that the next instance with those ids has it too.
    """
    if not found.compute:
        return True
    return _is_filled(nvml, step, found) and step.uuid in ("", found.compute[0].uuid)


def _clean_up(nvml: Nvml, step: CreateMig, error: NvmlError) -> None:
    """Remove the GPU instance that could not be completed; raises LeftBehind."""
    try:
        found = find_instance(nvml, step.gpu, step.profile, step.placement.start)
        if found is not None and not found.compute:
            destroy_instance(nvml, step.gpu, found)
    except NvmlError as failed:
        raise LeftBehind(f"{error}; and removing what was made until then failed: {failed}") from error
