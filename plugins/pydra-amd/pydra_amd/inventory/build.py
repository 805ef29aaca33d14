"""Decides what is published: whole GPUs and partitions, with counters where the mode of a GPU is chosen by claims."""

from __future__ import annotations

from collections.abc import Mapping

from pydra import Capacity, Device, Inventory, Taint, TaintEffect
from pydra_amd.device_names import DRIVER
from pydra_amd.hardware_types import Reading
from pydra_amd.health.diagnosis import Assessment
from pydra_amd.inventory.attributes import build_attributes
from pydra_amd.inventory.counters import build_consumption, build_counter_set
from pydra_amd.offering import Offered, list_offered
from pydra_amd.settings import Partitioning
from pydra_amd.sharing import build_shared_capacity

CONFLICT = f"{DRIVER}/memory-partition-conflict"
"""AMD's taint for devices of a memory mode that the GPUs cannot have now. It also evicts: a pod that was given one in
the moment before cannot start, and none that runs has one."""


def build_inventory(
    reading: Reading,
    partitioning: Partitioning,
    assessments: Mapping[str, Assessment] = {},
    memory: Mapping[str, str] = {},
    *,
    sharing: bool = False,
) -> Inventory:
    """The devices in the order in which a scheduler takes them, each GPU's counter set, and what cannot be used.

    `assessments` are by a GPU's address; one that is missing is well. `memory` has the memory mode that GPUs must keep
    for claims, by address: devices of other memory modes are tainted, since no counter can say that of several GPUs.

    A cluster that has no counters publishes as many devices from the start of the list as do not overlap, so whole GPUs
    are first.
    """
    offered = sorted(list_offered(reading, partitioning, sharing=sharing).values(), key=lambda one: not one.is_whole)
    chosen: dict[str, list[Offered]] = {}
    for one in offered:
        if one.chosen:
            chosen.setdefault(one.gpu.address, []).append(one)
    return Inventory(
        devices=tuple(
            _build_device(
                one, chosen, reading, assessments.get(one.gpu.address, Assessment()), memory.get(one.gpu.address)
            )
            for one in offered
        ),
        counter_sets=tuple(build_counter_set(chosen[address]) for address in sorted(chosen)),
        unreadable=tuple(
            f"GPU {address} is bound to amdgpu and cannot be used: {why}; the kernel's log says more"
            for address, why in sorted(reading.problems.items())
        ),
    )


def _build_device(
    offered: Offered,
    chosen: Mapping[str, list[Offered]],
    reading: Reading,
    assessment: Assessment,
    memory: str | None,
) -> Device:
    conflict = Taint(key=CONFLICT, value=memory or "", effect=TaintEffect.NO_EXECUTE)
    is_conflicting = memory is not None and offered.mode is not None and offered.mode.memory != memory
    return Device(
        name=offered.name,
        attributes=build_attributes(offered, reading),
        capacity=_build_capacity(offered),
        allow_multiple_allocations=offered.shared,
        consumes_counters=(build_consumption(offered, chosen[offered.gpu.address]),) if offered.chosen else (),
        health=assessment.health,
        taints=(*assessment.taints, conflict) if is_conflicting else assessment.taints,
    )


def _build_capacity(offered: Offered) -> dict[str, Capacity]:
    """As AMD's driver has it, but memory that cannot be read is left out instead of guessed.

    In the memory mode nps1 the partitions of a GPU share its memory, and each one's part of it is not enforced.
    """
    gpu, one = offered.gpu, offered.partition
    memory = one.memory if one and one.memory else gpu.memory // offered.count
    if offered.shared and one is not None:
        return build_shared_capacity(one, memory)
    found = {
        "memory": memory,
        "computeUnits": one.compute_units if one else gpu.compute_units // offered.count,
        "simdUnits": one.simds if one else gpu.simds // offered.count,
        "partitions": 1 if offered.chosen else 0,
    }
    return {name: Capacity(value) for name, value in found.items() if value}
