"""The scenario of a machine, from all that was seen of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from pydra_nvidia.hardware_types import LostGpu, Reading
from pydra_nvidia.host.pci import DRIVER
from pydra_nvidia.nvml.errors import Code, code_name
from pydra_nvidia.recording.anonymise import Names
from pydra_nvidia.recording.details import GpuRecord
from pydra_nvidia.recording.models import guess, name_models, unify
from pydra_nvidia.recording.slots import Slot
from pydra_nvidia.simulation.faults import Fault
from pydra_nvidia.simulation.model import Model
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
        "numa": (function.numa,),
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
