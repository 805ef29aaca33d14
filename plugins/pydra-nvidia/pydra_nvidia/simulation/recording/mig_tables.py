"""How a GPU can be partitioned, as the tables of `simulation.model`; read through NVML, which changes nothing.

The kinds of compute instances are told of a GPU instance that exists only. Source: nvml.h, "Multi Instance GPU
Management".
"""

from __future__ import annotations

import ctypes
from typing import Any

from msgspec.structs import replace

from pydra_nvidia.hardware_types import Architecture, Gpu, GpuInstance, Placement
from pydra_nvidia.nvml.errors import NvmlError
from pydra_nvidia.nvml.library import Nvml, read_fields
from pydra_nvidia.nvml.mig_state import profile_name, read_compute_profiles, read_gpu_profiles, read_places
from pydra_nvidia.simulation.model import ComputeProfile, GpuProfile, MigModel
from pydra_nvidia.simulation.scenario import ComputePreset, Preset

INDEPENDENT_FIELD = 199
"""Whether the driver tells profiles with the mode off."""

_MOST = 32


def read_mig(nvml: Nvml, handle: Any, gpu: Gpu) -> MigModel | None:
    """The tables of the GPU; None when it cannot be partitioned. Without profiles where the driver tells none."""
    if gpu.mig is None:
        return None
    profiles = _read_profiles(nvml, handle, gpu)
    kinds = _read_compute(nvml, handle, gpu)
    profiles = tuple(replace(one, compute=_own(one, kinds.get(one.id, ()))) for one in profiles)
    (independent,) = read_fields(nvml, handle, (INDEPENDENT_FIELD,), subject=gpu.uuid)
    hopper = Architecture.HOPPER <= gpu.architecture < Architecture.UNKNOWN
    most = nvml.look("nvmlDeviceGetMaxMigDeviceCount", handle, subject=gpu.uuid) or 0
    return with_sizes(
        MigModel(
            profiles=profiles,
            resetless=gpu.mig.resetless,
            persistent=not hopper,
            tells_profiles_when_off=bool(profiles)
            if not gpu.mig.enabled
            else bool(independent)
            if independent is not None
            else hopper,
        ),
        most,
    )


def with_sizes(mig: MigModel, most: int = 0) -> MigModel:
    """With the number of slices and devices that follow from the profiles."""
    if not mig.profiles:
        return mig
    return replace(
        mig,
        memory_slices=min(_MOST, max(max(one.starts, default=0) + one.size for one in mig.profiles)),
        compute_slices=min(_MOST, max(one.slices for one in mig.profiles)),
        most_devices=min(_MOST, most or max(one.most for one in mig.profiles)),
    )


def read_presets(nvml: Nvml, handle: Any, gpu: Gpu) -> tuple[Preset, ...]:
    """The instances that exist, with the UUIDs that they have."""
    if gpu.mig is None:
        return ()
    names = {profile.id: profile.name for profile in gpu.mig.profiles}
    return tuple(
        Preset(
            profile=names[one.profile],
            start=one.placement.start,
            id=one.id,
            compute=tuple(
                ComputePreset(slices=ci.slices, id=ci.id, start=_start(nvml, handle, one, ci.id, gpu), uuid=ci.uuid)
                for ci in one.compute
            ),
        )
        for one in gpu.mig.instances
        if one.profile in names
    )


def _start(nvml: Nvml, handle: Any, instance: GpuInstance, compute: int, gpu: Gpu) -> int | None:
    """The first compute slice; None where it is not told."""
    found = nvml.look("nvmlDeviceGetGpuInstanceById", handle, instance.id, subject=gpu.uuid)
    inside = found and nvml.look("nvmlGpuInstanceGetComputeInstanceById", found, compute, subject=gpu.uuid)
    info = inside and nvml.look("nvmlComputeInstanceGetInfo", inside, subject=gpu.uuid)
    return None if not info else int(info.placement.start)


