"""Kinds of GPU out of single GPUs: what belongs to the product is taken together, what differs stays apart. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from pydra_nvidia.hardware_types import Architecture
from pydra_nvidia.recording.slots import Slot
from pydra_nvidia.recording.tables import with_sizes
from pydra_nvidia.simulation.model import GpuProfile, MigModel, Model

Product = tuple[str, str, str]
_SMALLEST = 16


def unify(models: Sequence[Model], bundled: Iterable[Model]) -> tuple[Model, ...]:
    """The same models in the same order, alike for GPUs that are alike.

    What a driver tells in one mode of the GPU only, as profiles, is taken from another GPU of the product, or from
    what is known of it. Figures that vary from board to board, as reserved memory, are the first one's.
    """
    known = {one.pci.device: one.mig for one in bundled}
    first: dict[Product, Model] = {}
    tables: dict[Product, MigModel] = {}
    for model in models:
        first.setdefault(_product(model), model)
        if model.mig is not None:
            product = _product(model)
            tables[product] = _merge(tables.get(product), model.mig)
    found = []
    for model in models:
        alike, mig = first[_product(model)], tables.get(_product(model))
        if mig is not None and not mig.profiles and (other := known.get(model.pci.device)) is not None:
            mig = with_sizes(replace(mig, profiles=other.profiles))
        found.append(
            replace(
                model,
                mig=None if model.mig is None else mig,
                reserved=alike.reserved,
                bar1=alike.bar1,
                pci=alike.pci,
                clocks=alike.clocks,
                power_limit=alike.power_limit,
                vbios=alike.vbios,
                gsp_firmware=alike.gsp_firmware,
            )
        )
    return tuple(found)


def guess(slot: Slot, models: Iterable[Model], bundled: Iterable[Model]) -> Model:
    """The kind of a GPU that NVML cannot reach: one with the same PCI ids here, or known; else hardly anything."""
    pci = slot.pci
    same = next((one for one in models if _ids(one) == (pci.device, pci.subsystem_device)), None)
    if same is not None:
        return same
    known = next((one for one in bundled if one.pci.device == pci.device), None)
    if known is not None:
        return replace(
            known, pci=replace(pci, generation=known.pci.generation, width=known.pci.width), serial=False, fields={}
        )
    return Model(
        name=slot.model or slot.function.name or f"NVIDIA device {pci.device}",
        architecture=int(Architecture.UNKNOWN),
        compute=(0, 0),
        memory=max((*pci.regions, _SMALLEST)),
        pci=pci,
        serial=False,
        module=False,
    )


def name_models(models: Iterable[Model]) -> Mapping[str, Model]:
    """Each different model with a name of its own, after what the product is called."""
    named: dict[str, Model] = {}
    for model in models:
        if model not in named.values():
            base = re.sub(r"[^a-z0-9]+", "-", model.name.lower()).strip("-").removeprefix("nvidia-") or "gpu"
            named[_free(base, named.__contains__)] = model
    return named


def _free(base: str, is_taken: Callable[[object], bool]) -> str:
    name, number = base, 1
    while is_taken(name):
        number += 1
        name = f"{base}-{number}"
    return name


def _merge(one: MigModel | None, other: MigModel) -> MigModel:
    if one is None:
        return other
    longer, shorter = (one, other) if len(one.profiles) >= len(other.profiles) else (other, one)
    compute = {profile.id: profile.compute for profile in shorter.profiles}
    return replace(
        longer,
        profiles=tuple(_with_compute(profile, compute) for profile in longer.profiles),
        most_devices=max(one.most_devices, other.most_devices),
        tells_profiles_when_off=one.tells_profiles_when_off and other.tells_profiles_when_off,
    )


def _with_compute(profile: GpuProfile, others: Mapping[int, tuple[object, ...]]) -> GpuProfile:
    return profile if profile.compute else replace(profile, compute=others.get(profile.id, ()))


def _product(model: Model) -> Product:
    return model.name, *_ids(model)


def _ids(model: Model) -> tuple[str, str]:
    return model.pci.device, model.pci.subsystem_device
