"""Changes the MIG state of a GPU. Functions in one thread, over `Nvml`; what there is, is read by `mig_state`.

Everything is enumerated again each time, and handles of instances are not kept between pieces of work: NVML gives
those and ids to others again. A partition is known by its GPU's UUID, its profile and its first memory slice; by its
UUID, if that is known. That something is not there is believed only if a second question confirms it: a driver may
deny for a moment what it has just created.

Source: nvml.h, section Multi Instance GPU Management.
"""

from __future__ import annotations

import ctypes
from typing import Any

from pydra import ClaimError
from pydra_nvidia.hardware_types import GpuInstance, Placement, Profile
from pydra_nvidia.nvml.errors import Code, NvmlError
from pydra_nvidia.nvml.gpus import parse_bus_id, read_architecture
from pydra_nvidia.nvml.mig_state import (
    Kind,
    Mode,
    Offer,
    read_compute_profiles,
    read_gpu_profiles,
    read_instances,
    read_mode,
    read_offer,
    read_resetless,
)
from pydra_nvidia.nvml.pynvml_library import Nvml

GONE = frozenset({Code.INVALID_ARGUMENT, Code.NOT_FOUND, Code.NOT_SUPPORTED})
"""Of an instance: it no longer exists. NVML says so of stale handles, of ids that are free, and with the mode off."""

FILLING = (0, 1, 2, 3, 4, 5, 6)
"""NVML's constants of compute instance profiles, by slices; not their doubles 1_SLICE_REV1 (7) and 7_SLICE_NVL (8)."""

ROOM = 16
"""More instances than any GPU has of one profile."""


class ModePending(ClaimError):
    """The GPU would take the MIG mode with its next reset only; the request was withdrawn."""

    reason = "MigModePending"


class ModeNotRestored(ClaimError):
    """A change of the MIG mode failed halfway, and what was done of it could not be undone."""

    reason = "MigModeNotRestored"


def find_mode(nvml: Nvml, gpu: str) -> Mode:
    """The MIG mode: off for a GPU that has none. Raises NvmlError, also where MIG devices contradict that."""
    handle = nvml.find(gpu)
    mode = read_mode(nvml, handle, subject=gpu)
    if mode is None and nvml.ask("nvmlDeviceGetMaxMigDeviceCount", handle, subject=gpu):
        raise NvmlError(Code.NOT_SUPPORTED, "nvmlDeviceGetMigMode", gpu)
    return mode or Mode(current=False, pending=False)


def read_addresses(nvml: Nvml) -> dict[str, str]:
    """The PCI addresses of all GPUs that NVML counts, by UUID; raises NvmlError where one does not answer."""
    found = {}
    for index in range(nvml.call("nvmlDeviceGetCount")):
        handle = nvml.call("nvmlDeviceGetHandleByIndex", index, subject=f"GPU {index}")
        uuid = nvml.call("nvmlDeviceGetUUID", handle, subject=f"GPU {index}")
        found[uuid] = parse_bus_id(nvml.call("nvmlDeviceGetPciInfo", handle, subject=uuid).busId)
    return found


def denies_gpu(error: NvmlError) -> bool:
    """Whether NVML says that it does not know the GPU."""
    return error.code in GONE and error.call == "nvmlDeviceGetHandleByUUID"


def set_mig_mode(nvml: Nvml, gpu: str, *, on: bool) -> None:
    """Change the MIG mode now; nothing to do is fine. When it raises anything but ModeNotRestored, it is as it was.

    NVML may answer success although nothing happened: then the activation status is the error, or the mode is pending.

    Raises:
        NvmlError: IN_USE while anything has the GPU open, NO_PERMISSION.
        ModePending: this GPU has to be reset for it.
        ModeNotRestored: the change failed, and so did restoring the mode.
    """
    before = find_mode(nvml, gpu)
    if before == Mode(on, on):
        return
    try:
        _change_mode(nvml, gpu, on=on)
        nvml.renew(gpu)
        if find_mode(nvml, gpu) != Mode(on, on):
            raise ModePending(f"{gpu} changes its MIG mode with a reset only, which the admin has to do")
    except ClaimError as error:
        try:
            if find_mode(nvml, gpu).pending != before.pending:
                _change_mode(nvml, gpu, on=before.pending)
        except NvmlError as failed:
            raise ModeNotRestored(f"{error}; and restoring the MIG mode failed: {failed}") from error
        raise


def _change_mode(nvml: Nvml, gpu: str, *, on: bool) -> None:
    status = nvml.call("nvmlDeviceSetMigMode", nvml.find(gpu), int(on), subject=gpu)
    if status != Code.SUCCESS:
        raise NvmlError(status, "nvmlDeviceSetMigMode", gpu)


def is_resetless(nvml: Nvml, gpu: str) -> bool:
    """Whether the MIG mode changes without a reset; raises NvmlError."""
    handle = nvml.find(gpu)
    return read_resetless(nvml, handle, read_architecture(nvml, handle, subject=gpu), subject=gpu)