def _read_profiles(nvml: Nvml, handle: Any, gpu: Gpu) -> tuple[GpuProfile, ...]:
    """Where places are not told, those of the instances that exist are known."""
    existing: dict[int, tuple[Placement, ...]] = {}
    for one in gpu.mig.instances if gpu.mig is not None else ():
        existing[one.profile] = (*existing.get(one.profile, ()), one.placement)
    profiles: dict[int, GpuProfile] = {}
    for enum, info in read_gpu_profiles(nvml, handle, subject=gpu.uuid):
        if isinstance(info, NvmlError) or info.id in profiles:
            continue
        places = read_places(nvml, handle, info.id, subject=gpu.uuid).known or existing.get(info.id, ())
        profiles[info.id] = GpuProfile(
            enum=enum,
            id=info.id,
            name=profile_name(info, enum, gpu.memory),
            slices=info.sliceCount,
            most=info.instanceCount,
            memory=info.memorySizeMB,
            multiprocessors=info.multiprocessorCount,
            starts=tuple(sorted(place.start for place in places)),
            size=max((place.size for place in places), default=1),
            copy_engines=info.copyEngineCount,
            decoders=info.decoderCount,
            encoders=info.encoderCount,
            jpeg_engines=info.jpegCount,
            ofa_engines=info.ofaCount,
            p2p=bool(info.isP2pSupported),
        )
    return tuple(profiles.values())


def _read_compute(nvml: Nvml, handle: Any, gpu: Gpu) -> dict[int, tuple[ComputeProfile, ...]]:
    """The kinds of compute instances of each profile that an instance exists of."""
    found: dict[int, tuple[ComputeProfile, ...]] = {}
    for one in gpu.mig.instances if gpu.mig is not None else ():
        instance = nvml.look("nvmlDeviceGetGpuInstanceById", handle, one.id, subject=gpu.uuid)
        if one.profile not in found and instance:
            told = read_compute_profiles(nvml, instance, subject=gpu.uuid)
            kinds = (
                _compute_profile(nvml, instance, enum, info, gpu.uuid)
                for enum, info in told
                if not isinstance(info, NvmlError)
            )
            found[one.profile] = tuple({kind.id: kind for kind in kinds}.values())
    return found


def _compute_profile(nvml: Nvml, instance: Any, enum: int, info: Any, subject: str) -> ComputeProfile:
    return ComputeProfile(
        enum=enum,
        id=info.id,
        slices=info.sliceCount,
        most=info.instanceCount,
        multiprocessors=info.multiprocessorCount,
        starts=_compute_starts(nvml, instance, info.id, subject)
        or tuple(range(0, info.sliceCount * info.instanceCount, max(info.sliceCount, 1))),
        copy_engines=info.sharedCopyEngineCount,
        decoders=info.sharedDecoderCount,
        encoders=info.sharedEncoderCount,
        jpeg_engines=info.sharedJpegCount,
        ofa_engines=info.sharedOfaCount,
    )


def _compute_starts(nvml: Nvml, instance: Any, profile: int, subject: str) -> tuple[int, ...]:
    name = "nvmlGpuInstanceGetComputeInstancePossiblePlacements"
    count = ctypes.c_uint()
    if nvml.look(name, instance, profile, None, ctypes.byref(count), subject=subject) is None or not count.value:
        return ()
    places = (nvml.pynvml.c_nvmlComputeInstancePlacement_t * count.value)()
    if nvml.look(name, instance, profile, places, ctypes.byref(count), subject=subject) is None:
        return ()
    return tuple(sorted(place.start for place in places[: count.value]))


def _own(profile: GpuProfile, told: tuple[ComputeProfile, ...]) -> tuple[ComputeProfile, ...]:
    """What was told, where it is not the usual; the usual needs no saying."""
    usual = {one.id: one for one in profile.compute_profiles()} if profile.slices else {}
    return () if {one.id: one for one in told} == usual else told
