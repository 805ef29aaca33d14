"""What the admin adds to every device: NUMA nodes near it, and what its pods need of the node."""

from __future__ import annotations

from pathlib import Path

import pytest

from pydra.devices import AttributeValue, Capacity, Device, Inventory, NodeAllocatable
from pydra.inventory.api_rules import check_device
from pydra.inventory.numa_nodes_and_overhead import NUMA_NODE, Additions, Overhead, add_to_inventory, read_near_nodes

FOUR_EACH = ("10 11 12 12 32 32 32 32", "11 10 12 12 32 32 32 32", "12 12 10 11 32 32 32 32", "12 12 11 10 32 32 32 32")


def write_sysfs(path: Path, distances: dict[int, str], sockets: dict[int, int]) -> Path:
    """The files of a machine, each of whose NUMA nodes has the two CPUs that follow those of the node before it."""
    for node, text in distances.items():
        directory = path / f"devices/system/node/node{node}"
        directory.mkdir(parents=True)
        if text:
            (directory / "distance").write_text(f"{text}\n")
        (directory / "cpulist").write_text(f"{2 * node}-{2 * node + 1}\n" if node in sockets else "\n")
        topology = path / f"devices/system/cpu/cpu{2 * node}/topology"
        topology.mkdir(parents=True)
        if node in sockets:
            (topology / "physical_package_id").write_text(f"{sockets[node]}\n")
    return path


@pytest.mark.parametrize(
    ("distances", "sockets", "near"),
    [
        pytest.param({0: "10"}, {0: 0}, {0: (0,)}, id="one node"),
        pytest.param({0: "10 21", 1: "21 10"}, {0: 0, 1: 1}, {0: (0,), 1: (1,)}, id="a node in each socket"),
        pytest.param({0: "10 12", 1: "12 10"}, {0: 0, 1: 0}, {0: (0, 1), 1: (1, 0)}, id="two nodes in a socket"),
        pytest.param(
            dict(enumerate(FOUR_EACH)) | {4: "", 5: "x"},
            {},
            {0: (0, 1), 1: (1, 0), 2: (2, 3), 3: (3, 2)},
            id="only the nearest, and none whose distances cannot be read",
        ),
        pytest.param({0: "10 14", 1: "14 10"}, {0: 0}, {0: (0, 1), 1: (1, 0)}, id="a node without CPUs"),
        pytest.param({0: "10 12", 4: "12 10"}, {0: 0, 4: 0}, {0: (0, 4), 4: (4, 0)}, id="numbers with a gap"),
        pytest.param({}, {}, {}, id="a kernel without NUMA"),
    ],
)
def test_the_nearest_nodes_of_the_same_socket_are_near(
    distances: dict[int, str], sockets: dict[int, int], near: dict[int, tuple[int, ...]], tmp_path: Path
) -> None:
    assert read_near_nodes(write_sysfs(tmp_path, distances, sockets)) == near


def test_with_lists_every_device_with_a_numa_node_has_a_list_that_begins_with_it() -> None:
    given: tuple[dict[str, AttributeValue], ...] = (
        {NUMA_NODE: 1, "a": "x"},
        {NUMA_NODE: 7},
        {"a": "x"},
        {NUMA_NODE: (3, 2)},
    )
    inventory = Inventory(devices=tuple(Device(name=f"d{at}", attributes=one) for at, one in enumerate(given)))
    added = add_to_inventory(inventory, Additions(near={1: (1, 0)}))
    published = [device.attributes for device in added.devices]
    assert published == [{NUMA_NODE: (1, 0), "a": "x"}, {NUMA_NODE: (7,)}, {"a": "x"}, {NUMA_NODE: (3, 2)}]
    assert add_to_inventory(inventory, Additions()) is inventory


def test_a_list_is_cut_to_the_values_that_a_device_may_have() -> None:
    peers = Device(name="d", attributes={NUMA_NODE: 0, "peers": tuple(map(str, range(45)))})
    (device,) = add_to_inventory(Inventory(devices=(peers,)), Additions(near={0: tuple(range(8))})).devices
    assert device.attributes[NUMA_NODE] == (0, 1, 2)
    assert list(check_device(device)) == []


def test_overheads_are_added_to_what_a_device_is_of_the_node() -> None:
    cpus = Device(
        name="d",
        capacity={"cores": Capacity(4)},
        allow_multiple_allocations=True,
        node_allocatable={"cpu": NodeAllocatable(capacity="cores")},
    )
    overheads = {"cpu": Overhead(per_pod="100m"), "memory": Overhead(per_pod="256Mi", per_container="64Mi")}
    (device,) = add_to_inventory(Inventory(devices=(cpus,)), Additions(overheads=overheads)).devices
    assert device.node_allocatable == {
        "cpu": NodeAllocatable(capacity="cores", per_pod="100m"),
        "memory": NodeAllocatable(per_pod="256Mi", per_container="64Mi"),
    }
    assert list(check_device(device)) == []