def find_instance(nvml: Nvml, gpu: str, profile: int, start: int) -> GpuInstance | None:
    """The GPU instance at this place; raises NvmlError, also where an instance of this profile does not answer."""
    if not find_mode(nvml, gpu).current:
        return None
    offer = Offer(kinds=(Kind(profile, 0, ROOM),))
    found = read_instances(nvml, nvml.find(gpu), offer, {}, subject=gpu, strict=True)
    return next((one for one in found if one.placement.start == start), None)


def find_all(nvml: Nvml, gpu: str) -> tuple[tuple[GpuInstance, ...], tuple[Profile, ...]]:
    """All GPU instances by their place, and the profiles that the driver offers.

    Raises NvmlError, also where only some of them can be read: others may exist.
    """
    handle = nvml.find(gpu)
    offer = read_offer(nvml, handle, None, subject=gpu)
    if offer.unseen is not None:
        raise offer.unseen
    is_on = find_mode(nvml, gpu).current
    found = read_instances(nvml, handle, offer, {}, subject=gpu, strict=True) if is_on else ()
    return tuple(sorted(found, key=lambda one: one.placement)), offer.profiles


def count_slices(nvml: Nvml, gpu: str, profile: int) -> int:
    """The compute slices of a profile. Raises NvmlError, also when the driver does not offer it."""
    failure = NvmlError(Code.NOT_SUPPORTED, "nvmlDeviceGetGpuInstanceProfileInfo", gpu)
    for _, info in read_gpu_profiles(nvml, nvml.find(gpu), subject=gpu):
        if isinstance(info, NvmlError):
            failure = info
        elif info.id == profile:
            return int(info.sliceCount)
    raise failure


def create_instance(nvml: Nvml, gpu: str, profile: int, placement: Placement) -> Any:
    """Create a GPU instance at this place and no other, and return its handle.

    Raises NvmlError, INSUFFICIENT_RESOURCES when there is no room.
    """
    place = nvml.pynvml.c_nvmlGpuInstancePlacement_t(placement.start, placement.size)
    handle = nvml.find(gpu)
    return nvml.call("nvmlDeviceCreateGpuInstanceWithPlacement", handle, profile, ctypes.byref(place), subject=gpu)


def open_instance(nvml: Nvml, gpu: str, instance: GpuInstance) -> Any:
    """The handle of a GPU instance; raises NvmlError."""
    handle = _open(nvml, gpu, instance)
    if handle is None:
        raise NvmlError(Code.NOT_FOUND, "nvmlDeviceGetGpuInstanceById", gpu)
    return handle


def fill_instance(nvml: Nvml, gpu: str, handle: Any, profile: int) -> None:
    """A compute instance with all slices of the GPU instance with this handle; raises NvmlError."""
    slices = count_slices(nvml, gpu, profile)
    failure = NvmlError(Code.NOT_SUPPORTED, "nvmlGpuInstanceGetComputeInstanceProfileInfo", gpu)
    for kind, info in read_compute_profiles(nvml, handle, subject=gpu):
        if isinstance(info, NvmlError):
            failure = info
        elif kind in FILLING and info.sliceCount == slices:
            nvml.call("nvmlGpuInstanceCreateComputeInstance", handle, info.id, subject=gpu)
            return
    raise failure


def discard_instance(nvml: Nvml, gpu: str, handle: Any) -> bool:
    """Destroy the empty GPU instance that was just created with this handle; whether the driver says it did."""
    try:
        nvml.call("nvmlGpuInstanceDestroy", handle, subject=gpu)
    except NvmlError:
        return False
    return True


def destroy_instance(nvml: Nvml, gpu: str, instance: GpuInstance) -> None:
    """Destroy what is in the GPU instance, then itself; what is gone is fine. Raises NvmlError, IN_USE."""
    handle = _open(nvml, gpu, instance)
    if handle is None:
        return
    kept: NvmlError | None = None
    for compute in instance.compute:
        nvml.handles.pop(compute.uuid, None)
        try:
            within = nvml.call("nvmlGpuInstanceGetComputeInstanceById", handle, compute.id, subject=gpu)
            nvml.call("nvmlComputeInstanceDestroy", within, subject=gpu)
        except NvmlError as error:
            if error.code not in GONE:
                raise
            kept = kept or error
    try:
        nvml.call("nvmlGpuInstanceDestroy", handle, subject=gpu)
    except NvmlError as error:
        if error.code == Code.IN_USE and kept is not None:  # it is its compute instance that uses it
            raise kept from error
        if error.code not in GONE or _open(nvml, gpu, instance) is not None:
            raise


def _open(nvml: Nvml, gpu: str, instance: GpuInstance) -> Any:
    """The instance's handle; None when it is gone, though its id may be another's by now."""
    handle = _seek(nvml, "nvmlDeviceGetGpuInstanceById", nvml.find(gpu), instance.id, subject=gpu)
    info = None if handle is None else _seek(nvml, "nvmlGpuInstanceGetInfo", handle, subject=gpu)
    if info is None or (info.profileId, info.placement.start) != (instance.profile, instance.placement.start):
        return None
    return handle


def _seek(nvml: Nvml, name: str, *arguments: Any, subject: str) -> Any:
    """What NVML answers; None when there is no such thing."""
    try:
        return nvml.call(name, *arguments, subject=subject)
    except NvmlError as error:
        if error.code in GONE:
            return None
        raise
