"""Adds what the admin decides to devices: NUMA nodes as lists, and what pods with a device need of the node.

Both are the same for every backend, and say nothing of its hardware.
Source: Kubernetes 1.37, the helper for `resource.kubernetes.io/numaNode` of drivers in Go (KEP-6072).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec.structs import replace

from pydra.devices import Device, Inventory, NodeAllocatable, Quantity
from pydra.inventory.api_rules import ATTRIBUTE_VALUES

NUMA_NODE = "resource.kubernetes.io/numaNode"


class Overhead(msgspec.Struct, frozen=True, kw_only=True):
    """How much of one of the node's resources a pod with a device needs, and each of its containers that use it."""

    per_pod: Quantity | None = None
    per_container: Quantity | None = None


class Additions(msgspec.Struct, frozen=True, kw_only=True):
    """What is added to each device.

    `near` has each NUMA node with those near it, itself first; None: `numaNode` stays a number. `overheads` are by the
    node's resource.
    """

    near: Mapping[int, tuple[int, ...]] | None = None
    overheads: Mapping[str, Overhead] = {}


def add_to_inventory(inventory: Inventory, additions: Additions) -> Inventory:
    """Return the inventory with the additions, the same object if there are none."""
    if additions.near is None and not additions.overheads:
        return inventory
    return replace(inventory, devices=tuple(_add(device, additions) for device in inventory.devices))


def _add(device: Device, additions: Additions) -> Device:
    node = device.attributes.get(NUMA_NODE)
    if additions.near is not None and isinstance(node, int):
        others = sum(len(value) if isinstance(value, tuple) else 1 for value in device.attributes.values()) - 1
        nodes = additions.near.get(node, (node,))[: max(1, ATTRIBUTE_VALUES - others)]
        device = replace(device, attributes={**device.attributes, NUMA_NODE: nodes})
    if additions.overheads:
        resources = dict(device.node_allocatable)
        for name, one in additions.overheads.items():
            mapped = resources.get(name, NodeAllocatable())
            resources[name] = replace(mapped, per_pod=one.per_pod, per_container=one.per_container)
        device = replace(device, node_allocatable=resources)
    return device


def read_near_nodes(sysfs: Path) -> Mapping[int, tuple[int, ...]]:
    """Read which NUMA nodes are near each one: the nearest others, unless they are known to be of another socket.

    A node whose distances cannot be read is not in it.
    """
    directory = sysfs / "devices/system/node"
    numbers = sorted(int(path.name[4:]) for path in directory.glob("node[0-9]*"))
    sockets = {number: _read_socket(sysfs, number) for number in numbers}
    near: dict[int, tuple[int, ...]] = {}
    for number in numbers:
        distances = dict(zip(numbers, _read_numbers(directory / f"node{number}/distance"), strict=False))
        others = {one: distance for one, distance in distances.items() if one != number}
        if number in distances:
            nearest = [one for one, distance in others.items() if distance == min(others.values())]
            own = sockets[number]
            near[number] = (number, *(one for one in nearest if None in (own, sockets[one]) or own == sockets[one]))
    return near


def _read_socket(sysfs: Path, node: int) -> int | None:
    """Return the socket of the node's first CPU; None if it has no CPU, or the kernel does not say."""
    first = _read(sysfs / f"devices/system/node/node{node}/cpulist").replace("-", ",").partition(",")[0]
    found = _read_numbers(sysfs / f"devices/system/cpu/cpu{first}/topology/physical_package_id") if first else ()
    return found[0] if found else None


def _read_numbers(path: Path) -> tuple[int, ...]:
    words = _read(path).split()
    return tuple(map(int, words)) if all(word.isdigit() for word in words) else ()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
