"""Applies and undoes the MIG steps: modes of GPUs, and partitions at their places.

What is there is read again within each piece of work, which has NVML for itself. A GPU that is gone, or whose driver is
not loaded, has no partitions any more: there is nothing to undo on it. A lost GPU has those that it had if it answers
again without a reset, so what is to be undone on it waits for that; a session that began later does not count it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from pydra import Claim, ClaimError, HeldClaim, LeftBehind, UndoLater, held_claims
from pydra_nvidia.claim_records import Entry, find_addresses, read_entries
from pydra_nvidia.hardware_types import GpuInstance
from pydra_nvidia.host.pci import DRIVER
from pydra_nvidia.mig.plan_partitions import describe, slices
from pydra_nvidia.nvml.errors import PASSING, Code, NvmlError
from pydra_nvidia.nvml.gpus import name_processes
from pydra_nvidia.nvml.mig_control import (
    ModeNotRestored,
    ModePending,
    count_slices,
    create_instance,
    denies_gpu,
    destroy_instance,
    discard_instance,
    fill_instance,
    find_all,
    find_instance,
    find_mode,
    is_resetless,
    open_instance,
    read_addresses,
    set_mig_mode,
)
from pydra_nvidia.nvml.pynvml_library import Nvml
from pydra_nvidia.nvml.session import NvmlSession
from pydra_nvidia.steps import BindVfio, CreateMig, MigModeOff, MigModeOn
from pydra_pci import Tree, read_driver

PATIENCE = 3.0
"""Seconds for processes to release a GPU: they do so a while after SIGTERM."""

PAUSE = 0.2

T = TypeVar("T")


class GpuBusy(ClaimError):
    """Processes still use what should be changed."""

    reason = "GpuBusy"


class PlaceTaken(ClaimError):
    """Something else is where the partition should be."""

    reason = "MigPlaceTaken"


class NoRoom(ClaimError):
    """The place is free, and the GPU has no more engines or compute slices for the partition."""

    reason = "MigNoRoom"


class _Applier:
    """What the three have."""

    def __init__(self, session: NvmlSession, tree: Tree, *, patience: float = PATIENCE) -> None:
        self._session = session
        self._tree = tree
        self._patience = patience

    async def _do(self, gpu: str, work: Callable[[Nvml], T]) -> T:
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

    async def _undo(self, gpu: str, work: Callable[[Nvml], None], claim: Claim) -> None:
        """The same; on a GPU that is not there it is done. Raises UndoLater where the GPU may only be lost."""
        try:
            await self._do(gpu, work)
        except NvmlError as error:
            if error.code == Code.DRIVER_NOT_LOADED:
                return
            if not denies_gpu(error):
                raise
            counted = await self._session.run(read_addresses)
            if gpu in counted:
                raise
            addresses = find_addresses(claim).difference(counted.values())
            if lost := await asyncio.to_thread(self._find_managed, addresses):
                raise UndoLater(f"NVML does not count {gpu}, although {lost} is bound to the NVIDIA driver") from error

    def _find_managed(self, addresses: Iterable[str]) -> str:
        """The first that the NVIDIA driver has; empty for none."""
        return next((one for one in sorted(addresses) if read_driver(self._tree, one) == DRIVER), "")


class MigModeOnApplier(_Applier):
    """Switches to MIG mode, and back when the last claim on the GPU has left."""

    async def apply(self, step: MigModeOn, _result: Any, _claim: Claim, /) -> bool:
        """Raises NvmlError, GpuBusy, ModePending, and the mode is as it was; or LeftBehind."""
        try:
            await self._do(step.gpu, lambda nvml: set_mig_mode(nvml, step.gpu, on=True))
        except ModeNotRestored as error:
            raise LeftBehind(str(error)) from error
        return True

    async def undo(self, step: MigModeOn, _result: Any, claim: Claim, /) -> None:
        """Leave MIG mode where no partition is left, and no reset is needed for it."""
        # The claim has nothing there any more: its pods need not be kept because other processes have the GPU open.
        with suppress(GpuBusy, ModePending):
            await self._undo(step.gpu, lambda nvml: _leave_if_empty(nvml, step.gpu), claim)


class MigModeOffApplier(_Applier):
    """Leaves MIG mode, so that the GPU can be used whole or passed through."""

    async def apply(self, step: MigModeOff, _result: Any, claim: Claim, /) -> bool:
        """Raises NvmlError, GpuBusy, ModePending, PlaceTaken; the mode is then as it was.

        A GPU that this claim has bound for passthrough already is not there, and has no mode.
        """
        try:
            await self._do(step.gpu, lambda nvml: self._leave(nvml, step.gpu))
        except NvmlError:
            is_bound = any(isinstance(one.step, BindVfio) for one in claim.steps)
            if not is_bound or step.gpu in await self._session.run(read_addresses):
                raise
        return True

    async def undo(self, _step: MigModeOff, _result: Any, _claim: Claim, /) -> None:
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

    def __init__(
        self,
        session: NvmlSession,
        tree: Tree,
        held: Callable[[], Sequence[HeldClaim]] = held_claims,
        *,
        patience: float = PATIENCE,
    ) -> None:
        super().__init__(session, tree, patience=patience)
        self._held = held

    async def apply(self, step: CreateMig, result: str | None, claim: Claim, /) -> str:
        """Return its UUID. Raises NvmlError, PlaceTaken, GpuBusy with nothing left behind, or LeftBehind.

        What is there already and that no claim has made is somebody else's: it came since the plan was made.
        """
        others = read_entries(self._held(), besides=claim.uid)
        is_made = result is not None or any(one.key == step.key for other in others for one in other.begun)
        return await self._do(step.gpu, lambda nvml: _create(nvml, step, others, is_made=is_made))

    async def undo(self, step: CreateMig, result: str | None, claim: Claim, /) -> None:
        """Raises NvmlError, GpuBusy while a process lives on it. What somebody else made stays, as far as known."""
        await self._undo(step.gpu, lambda nvml: _destroy(nvml, step, result or ""), claim)


def _leave_if_empty(nvml: Nvml, gpu: str) -> None:
    if any(find_mode(nvml, gpu)) and is_resetless(nvml, gpu) and not find_all(nvml, gpu)[0]:
        set_mig_mode(nvml, gpu, on=False)


def _create(nvml: Nvml, step: CreateMig, others: Sequence[Entry], *, is_made: bool) -> str:
    found = find_instance(nvml, step.gpu, step.profile, step.placement.start)
    if found is not None and found.compute:
        if _is_filled(nvml, step, found):
            if is_made:
                return found.compute[0].uuid
            raise PlaceTaken(
                f"the partition {step.profile_name} at {slices(step.placement)} of {step.gpu} was made outside of"
                " this driver a moment ago; the next try uses it as it is"
            )
        raise PlaceTaken(
            f"the partition {step.profile_name} at {slices(step.placement)} of {step.gpu} was divided outside of"
            f" this driver; who did it can undo it (nvidia-smi mig -i {step.gpu} -gi {found.id} -dci)"
        )
    handle = created = None
    try:
        if found is None:
            handle = created = create_instance(nvml, step.gpu, step.profile, step.placement)
        else:
            handle = open_instance(nvml, step.gpu, found)
        fill_instance(nvml, step.gpu, handle, step.profile)
    except NvmlError as error:
        if handle is None and found is None and error.code == Code.INSUFFICIENT_RESOURCES:
            raise _explain(nvml, step, others) from error
        _clean_up(nvml, step, created, error)
        raise
    return _read_uuid(nvml, step)


def _read_uuid(nvml: Nvml, step: CreateMig) -> str:
    """The UUID of the partition that was just made; raises LeftBehind."""
    try:
        found = find_instance(nvml, step.gpu, step.profile, step.placement.start)
    except NvmlError as error:
        raise LeftBehind(f"the partition {step.profile_name} of {step.gpu} was made, and then: {error}") from error
    if found is None or not found.compute:
        raise LeftBehind(f"the partition {step.profile_name} of {step.gpu} went while it was made; try again")
    return found.compute[0].uuid


def _explain(nvml: Nvml, step: CreateMig, others: Sequence[Entry]) -> ClaimError:
    """NVML says only that there is no room: what is in the way, and whose it is."""
    owners = {
        (one.gpu, one.placement): f"of claim {other.name}"
        for other in others
        for one in other.steps
        if isinstance(one, CreateMig)
    }
    instances, profiles = find_all(nvml, step.gpu)
    found = [
        f"{describe(one, profiles)}, {owners.get((step.gpu, one.placement), 'made outside of this driver')}"
        for one in instances
        if one.placement.overlaps(step.placement)
    ]
    where = f"at {slices(step.placement)} of {step.gpu}"
    if found:
        return PlaceTaken(f"the partition {step.profile_name} cannot be created {where}: there is {'; '.join(found)}")
    rest = ", ".join(describe(one, profiles) for one in instances) or "no other partition"
    return NoRoom(
        f"the partition {step.profile_name} cannot be created {where}: the place is free, but the GPU has no more"
        f" engines or compute slices for it; it has {rest}"
    )


def _is_filled(nvml: Nvml, step: CreateMig, found: GpuInstance) -> bool:
    return len(found.compute) == 1 and found.compute[0].slices == count_slices(nvml, step.gpu, step.profile)


def _destroy(nvml: Nvml, step: CreateMig, uuid: str) -> None:
    found = find_instance(nvml, step.gpu, step.profile, step.placement.start)
    if found is not None and _is_ours(nvml, step, found, uuid):
        _remove(nvml, step, found)


def _remove(nvml: Nvml, step: CreateMig, found: GpuInstance) -> None:
    """Destroy it, and see that it is gone: a driver may say of one that exists that it does not."""
    destroy_instance(nvml, step.gpu, found)
    if find_instance(nvml, step.gpu, step.profile, step.placement.start) == found:
        raise NvmlError(Code.NOT_SUPPORTED, "nvmlDeviceGetGpuInstanceById", step.gpu)


def _is_ours(nvml: Nvml, step: CreateMig, found: GpuInstance, uuid: str) -> bool:
    """Whether the step can have made what is at its place: half made, or the only shape that it makes.

    Another UUID than the known one is somebody else's. The same one proves nothing: NVML makes it of the GPU and the
    ids of the instances, so that the next instance with those ids has it too.
    """
    if not found.compute:
        return True
    return _is_filled(nvml, step, found) and uuid in ("", found.compute[0].uuid)


def _clean_up(nvml: Nvml, step: CreateMig, created: Any, error: NvmlError) -> None:
    """Remove the GPU instance that could not be completed, or was in spite of the error; raises LeftBehind.

    `created` is the handle that creating it returned, or None: the driver may not find it by other ways yet.
    """
    if created is not None and discard_instance(nvml, step.gpu, created):
        return
    try:
        found = find_instance(nvml, step.gpu, step.profile, step.placement.start)
        if found is not None and (error.call == "nvmlGpuInstanceCreateComputeInstance" or not found.compute):
            _remove(nvml, step, found)
    except NvmlError as failed:
        raise LeftBehind(f"{error}; and removing what was made until then failed: {failed}") from error
