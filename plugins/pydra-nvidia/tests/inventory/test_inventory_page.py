"""The page about devices names what is published, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from pydra import Inventory
from pydra_nvidia.hardware_types import Fabric, FabricPartition, NvLinks, SharedFabric
from pydra_nvidia.settings import Shares

PAGE = Path(__file__).resolve().parents[2] / "docs" / "devices.md"
FABRIC = Fabric(cluster="3b1f8a52-9f5e-4c1d-8a77-0d2b6c9e4f10", clique=1)


def names_on_page(section: str) -> set[str]:
    """The names in the first column of the section's table."""
    text = PAGE.read_text().split(f"\n## {section}\n")[1].split("\n## ")[0]
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    return {re.sub(r"<\w+>", "#", name) for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])}


def inventories(boards: Any) -> Iterator[Inventory]:
    full = boards.gpu(addressing=0, module=1, links=NvLinks(total=18, up=18, switched=True), fabric=FABRIC)
    made = boards.gpu("A100", minor=1, mig=True, made=[(9, 0)])
    reading = boards.reading(full, made, boards.gpu("T4", minor=2))
    reading = replace(reading, fabric=SharedFabric(partitions=(FabricPartition(id=8, gpus=(full.pci,)),)))
    yield boards.inventory(reading, dynamic_mig=True, vfio=True)
    yield boards.inventory(reading, consumable_shares=4)
    yield boards.inventory(reading, consumable_shares=Shares.MEMORY)
    most = tuple(replace(one, most=2) for one in boards.profiles("H100"))
    yield boards.inventory(boards.reading(replace(full, mig=replace(full.mig, profiles=most))), dynamic_mig=True)


def without_numbers(names: set[str]) -> set[str]:
    return {re.sub(r"(?<=memorySlice)\d+|(?<=partition)\d+|(?<=-)\d+$", "#", name) for name in names}


def test_every_name_that_is_published_is_on_the_page_and_the_other_way_round(boards: Any) -> None:
    attributes: set[str] = set()
    capacities: set[str] = set()
    counters: set[str] = set()
    for inventory in inventories(boards):
        for device in inventory.devices:
            attributes |= set(device.attributes)
            capacities |= set(device.capacity)
        for one in inventory.counter_sets:
            counters |= set(one.counters)
    assert names_on_page("Attributes") == without_numbers(attributes)
    assert names_on_page("Capacities") == without_numbers(capacities)
    assert names_on_page("Counters") == without_numbers(counters)
