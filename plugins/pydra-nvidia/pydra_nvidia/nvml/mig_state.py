"""MIG as NVML reports it: whether a GPU is partitioned, which profiles and places the driver offers, what exists.

A GPU instance without a compute instance is not a MIG device, and is not found by walking those, so instances are
listed profile by profile. Of the functions for profiles, the second version has the profiles' names; a driver may lack
it, or refuse it while MIG mode is off: the first version is asked then.
Source: nvml.h, "Multi Instance GPU Management", nvmlDeviceGetGpuInstanceProfileInfo,
nvmlGpuInstanceGetComputeInstanceProfileInfo and their versioned wrappers (...V), which answer NOT_SUPPORTED for a
device that does not have MIG mode enabled.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from pydra_nvidia.hardware_types import Architecture, ComputeInstance, GpuInstance, Placement, Profile
from pydra_nvidia.nvml.errors import LOST, STALE, UNAVAILABLE, Code, NvmlError
from pydra_nvidia.nvml.pynvml_library import Nvml, read_fields

RESETLESS_FIELD = 184

_SUFFIXES = {
    **dict.fromkeys((0x7, 0x8), "+me"),
    **dict.fromkeys((0xA, 0xB, 0xC, 0x11), "+gfx"),
    **dict.fromkeys((0xD, 0xE), "-me"),
    **dict.fromkeys((0xF, 0x10), "+me.all"),
}
"""What NVML's enumeration says of media engines and graphics, where the driver does not report the name."""

_GONE = frozenset({Code.NOT_FOUND, Code.INVALID_ARGUMENT})
"""What NVML says of an instance that was destroyed after it was listed."""

_UNREPORTED = UNAVAILABLE | {Code.NO_PERMISSION, Code.INVALID_ARGUMENT}
"""What NVML says where it does not report the places of a profile: to others than root, or by an old driver."""


class Mode(NamedTuple):
    """Whether the GPU is in MIG mode, and whether it is after its next reset."""

    current: bool
    pending: bool


class Kind(msgspec.Struct, frozen=True):
    """A profile of instances by its hardware id: how many slices one has and how many there can be."""

    id: int
    slices: int
    most: int


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """What can be on a GPU in its present mode. `kinds` has the profiles without any placement too.

    `unreported` says why the placements of some profiles, which have none here, are not known; empty where all are.
    `failure` is an error that may have withheld some of it for this time only, `unseen` one that withheld a profile:
    instances of it may exist unseen.
    """

    profiles: tuple[Profile, ...] = ()
    kinds: tuple[Kind, ...] = ()
    unreported: str = ""
    failure: NvmlError | None = None
    unseen: NvmlError | None = None

    def without_places(self, why: str) -> Offer:
        """The same where no partitions can be made: those that exist are known."""
        profiles = tuple(replace(profile, placements=()) for profile in self.profiles)
        return replace(self, profiles=profiles, unreported=self.unreported or why)


def read_mode(nvml: Nvml, handle: Any, *, subject: str) -> Mode | None:
    """The MIG mode; None for a GPU that has none."""
    mode = nvml.ask("nvmlDeviceGetMigMode", handle, subject=subject)
    return None if mode is None else Mode(mode[0] == 1, mode[1] == 1)


def read_mode_by_count(nvml: Nvml, handle: Any, *, subject: str) -> Mode | None:
    """The same by how many MIG devices there can be, which is 0 with the mode off. Raises NvmlError."""
    most = nvml.call("nvmlDeviceGetMaxMigDeviceCount", handle, subject=subject)
    return Mode(current=True, pending=True) if most else None


def read_resetless(nvml: Nvml, handle: Any, architecture: int, *, subject: str) -> bool:
    """Whether the mode can be changed without a reset: as the driver reports, else by the generation."""
    (reported,) = read_fields(nvml, handle, (RESETLESS_FIELD,), subject=subject)
    if reported is not None:
        return reported != 0
    return Architecture.HOPPER <= architecture < Architecture.UNKNOWN


