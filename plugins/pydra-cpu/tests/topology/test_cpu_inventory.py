"""What is published of machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpu_machines import build, read
from pydra import Device, NodeAllocatable
from pydra.inventory.api_rules import check_device
from pydra_cpu.inventory import build_inventory
from pydra_cpu.settings import GroupBy, Settings
from pydra_cpu.simulation.machine import Machine

SERVER = Machine(sockets=2, nodes=2, caches=2, cores=4, threads=2, memory=64 << 30)


def publish(machine: Machine, place: Path, **settings: object) -> dict[str, Device]:
    found = build_inventory(build(machine, place), Settings(**settings))
    return {device.name: device for device in found.devices}


@pytest.mark.parametrize(
    ("group_by", "names", "cpus"),
    [
        (GroupBy.NUMA_NODE, [f"cpudevnuma{number:03}" for number in range(4)], 16),
        (GroupBy.SOCKET, ["cpudevsocket000", "cpudevsocket001"], 32),
        (GroupBy.MACHINE, ["cpudevmachine"], 64),
        (GroupBy.CACHE, [f"cpudevl3{number:03}" for number in range(8)], 8),
    ],
)
def test_devices_have_the_cpus_of_a_part_of_the_machine(
    tmp_path: Path, group_by: GroupBy, names: list[str], cpus: int
) -> None:
    devices = publish(SERVER, tmp_path, group_by=group_by)
    assert list(devices) == names
    for device in devices.values():
        assert device.allow_multiple_allocations
        assert device.capacity["dra.cpu/cpu"].value == cpus == device.attributes["numCPUs"]
        assert device.attributes["smtEnabled"] is True


def test_a_numa_node_says_where_it_is_and_how_much_memory_it_has(tmp_path: Path) -> None:
    device = publish(SERVER, tmp_path)["cpudevnuma003"]
    assert device.attributes == {
        "resource.kubernetes.io/numaNode": 3,
        "numaNodeID": 3,
        "dra.net/numaNode": 3,
        "socketID": 1,
        "coreType": "standard",
        "smtEnabled": True,
        "numCPUs": 16,
        "resource.kubernetes.io/pcieRoot": ("pci0000:03", "pci0000:83"),
    }
    assert {name: one.value for name, one in device.capacity.items()} == {
        "dra.cpu/cpu": 16,
        "dra.cpu/memory": 64 << 30,
        "dra.cpu/hugepages2Mi": 1 << 30,
    }


def test_with_the_setting_each_capacity_is_counted_as_what_the_node_has(tmp_path: Path) -> None:
    device = publish(SERVER, tmp_path, node_allocatable=True)["cpudevnuma003"]
    assert {name: one.capacity for name, one in device.node_allocatable.items()} == {
        "cpu": "dra.cpu/cpu",
        "memory": "dra.cpu/memory",
        "hugepages-2Mi": "dra.cpu/hugepages2Mi",
    }
    assert list(check_device(device)) == []
    single = publish(SERVER, tmp_path, node_allocatable=True, group_by=GroupBy.CPU)["cpudev003"]
    assert single.node_allocatable == {"cpu": NodeAllocatable(multiplier=1)}
    assert not publish(SERVER, tmp_path)["cpudevnuma003"].node_allocatable, "it would count twice what pods repeat"


def test_a_socket_near_several_pcie_roots_names_them_all(tmp_path: Path) -> None:
    device = publish(SERVER, tmp_path, group_by=GroupBy.SOCKET)["cpudevsocket001"]
    assert device.attributes["resource.kubernetes.io/pcieRoot"] == (
        "pci0000:02",
        "pci0000:03",
        "pci0000:82",
        "pci0000:83",
    )
    assert "resource.kubernetes.io/numaNode" not in device.attributes


def test_a_single_cpu_is_named_by_its_number_also_when_others_are_reserved_or_off_line(tmp_path: Path) -> None:
    machine = Machine(cores=4, threads=2, offline=frozenset({1}))
    devices = publish(machine, tmp_path, group_by=GroupBy.CPU, reserved_cpus="0,4")
    assert list(devices) == [f"cpudev{number:03}" for number in (2, 3, 5, 6, 7)]
    assert devices["cpudev006"].attributes["cpuID"] == 6
    assert devices["cpudev006"].attributes["coreID"] == 2
    assert not devices["cpudev006"].capacity


def test_reserved_cpus_are_in_no_device(tmp_path: Path) -> None:
    devices = publish(SERVER, tmp_path, reserved_cpus="0,32")
    assert devices["cpudevnuma000"].capacity["dra.cpu/cpu"].value == 14
    assert devices["cpudevnuma001"].capacity["dra.cpu/cpu"].value == 16


def test_a_kernel_without_numa_has_one_node_with_all_cpus(tmp_path: Path) -> None:
    (device,) = publish(Machine(numa=False, cores=6), tmp_path).values()
    assert device.name == "cpudevnuma000"
    assert device.capacity["dra.cpu/cpu"].value == 6
    assert device.capacity["dra.cpu/memory"].value == 8 << 30


def test_the_cores_of_a_hybrid_processor_have_their_type(tmp_path: Path) -> None:
    for kind, cpus in (("cpu_core", "0-1"), ("cpu_atom", "2-3")):
        path = tmp_path / "sys" / "devices" / kind / "cpus"
        path.parent.mkdir(parents=True)
        path.write_text(cpus)
    devices = publish(Machine(cores=4), tmp_path, group_by=GroupBy.CPU)
    assert [one.attributes["coreType"] for one in devices.values()] == ["p-core", "p-core", "e-core", "e-core"]


def test_a_cpu_whose_core_is_not_known_is_not_offered_and_named(tmp_path: Path) -> None:
    Machine(cores=4).write(tmp_path)
    (tmp_path / "sys/devices/system/cpu/cpu2/topology/core_cpus_list").unlink()
    found = build_inventory(read(tmp_path), Settings())
    assert found.devices[0].capacity["dra.cpu/cpu"].value == 3
    assert [text for text in found.unreadable if "CPU 2 is not offered" in text]


@pytest.mark.parametrize(
    ("group_by", "file"), [(GroupBy.CACHE, "cache/index3/level"), (GroupBy.SOCKET, "topology/physical_package_id")]
)
def test_cpus_without_what_devices_are_grouped_by_are_named(tmp_path: Path, group_by: GroupBy, file: str) -> None:
    """As in many virtual machines."""
    Machine(cores=4).write(tmp_path)
    for path in tmp_path.glob(f"sys/devices/system/cpu/cpu[12]/{file}"):
        path.unlink()
    found = build_inventory(read(tmp_path), Settings(group_by=group_by, reserved_cpus="3"))
    assert [device.capacity["dra.cpu/cpu"].value for device in found.devices] == [1]
    text = f"CPU 1-2 is not offered: the kernel does not say which {group_by.value} (groupBy) it is of"
    assert [one.partition(";")[0] for one in found.unreadable] == [text]


def test_reserved_cpus_must_be_a_list() -> None:
    with pytest.raises(ValueError, match="reservedCpus: '0,x' is not a list of CPUs, such as 0-3,8"):
        Settings(reserved_cpus="0,x")
