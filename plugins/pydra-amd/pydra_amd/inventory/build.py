"""Decides what is published: whole GPUs and partitions, with counters where the mode of a GPU is chosen by claims."""

from __future__ import annotations

from collections.abc import Mapping

from pydra import Capacity, Device, Inventory, Taint, TaintEffect
from pydra_amd.devices import DRIVER, Offered, OfferedFunction, list_functions, list_offered
from pydra_amd.hardware_types import Reading
from pydra_amd.inventory.attributes import build_attributes, build_function_attributes
from pydra_amd.inventory.counters import build_consumption, build_counter_set, build_whole_consumption
from pydra_amd.models import BY_DEVICE
from pydra_amd.settings import Partitioning
from pydra_amd.sharing import build_shared_capacity
from pydra_pci import Assessment, PciFunction

GIB = 1 << 30
_KEPT_OF_VIRTUAL = 512 << 20
"""More than what gim and the firmware keep of a virtual function's part: the guest with the only virtual function of an
MI300X sees 320 MiB less than 192 GiB."""

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
    functions = list_functions(reading).values()
    passed = {one.gpu.address for one in functions if one.gpu}
    drawing: dict[str, list[Offered]] = {}
    for one in offered:
        if one.chosen or one.gpu.address in passed:
            drawing.setdefault(one.gpu.address, []).append(one)

    def assess(address: str) -> Assessment:
        return assessments.get(address, Assessment())

    return Inventory(
        devices=(
            *(
                _build_device(one, drawing, reading, assess(one.gpu.address), memory.get(one.gpu.address))
                for one in offered
            ),
            *(_build_function(one, drawing, reading, assess(one.function.address)) for one in functions),
        ),
        counter_sets=tuple(build_counter_set(drawing[address]) for address in sorted(drawing)),
        unreadable=tuple(
            f"GPU {address} is bound to amdgpu and cannot be used: {why}; the kernel's log says more"
            for address, why in sorted(reading.problems.items())
        ),
    )


def _build_device(
    offered: Offered,
    drawing: Mapping[str, list[Offered]],
    reading: Reading,
    assessment: Assessment,
    memory: str | None,
) -> Device:
    devices = drawing.get(offered.gpu.address)
    conflict = Taint(key=CONFLICT, value=memory or "", effect=TaintEffect.NO_EXECUTE)
    is_conflicting = memory is not None and offered.mode is not None and offered.mode.memory != memory
    return Device(
        name=offered.name,
        attributes=build_attributes(offered, reading),
        capacity=_build_capacity(offered),
        allow_multiple_allocations=offered.shared,
        consumes_counters=(build_consumption(offered, devices),) if devices else (),
        health=assessment.health,
        taints=(*assessment.taints, conflict) if is_conflicting else assessment.taints,
    )


def _build_function(
    offered: OfferedFunction, drawing: Mapping[str, list[Offered]], reading: Reading, assessment: Assessment
) -> Device:
    """It takes all of its GPU, which it draws from nothing any more once it is taken: nobody else sees it then."""
    gpu = offered.gpu
    return Device(
        name=offered.name,
        attributes=build_function_attributes(offered.function),
        capacity=_build_function_capacity(offered.function, reading),
        consumes_counters=(build_whole_consumption(gpu, drawing[gpu.address]),) if gpu else (),
        health=assessment.health,
        taints=assessment.taints,
    )


def _build_function_capacity(function: PciFunction, reading: Reading) -> dict[str, Capacity]:
    """By the model, which does not depend on the driver that has it; virtual functions have equal parts of theirs.

    Of a virtual function's memory this is a lower bound: nothing on the host says how much its guest will see.
    """
    siblings = [one for one in reading.functions if function.parent and one.parent == function.parent]
    place = function.parent or function.address
    model = next((BY_DEVICE.get(one.device) for one in reading.functions if one.address == place), None)
    if model is None:
        return {}
    parts, kept = len(siblings) or 1, _KEPT_OF_VIRTUAL if siblings else 0
    return {
        "memory": Capacity(model.memory * GIB // parts - kept),
        "computeUnits": Capacity(model.compute_units // parts),
        "simdUnits": Capacity(model.simds // parts),
    }


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