def read_offer(nvml: Nvml, handle: Any, memory: int | None, *, subject: str) -> Offer:
    """All profiles of the driver, by hardware id; `memory` is the GPU's, in bytes.

    A question that fails costs what it reports. Raises NvmlError for a lost GPU or session.
    """
    kinds: dict[int, Kind] = {}
    profiles: list[Profile] = []
    withheld: dict[int, NvmlError] = {}
    unseen: NvmlError | None = None
    for number, info in read_gpu_profiles(nvml, handle, subject=subject):
        if isinstance(info, NvmlError):
            unseen = unseen or info
            continue
        if info.id in kinds:
            continue
        kinds[info.id] = Kind(info.id, info.sliceCount, info.instanceCount)
        places: tuple[Placement, ...] = ()
        try:
            places = _read_placements(nvml, handle, info.id, subject=subject)
        except NvmlError as error:
            if error.code in LOST | STALE:
                raise
            withheld[info.id] = error
        if places or info.id in withheld:
            profiles.append(
                Profile(
                    id=info.id,
                    name=profile_name(info, number, memory),
                    slices=info.sliceCount,
                    most=info.instanceCount,
                    memory_mib=info.memorySizeMB,
                    multiprocessors=info.multiprocessorCount,
                    copy_engines=info.copyEngineCount,
                    decoders=info.decoderCount,
                    encoders=info.encoderCount,
                    jpeg_engines=info.jpegCount,
                    ofa_engines=info.ofaCount,
                    placements=places,
                )
            )
    return Offer(
        profiles=tuple(profiles),
        kinds=tuple(kinds.values()),
        unreported=str(next(iter(withheld.values()), "")),
        failure=unseen or next((error for error in withheld.values() if error.code not in _UNREPORTED), None),
        unseen=unseen,
    )


def profile_name(info: Any, number: int, memory: int | None) -> str:
    """The name of a profile of GPU instances, as the driver reports it or derived; `memory` is the GPU's, in bytes."""
    text = getattr(info, "name", b"")
    reported = (text.decode("ascii", "replace") if isinstance(text, bytes) else text).removeprefix("MIG ").strip()
    return reported or derive_name(number, info.sliceCount, info.memorySizeMB, memory or 0)


