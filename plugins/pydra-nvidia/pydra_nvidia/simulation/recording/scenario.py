"""The scenario of a machine, from all that was seen of it. Pure.

Kinds of GPU are made out of single GPUs: what belongs to the product is taken together, what differs stays apart.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from pydra_nvidia.hardware_types import Architecture, LostGpu, Reading
from pydra_nvidia.host.pci import DRIVER
from pydra_nvidia.nvml.errors import Code, code_name
from pydra_nvidia.simulation.faults import Fault
from pydra_nvidia.simulation.model import GpuProfile, MigModel, Model
from pydra_nvidia.simulation.recording.anonymise import Names
from pydra_nvidia.simulation.recording.gpus import GpuRecord
from pydra_nvidia.simulation.recording.host import Slot
from pydra_nvidia.simulation.recording.mig_tables import with_sizes
from pydra_nvidia.simulation.scenario import (
    LISTS,
    ComputePreset,
    ConditionPart,
    DriverPart,
    GroupPart,
    HostPart,
    Preset,
    Scenario,
)

HANDLE = "nvmlDeviceGetHandleByIndex_v2"


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """A machine. `records` are the GPUs that answer, `slots` all its functions in the order of their addresses."""

    reading: Reading
    driver: DriverPart
    host: HostPart
    slots: tuple[Slot, ...]
    records: tuple[GpuRecord, ...] = ()
    settings: Mapping[str, Any] = {}


def build_scenario(seen: Seen, names: Names, bundled: Iterable[Model]) -> Scenario:
    """A scenario whose machine reads as the one that was seen, with other names. Virtual functions are left out."""
    bundled = tuple(bundled)
    slots = [slot for slot in seen.slots if not slot.function.is_virtual]
    records = {one.gpu.pci: one for one in seen.records}
    unified = unify([one.model for one in records.values()], bundled)
    own = dict(zip(records, unified, strict=True))
    silent = [slot for slot in slots if slot.function.address not in records]
    models = own | {slot.function.address: guess(slot, unified, bundled) for slot in silent}
    named = name_models(models[slot.function.address] for slot in slots)
    keys = {address: next(key for key, one in named.items() if one == model) for address, model in models.items()}
    minors = _minors(slots, records)
    read = {one.gpu.index for one in seen.records}
    lost = _find_lost(silent, [one for one in seen.reading.lost if one.index not in read])
    known = _Known(keys=keys, minors=minors, records=records, lost=lost)
    groups = [_group(slot, known, names) for slot in slots]
    if seen.driver.state != "loaded":  # the functions are free for it
        groups = [replace(one, driver=one.driver or DRIVER) for one in groups]
    return Scenario(
        seed=names.seed(),
        driver=replace(seen.driver, privileged=all(one.privileged for one in seen.records)),
        host=seen.host,
        settings=seen.settings,
        models=named,
        gpus=merge_groups(groups),
        faults=(*_errors(records.values()), *_losses(lost, minors)),
    )


def merge_groups(groups: Iterable[GroupPart]) -> tuple[GroupPart, ...]:
    """The same GPUs in the same order, neighbours that are alike in one group."""
    merged: list[GroupPart] = []
    for group in groups:
        last = merged[-1] if merged else None
        if last is None or group.instances or _shared(last) != _shared(group):
            merged.append(group)
        else:
            lists = {name: (*getattr(last, name), *getattr(group, name)) for name in LISTS}
            merged[-1] = replace(last, count=last.count + group.count, **lists)
    return tuple(merged)


def _shared(group: GroupPart) -> object:
    """What GPUs of one group have in common."""
    return replace(group, count=1, **dict.fromkeys(LISTS, ())), [bool(getattr(group, name)) for name in LISTS]


class _Known(msgspec.Struct, frozen=True, kw_only=True):
    """Of each function by its address: its model's name, its minor number, the GPU that answers or is lost there."""

    keys: Mapping[str, str]
    minors: Mapping[str, int]
    records: Mapping[str, GpuRecord]
    lost: Mapping[str, LostGpu]


def _group(slot: Slot, known: _Known, names: Names) -> GroupPart:
    function = slot.function
    address = function.address
    place: dict[str, Any] = {
        "model": known.keys[address],
        "minors": (known.minors[address],),
        "addresses": (address,),
        "roots": (function.root,) if function.root else (),
        "bridges": (slot.bridges,) if slot.bridges else (),
        "numa": (-1 if function.numa is None else function.numa,),
        "iommu_groups": (int(function.group),) if function.group.isdecimal() else (),
        "driver": function.driver,
    }
    record = known.records.get(address)
    if record is None:
        gone = address in known.lost and known.lost[address].code == Code.GPU_IS_LOST
        return GroupPart(uuids=(names.gpu(address),), condition=ConditionPart(lost=gone), **place)
    gpu, fabric = record.gpu, record.fabric
    return GroupPart(
        uuids=(names.gpu(gpu.uuid),),
        serials=(names.serial(gpu.serial),) if gpu.serial else (),
        modules=() if gpu.module is None else (gpu.module,),
        links=(record.links,) if record.links else (),
        fabric=None if fabric is None else replace(fabric, cluster=names.cluster(fabric.cluster)),
        mig=gpu.mig is not None and gpu.mig.enabled,
        mig_pending=None if gpu.mig is None or gpu.mig.pending == gpu.mig.enabled else gpu.mig.pending,
        instances=tuple(_renamed(one, names) for one in record.presets),
        condition=record.condition,
        persistence=gpu.persistence is not False,
        **place,
    )


def _renamed(preset: Preset, names: Names) -> Preset:
    compute = (one if isinstance(one, ComputePreset) else ComputePreset(slices=one) for one in preset.compute or ())
    return replace(preset, compute=tuple(replace(one, uuid=names.partition(one.uuid)) for one in compute))


def _minors(slots: Iterable[Slot], records: Mapping[str, GpuRecord]) -> dict[str, int]:
    """As they are, where they are known; what has none gets one that is free."""
    found = {address: one.gpu.minor for address, one in records.items()}
    rest: list[str] = []
    for slot in slots:
        address = slot.function.address
        if slot.minor is not None and slot.minor not in found.values():
            found.setdefault(address, slot.minor)
        if address not in found:
            rest.append(address)
    free = (number for number in range(len(found) + len(rest)) if number not in set(found.values()))
    return found | dict(zip(rest, free, strict=False))


def _find_lost(silent: Iterable[Slot], lost: Iterable[LostGpu]) -> dict[str, LostGpu]:
    """Which function each lost GPU is: NVML counts in the order of addresses, and tells of a lost one nothing else."""
    theirs = [slot.function.address for slot in silent if slot.function.driver == DRIVER]
    return dict(zip(theirs, sorted(lost, key=lambda one: one.index), strict=False))


def _errors(records: Iterable[GpuRecord]) -> list[Fault]:
    return [
        Fault(op=symbol, do="raise", device=record.gpu.minor, code=code)
        for record in records
        for symbol, code in record.errors.items()
    ]


def _losses(lost: Mapping[str, LostGpu], minors: Mapping[str, int]) -> list[Fault]:
    return [
        Fault(op=HANDLE, do="raise", device=minors[address], code=code_name(one.code))
        for address, one in lost.items()
        if one.code != Code.GPU_IS_LOST
    ]


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
