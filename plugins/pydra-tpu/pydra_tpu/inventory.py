"""Decides what is published: a host and its sub-slices, devices that exclude each other by a counter for each chip."""

from __future__ import annotations

import uuid

from pydra import AttributeValue, Capacity, CounterConsumption, CounterSet, Device, Inventory, Quantity
from pydra_tpu.devices import find_mesh_problems, list_offered
from pydra_tpu.geometry import SubSlice, locate
from pydra_tpu.hardware_types import Chip, Host
from pydra_tpu.health import diagnose
from pydra_tpu.settings import Offer

COUNTER_SET = "chips"
NAMESPACE = uuid.UUID("6b0f3c52-0f0e-5c0e-9a3b-54c3d8a1f7e0")


def build_inventory(host: Host, offer: Offer = Offer.SUB_SLICES) -> Inventory:
    """The devices in the order in which a scheduler takes them: the whole host first.

    A cluster that has no counters publishes as many devices from the start of the list as do not overlap. Devices that
    do not overlap consume counters as well: a claim may hold a device of another offer, which the settings had before.
    """
    offered = list_offered(host, offer)
    return Inventory(
        devices=tuple(_build_device(name, one, host) for name, one in offered.items()),
        counter_sets=(
            (CounterSet(name=COUNTER_SET, counters=_count([chip.index for chip in host.chips])),) if offered else ()
        ),
        unreadable=(*host.problems, *find_mesh_problems(host), *_find_shared_groups(host)),
    )


def _find_shared_groups(host: Host) -> list[str]:
    """A text for each IOMMU group with several chips: there is no device for some of them."""
    texts = []
    for group in sorted({group for chip in host.chips for group in chip.groups}):
        chips = [str(chip.index) for chip in host.chips if group in chip.groups]
        if len(chips) > 1:
            texts.append(
                f"chips {', '.join(chips)} are in one IOMMU group ({group}), which only one process can open: they are "
                "only offered together; to separate them, enable ACS on the PCIe ports above them"
            )
    return texts


def _build_device(name: str, sub_slice: SubSlice, host: Host) -> Device:
    chips = [host.chips[index] for index in sub_slice.chips]
    generation, size = chips[0].generation, len(chips)
    return Device(
        name=name,
        attributes=_build_attributes(name, sub_slice, host, chips),
        capacity={
            "chips": Capacity(size),
            "cores": Capacity(size * generation.cores),
            "memory": Capacity(f"{size * generation.memory}Gi"),
        },
        consumes_counters=(CounterConsumption(counter_set=COUNTER_SET, counters=_count(sub_slice.chips)),),
        health=diagnose(chips),
    )


def _build_attributes(name: str, sub_slice: SubSlice, host: Host, chips: list[Chip]) -> dict[str, AttributeValue]:
    """Google's attributes mean what they mean there: they speak of the node, whatever part of it the device is."""
    generation, facts, whole = chips[0].generation, host.facts, host.slice
    functions = [function for chip in chips for function in chip.functions]
    attributes: dict[str, AttributeValue | None] = {
        "brand": "Google",
        "productName": generation.product,
        "tpuGen": generation.name,
        "accelerator": facts.accelerator,
        "chipCount": len(host.chips),
        "topology": generation.topology(facts.topology) if facts.topology else None,
        "index": host.runtime_order.index(sub_slice.chips[0]),
        "uuid": str(uuid.uuid5(NAMESPACE, f"{host.uuid}/{name}")) if host.uuid else None,
        "shape": generation.topology(sub_slice.bounds),
        "wholeHost": len(chips) == len(host.chips),
        "acceleratorType": whole.accelerator_type if whole else None,
        "hostBounds": str(whole.hosts) if whole else None,
        "wrap": whole.wrap_text if whole else None,
        "workerId": facts.worker_id,
        # A longer string is not valid in the API, and a part of it could be another slice's name.
        "sliceName": facts.slice_name if len(facts.slice_name or "") <= 64 else None,
        **_build_coordinates(sub_slice, host),
        "resource.kubernetes.io/pciBusID": chips[0].address if len(chips) == 1 else None,
        "resource.kubernetes.io/pcieRoot": _common([one.pcie_root or None for one in functions]),
        "resource.kubernetes.io/numaNode": _common([one.numa_node for one in functions]),
    }
    return {key: value for key, value in attributes.items() if value is not None}


def _build_coordinates(sub_slice: SubSlice, host: Host) -> dict[str, AttributeValue | None]:
    """Where a whole host begins in the slice, as JAX's `coords`; nothing as long as it is not known.

    Workers are counted row by row, x first. Parts of a host have none: Google's tables have chips 0 and 1 in a column
    (1x2), JAX has them in a row, and which of the two the hardware has is documented nowhere.
    """
    whole = host.slice
    if whole is None or len(sub_slice.chips) < len(host.chips):
        return {}
    worker = 0 if whole.hosts.size == 1 else host.facts.worker_id
    if worker is None or worker >= whole.hosts.size:
        return {}
    places = zip("xyz", locate(worker, whole.hosts), host.bounds, strict=True)
    return {name: place * length for name, place, length in places}


def _common(values: list[str | None] | list[int | None]) -> str | int | None:
    """The value that all have; None if they differ."""
    first = values[0]
    return first if all(one == first for one in values) else None


def _count(chips: tuple[int, ...] | list[int]) -> dict[str, Quantity]:
    return {f"chip-{index}": 1 for index in chips}
