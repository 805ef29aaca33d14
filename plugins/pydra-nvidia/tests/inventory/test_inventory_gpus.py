"""What is published of whole GPUs, and when."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from pydra import Capacity, Health, HealthStatus, Taint, TaintEffect, Version
from pydra.slices.build import build_wanted
from pydra_nvidia.device_names import mig_name
from pydra_nvidia.hardware_types import Gpu, LostGpu, Placement
from pydra_nvidia.health.diagnosis import Diagnosis
from pydra_pci import Assessment

SICK = Assessment(health=Health(status=HealthStatus.UNHEALTHY, message="fell off the bus", reason="gpu-lost"))


def test_a_whole_gpu_has_the_attributes_of_nvidias_driver(boards: Any) -> None:
    gpu = boards.gpu("H100", minor=5, addressing=1, module=6)
    (device,) = boards.inventory(boards.reading(gpu)).devices
    assert device.name == "gpu-5"
    assert device.attributes == {
        "type": "gpu",
        "uuid": gpu.uuid,
        "productName": "NVIDIA H100 80GB HBM3",
        "brand": "Nvidia",
        "architecture": "Hopper",
        "cudaComputeCapability": Version("9.0.0"),
        "driverVersion": Version("580.105.8"),
        "cudaDriverVersion": Version("13.0.0"),
        "addressingMode": "HMM",
        "gpuModuleID": 6,
        "resource.kubernetes.io/pciBusID": "0000:15:00.0",
        "resource.kubernetes.io/pcieRoot": "pci0000:0c",
        "resource.kubernetes.io/numaNode": 1,
    }
    assert device.capacity == {"memory": Capacity(f"{81559 * 1024}Ki")}
    assert not device.consumes_counters
    assert not device.allow_multiple_allocations


@pytest.mark.parametrize(
    ("gpu_changes", "function_changes", "absent"),
    [
        pytest.param({}, {"numa": None}, "resource.kubernetes.io/numaNode", id="no NUMA node"),
        pytest.param({}, {"root": ""}, "resource.kubernetes.io/pcieRoot", id="no PCIe root"),
        pytest.param({"addressing": None}, {}, "addressingMode", id="a driver that tells no addressing mode"),
        pytest.param({"addressing": 9}, {}, "addressingMode", id="an addressing mode from the future"),
        pytest.param({"module": None}, {}, "gpuModuleID", id="no baseboard"),
        pytest.param({"module": 0}, {}, "gpuModuleID", id="module zero, which is none"),
    ],
)
def test_what_is_not_known_is_left_out(boards: Any, gpu_changes: Any, function_changes: Any, absent: str) -> None:
    gpu = boards.gpu("T4", **{"addressing": 0, "module": 1, **gpu_changes})
    known = boards.inventory(boards.reading(boards.gpu("T4", addressing=0, module=1))).devices[0].attributes
    reading = boards.reading(gpu, functions={gpu.pci: boards.function(gpu, **function_changes)})
    assert set(known) - set(boards.inventory(reading).devices[0].attributes) == {absent}


def test_a_gpu_that_sysfs_does_not_show_is_published_without_its_place(boards: Any) -> None:
    (device,) = boards.inventory(boards.reading(boards.gpu(), functions={})).devices
    places = [name for name in device.attributes if "/" in name]
    assert places == ["resource.kubernetes.io/pciBusID"]


def test_unified_memory_that_nvml_does_not_count_has_no_capacity(boards: Any) -> None:
    (device,) = boards.inventory(boards.reading(boards.gpu("T4", memory=None))).devices
    assert device.capacity == {}


@pytest.mark.parametrize(
    ("brand", "architecture", "compute", "found"),
    [
        (2, 6, (7, 5), ("Tesla", "Turing", "7.5.0")),
        (5, 8, (8, 9), ("GeForce", "Ada Lovelace", "8.9.0")),
        (12, 5, (7, 0), ("QuadroRTX", "Volta", "7.0.0")),
        (13, 10, (12, 0), ("NvidiaRTX", "Blackwell", "12.0.0")),
        (14, 13, (10, 7), ("Nvidia", "Rubin", "10.7.0")),
        (11, 0xFFFFFFFF, (8, 0), ("NvidiaCloudGaming", "Unknown", "8.0.0")),
        (99, 99, (99, 1), ("Unknown", "Unknown", "99.1.0")),
    ],
)
def test_numbers_of_nvml_are_spelt_as_nvidia_does(
    boards: Any, brand: int, architecture: int, compute: tuple[int, int], found: tuple[str, str, str]
) -> None:
    gpu = boards.gpu("T4", brand=brand, architecture=architecture, compute=compute)
    attributes = boards.inventory(boards.reading(gpu)).devices[0].attributes
    names = ("brand", "architecture", "cudaComputeCapability")
    assert tuple(attributes[name] for name in names) == (*found[:2], Version(found[2]))


def test_a_name_longer_than_the_api_allows_is_cut_at_a_character(boards: Any) -> None:
    (device,) = boards.inventory(boards.reading(boards.gpu("T4", name="x" * 63 + "é" * 9))).devices
    assert device.attributes["productName"] == "x" * 63


@pytest.mark.parametrize(
    ("model", "mig", "dynamic", "whole", "partitions", "counters"),
    [
        pytest.param("T4", False, True, True, 0, False, id="a GPU without MIG"),
        pytest.param("H100", False, False, True, 0, False, id="static, mode off"),
        pytest.param("H100", True, False, False, 0, False, id="static, mode on and nothing made"),
        pytest.param("H100", False, True, True, 25, True, id="dynamic, Hopper, mode off"),
        pytest.param("H100", True, True, True, 25, True, id="dynamic, Hopper, mode on"),
        pytest.param("H200", False, True, True, 25, True, id="dynamic, H200"),
        pytest.param("A100", False, True, True, 0, False, id="dynamic, Ampere, mode off"),
        pytest.param("A100", True, True, False, 25, True, id="dynamic, Ampere, mode on"),
        pytest.param("A30", True, True, False, 13, True, id="dynamic, A30, mode on"),
    ],
)
def test_generation_and_mode_decide_what_is_offered(
    boards: Any, model: str, mig: bool, dynamic: bool, whole: bool, partitions: int, counters: bool
) -> None:
    inventory = boards.inventory(boards.reading(boards.gpu(model, mig=mig)), dynamic_mig=dynamic)
    types = [device.attributes["type"] for device in inventory.devices]
    assert types == ["gpu"] * whole + ["mig"] * partitions
    assert [one.name for one in inventory.counter_sets] == ["gpu-0-counter-set"] * counters
    assert all(bool(device.consumes_counters) is counters for device in inventory.devices)


def test_a_vgpu_guest_is_not_partitioned(boards: Any) -> None:
    inventory = boards.inventory(boards.reading(boards.gpu(virtualization=2)), dynamic_mig=True)
    assert [device.name for device in inventory.devices] == ["gpu-0"]
    assert inventory.counter_sets == ()
    assert set(inventory.devices[0].capacity) == {"memory"}


def test_a_hopper_whose_driver_tells_no_profiles_is_offered_whole_without_counters(boards: Any) -> None:
    gpu = boards.gpu()
    inventory = boards.inventory(boards.reading(replace(gpu, mig=replace(gpu.mig, profiles=()))), dynamic_mig=True)
    assert [device.name for device in inventory.devices] == ["gpu-0"]
    assert inventory.counter_sets == ()


def test_an_ampere_with_the_mode_off_is_offered_whole_also_where_the_driver_tells_profiles(boards: Any) -> None:
    gpu = boards.gpu("A100")
    gpu = replace(gpu, mig=replace(gpu.mig, profiles=boards.profiles("A100")))
    assert list(boards.devices(boards.reading(gpu), dynamic_mig=True)) == ["gpu-0"]


def test_eight_h100_are_208_devices_in_slices_that_the_api_takes(boards: Any) -> None:
    gpus = [boards.gpu(minor=minor, module=minor + 1, addressing=1) for minor in range(8)]
    inventory = boards.inventory(boards.reading(*gpus), dynamic_mig=True)
    assert len(inventory.devices) == 8 + 8 * 25
    assert len(inventory.counter_sets) == 8
    slices = build_wanted(boards.publish(inventory).pool, driver="gpu.nvidia.com", node="node-1").slices
    assert [len(one.get("sharedCounters", ())) for one in slices] == [8, 0, 0, 0, 0]
    assert all(len(one.get("devices", ())) <= 64 for one in slices)


def test_gpus_come_by_minor_number_whatever_their_index(boards: Any) -> None:
    gpus = [boards.gpu(minor=3, index=0), boards.gpu("T4", minor=0, index=1)]
    assert list(boards.devices(boards.reading(*gpus))) == ["gpu-0", "gpu-3"]


def test_a_card_that_only_drives_a_screen_is_left_out(boards: Any) -> None:
    reading = boards.reading(boards.gpu("T4", name="NVIDIA DGX Display"), boards.gpu("A100", minor=1))
    assert list(boards.devices(reading, vfio=True)) == ["gpu-1", "gpu-vfio-1"]


def test_a_lost_gpu_stays_published_as_it_was_with_its_health(boards: Any) -> None:
    gpu, other = boards.gpu(), boards.gpu(minor=1)
    before = boards.inventory(boards.reading(gpu, other), dynamic_mig=True)
    lost = LostGpu(index=0, code=15, message="GPU is lost", last=gpu)
    reading = boards.reading(gpu, other, gpus=(other,), lost=(lost,))
    after = boards.inventory(reading, dynamic_mig=True, diagnosis=Diagnosis(gpus={gpu.uuid: SICK}))
    sick = [device for device in after.devices if device.health == SICK.health]
    assert [device.name for device in sick] == [device.name for device in before.devices[:26]]
    assert [replace(device, health=Health()) for device in after.devices] == list(before.devices)
    assert after.counter_sets == before.counter_sets


@pytest.mark.parametrize("changes", [{"minor": 0}, {"minor": 7}], ids=["in its place", "with another minor number"])
def test_a_lost_gpu_gives_way_to_one_that_answers(boards: Any, changes: dict[str, int]) -> None:
    old = boards.gpu("T4")
    new = boards.gpu("T4", **changes) if changes["minor"] == 7 else boards.gpu("T4", uuid="GPU-new")
    new = new if changes["minor"] == 0 else replace(new, uuid=old.uuid)
    lost = LostGpu(index=0, code=15, message="GPU is lost", last=old)
    devices = boards.devices(boards.reading(new, lost=(lost,)))
    assert [device.attributes["uuid"] for device in devices.values()] == [new.uuid]


def test_a_gpu_that_was_lost_before_it_was_ever_seen_has_no_device(boards: Any) -> None:
    reading = boards.reading(boards.gpu("T4"), lost=(LostGpu(index=1, code=15, message="GPU is lost"),))
    assert list(boards.devices(reading)) == ["gpu-0"]


def test_a_verdict_counts_for_all_that_has_a_part_of_what_it_is_about(boards: Any) -> None:
    first, second = boards.gpu(), boards.gpu(minor=1)
    xid = Taint(key="gpu.nvidia.com/xid", value="31", effect=TaintEffect.NONE)
    noted = Taint(key="gpu.nvidia.com/xid", value="43", effect=TaintEffect.NONE)
    diagnosis = Diagnosis(
        gpus={first.uuid: Assessment(taints=(xid,))},
        partitions={
            (first.uuid, Placement(4, 2)): SICK,
            (first.uuid, Placement(0, 1)): Assessment(taints=(noted,)),
            (second.uuid, Placement(0, 1)): Assessment(taints=(noted,)),
        },
    )
    devices = boards.devices(boards.reading(first, second), dynamic_mig=True, diagnosis=diagnosis)
    sick = {name for name, device in devices.items() if device.health == SICK.health}
    assert sick == {"gpu-0", *touching(first, Placement(4, 2))}
    assert {"gpu-0-mig-1g10gb-19-4", "gpu-0-mig-3g40gb-9-4", "gpu-0-mig-7g80gb-0-0"} < sick
    assert "gpu-0-mig-3g40gb-9-0" not in sick
    assert {device.taints for name, device in devices.items() if name.startswith("gpu-0")} == {(xid,)}
    tainted = {name for name, device in devices.items() if device.taints == (noted,)}
    assert tainted == {"gpu-1", *touching(second, Placement(0, 1))}


def touching(gpu: Gpu, place: Placement) -> set[str]:
    assert gpu.mig is not None
    return {
        mig_name(gpu.minor, one.name, one.id, other.start)
        for one in gpu.mig.profiles
        for other in one.placements
        if other.overlaps(place)
    }


def test_a_node_without_gpus_has_an_empty_inventory(boards: Any) -> None:
    inventory = boards.inventory(boards.reading(driver=None), dynamic_mig=True, vfio=True)
    assert inventory.devices == ()
    assert inventory.counter_sets == ()
