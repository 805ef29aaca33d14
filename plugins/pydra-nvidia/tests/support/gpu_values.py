"""GPUs as the telemetry reads them, for tests of pure functions, with the figures of the simulation's kinds of GPU."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from msgspec.structs import replace

from pydra_nvidia.hardware_types import ComputeInstance, Gpu, GpuInstance, Placement, Profile
from pydra_nvidia.simulation.gpu_model import GpuProfile
from pydra_nvidia.simulation.scenario_file import bundled_model

H100 = "h100-80gb"


@cache
def find_kind(model: str) -> GpuProfile:
    return bundled_model(model, "the tests")


@cache
def find_profiles(model: str = H100) -> tuple[Profile, ...]:
    """All profiles of a kind of GPU; empty where it cannot be partitioned."""
    mig = find_kind(model).mig
    return tuple(
        Profile(
            id=one.id,
            name=one.name,
            slices=one.slices,
            most=one.most,
            memory_mib=one.memory,
            multiprocessors=one.multiprocessors,
            copy_engines=one.copy_engines,
            decoders=one.decoders,
            encoders=one.encoders,
            jpeg_engines=one.jpeg_engines,
            ofa_engines=one.ofa_engines,
            placements=tuple(Placement(start, one.size) for start in one.starts),
        )
        for one in (mig.profiles if mig else ())
    )


def find_profile(name: str, model: str = H100) -> Profile:
    return next(one for one in find_profiles(model) if one.name == name)


def make_instance(
    profile: Profile, start: int, *, number: int = 1, compute: Iterable[int] | None = None
) -> GpuInstance:
    """A GPU instance; `compute` are the slices of its compute instances, by default one that fills it."""
    return GpuInstance(
        id=number,
        profile=profile.id,
        placement=next(one for one in profile.placements if one.start == start),
        compute=tuple(
            ComputeInstance(id=id_, uuid=f"MIG-{number}-{id_}", slices=size)
            for id_, size in enumerate((profile.slices,) if compute is None else compute)
        ),
    )


def gpu(number: int, name: str, address: str = "", /, *, model: str = H100, **changes: Any) -> Gpu:
    """A GPU whose UUID and, unless given, PCI address contain `name`."""
    kind = find_kind(model)
    made = Gpu(
        index=number,
        minor=number,
        uuid=f"GPU-{name}",
        name=kind.name,
        brand=kind.brand,
        architecture=kind.architecture,
        compute=kind.compute,
        pci=address or f"0000:{name}:00.0",
        memory=kind.memory << 20,
    )
    return replace(made, **changes)