def derive_name(number: int, slices: int, memory_mib: int, memory: int) -> str:
    """The name (`1g.10gb+me`) where the driver does not report it; `number` is of NVML's enumeration of profiles.

    The instance's share of the memory, in eighths rounded up, of the GPU's memory in GiB rounded up; halves go up.
    """
    if not memory:
        return f"{slices}g.{math.floor(memory_mib / 1024 + 0.5)}gb{_SUFFIXES.get(number, '')}"
    eighths = -(-memory_mib * 2**20 * 8 // memory)
    gigabytes = math.floor(eighths / 8 * -(-memory // 2**30) + 0.5)
    return f"{slices}g.{gigabytes}gb{_SUFFIXES.get(number, '')}"


def read_instances(
    nvml: Nvml,
    handle: Any,
    offer: Offer,
    compute: dict[int, tuple[Kind, ...]],
    *,
    subject: str,
    strict: bool = False,
) -> tuple[GpuInstance, ...]:
    """The GPU instances that exist, by id; the GPU must be in MIG mode. Raises NvmlError.

    `compute` keeps the kinds of compute instances of each profile. One that the driver lists and then does not know
    is left out, since it may have been destroyed meanwhile; where this is `strict`, it is an error.
    """
    found: dict[int, GpuInstance] = {}
    for kind in offer.kinds:
        for instance in _list(nvml, "nvmlDeviceGetGpuInstances", handle, kind, "c_nvmlGpuInstance_t", subject=subject):
            try:
                one = _gpu_instance(nvml, instance, compute, subject=subject)
            except NvmlError as error:
                if strict or error.code not in _GONE:
                    raise
                continue
            found[one.id] = one
    return tuple(found[id_] for id_ in sorted(found))


def _gpu_instance(nvml: Nvml, instance: Any, compute: dict[int, tuple[Kind, ...]], *, subject: str) -> GpuInstance:
    info = nvml.call("nvmlGpuInstanceGetInfo", instance, subject=subject)
    kinds = compute.get(info.profileId)
    if kinds is None:
        kinds = compute[info.profileId] = _compute_kinds(nvml, instance, subject=subject)
    inside: dict[int, ComputeInstance] = {}
    for kind in kinds:
        for one in _list(
            nvml, "nvmlGpuInstanceGetComputeInstances", instance, kind, "c_nvmlComputeInstance_t", subject=subject
        ):
            details = nvml.call("nvmlComputeInstanceGetInfo", one, subject=subject)
            uuid = nvml.call("nvmlDeviceGetUUID", details.device, subject=subject)
            nvml.handles[uuid] = details.device
            inside[details.id] = ComputeInstance(id=details.id, uuid=uuid, slices=kind.slices)
    return GpuInstance(
        id=info.id,
        profile=info.profileId,
        placement=Placement(info.placement.start, info.placement.size),
        compute=tuple(inside[id_] for id_ in sorted(inside)),
    )


def _compute_kinds(nvml: Nvml, instance: Any, *, subject: str) -> tuple[Kind, ...]:
    kinds: dict[int, Kind] = {}
    for _, info in read_compute_profiles(nvml, instance, subject=subject):
        if isinstance(info, NvmlError):
            raise info
        kinds.setdefault(info.id, Kind(info.id, info.sliceCount, info.instanceCount))
    return tuple(kinds.values())


def _read_placements(nvml: Nvml, handle: Any, profile: int, *, subject: str) -> tuple[Placement, ...]:
    """Where instances of the profile can be on the GPU, taken or not. Raises NvmlError."""
    count = ctypes.c_uint()
    name = "nvmlDeviceGetGpuInstancePossiblePlacements"
    nvml.call(name, handle, profile, None, ctypes.byref(count), subject=subject)
    if not count.value:
        return ()
    places = (nvml.pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    nvml.call(name, handle, profile, places, ctypes.byref(count), subject=subject)
    return tuple(sorted([Placement(place.start, place.size) for place in places[: count.value]]))


def _list(nvml: Nvml, name: str, of: Any, kind: Kind, element: str, *, subject: str) -> list[Any]:
    """The instances of one kind; NVML wants room for as many as there can be."""
    room = (getattr(nvml.pynvml, element) * max(kind.most, 1))()
    count = ctypes.c_uint()
    nvml.call(name, of, kind.id, room, ctypes.byref(count), subject=subject)
    return list(room[: count.value])


PROFILES = 0x12
COMPUTE_PROFILES = 0x9

MAKING = (
    "nvmlDeviceSetMigMode",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlDeviceGetGpuInstances",
    "nvmlDeviceGetGpuInstanceById",
    "nvmlGpuInstanceGetInfo",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlGpuInstanceGetComputeInstances",
    "nvmlGpuInstanceGetComputeInstanceById",
    "nvmlComputeInstanceGetInfo_v2",
    "nvmlComputeInstanceDestroy",
    "nvmlGpuInstanceDestroy",
)
"""C functions without another version, which making and removing a partition need."""

_Ask: TypeAlias = Callable[[int, int], Any]
"""Called with NVML's constant of a profile and the version of the structure."""

_NOT_OFFERED = UNAVAILABLE | {Code.INVALID_ARGUMENT}
_LACKING = frozenset({Code.FUNCTION_NOT_FOUND, Code.ARGUMENT_VERSION_MISMATCH})


def read_gpu_profiles(nvml: Nvml, gpu: Any, *, subject: str) -> Iterator[tuple[int, Any]]:
    """Each profile of GPU instances: NVML's constant, and the structure, or the NvmlError that it was refused with.

    Profiles that the driver does not offer are left out. Raises NvmlError for a lost GPU or session.
    """
    name = "nvmlDeviceGetGpuInstanceProfileInfo"
    return _read(lambda number, version: nvml.call(name, gpu, number, version=version, subject=subject), PROFILES)


def read_compute_profiles(nvml: Nvml, instance: Any, *, subject: str) -> Iterator[tuple[int, Any]]:
    """The same for compute instances in a GPU instance, which share its engines as NVML's default says."""
    name = "nvmlGpuInstanceGetComputeInstanceProfileInfo"
    return _read(
        lambda number, version: nvml.call(name, instance, number, 0, version=version, subject=subject), COMPUTE_PROFILES
    )


def find_missing(nvml: Nvml) -> NvmlError | None:
    """The error of the first function that making partitions needs and the driver lacks."""
    for name in MAKING:
        if not nvml.has(name):
            return NvmlError(Code.FUNCTION_NOT_FOUND, name)
    return None


def _read(ask: _Ask, count: int) -> Iterator[tuple[int, Any]]:
    answered = False
    refused: dict[int, NvmlError] = {}
    for number, answer in _ask_all(ask, range(count), 2):
        if isinstance(answer, NvmlError):
            refused[number] = answer
        else:
            answered = True
            yield number, answer
    for number, answer in _ask_all(ask, tuple(refused) if answered else range(count), 1):
        if isinstance(answer, NvmlError):
            refused.setdefault(number, answer)
        else:
            refused.pop(number, None)
            yield number, answer
    yield from refused.items()


def _ask_all(ask: _Ask, numbers: Iterable[int], version: int) -> Iterator[tuple[int, Any]]:
    """What one version of the function answers; nothing for what is not offered."""
    for number in numbers:
        try:
            yield number, ask(number, version)
        except NvmlError as error:
            if error.code in LOST | STALE:
                raise
            if error.code in _LACKING:
                return
            if error.code not in _NOT_OFFERED:
                yield number, error
