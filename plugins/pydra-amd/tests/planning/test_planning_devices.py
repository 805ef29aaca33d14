"""What is published of a machine."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from amd_values import gpu_of, reading_of
from pydra import Version
from pydra.inventory.api_rules import validate_inventory
from pydra_amd.inventory.attributes import parse_version
from pydra_amd.inventory.build import build_inventory
from pydra_amd.models import name_product
from pydra_amd.settings import Partitioning

EXISTING, COMPUTE = Partitioning.EXISTING, Partitioning.COMPUTE


def test_a_whole_gpu_has_amds_name_attributes_and_capacities() -> None:
    gpu = gpu_of(unique_id=16404946649897475633, hive=7, numa_node=1, pcie_root="pci0000:00", index=1)
    (device,) = build_inventory(reading_of(gpu, source_version="ABC"), EXISTING).devices
    assert device.name == "gpu-8-136"
    assert device.attributes == {
        "type": "amdgpu",
        "pciAddr": "0000:25:00.0",
        "deviceID": "0x74a1",
        "productName": "AMD_Instinct_MI300X",
        "family": "AI",
        "driverVersion": Version("6.12.12"),
        "driverVersionFull": "6.12.12",
        "driverSrcVersion": "ABC",
        "gpuIndex": 1,
        "gfxVersion": "gfx942",
        "uniqueID": "16404946649897475633",
        "xgmiHive": "7",
        "xgmiNeighbours": 0,
        "numaNode": 1,
        "partitionProfile": "spx_nps1",
        "computePartition": "spx",
        "memoryPartition": "nps1",
        "cardIndex": 8,
        "renderIndex": 136,
        "resource.kubernetes.io/pciBusID": "0000:25:00.0",
        "resource.kubernetes.io/pcieRoot": "pci0000:00",
        "resource.kubernetes.io/numaNode": 1,
    }
    assert {name: one.value for name, one in device.capacity.items()} == {
        "memory": 192 << 30,
        "computeUnits": 304,
        "simdUnits": 1216,
    }


def test_bytes_that_are_no_text_do_not_keep_a_gpu_from_being_published() -> None:
    unwritten = (b"\xff" * 40).decode(errors="replace")  # a board's memory that nobody has written, for example
    reading = reading_of(gpu_of(product=unwritten), driver_version=unwritten, source_version=unwritten)
    assert validate_inventory(build_inventory(reading, EXISTING)).dropped == ()


def test_partitions_that_the_admin_made_are_devices_by_their_own_nodes() -> None:
    inventory = build_inventory(reading_of(gpu_of(mode="dpx_nps2", unique_id=5)), EXISTING)
    assert [one.name for one in inventory.devices] == ["gpu-0-128", "gpu-1-129"]
    told = {"type": "amdgpu-partition", "parentPciAddr": "0000:05:00.0", "parentDeviceID": "5"}
    assert all(told.items() <= one.attributes.items() for one in inventory.devices)
    assert inventory.counter_sets == ()


def test_a_gpu_without_partition_files_is_a_whole_gpu() -> None:
    (device,) = build_inventory(reading_of(gpu_of("0x740f", mode="")), COMPUTE).devices
    assert (device.attributes["type"], device.attributes["gfxVersion"]) == ("amdgpu", "gfx90a")
    assert not {"partitionProfile", "computePartition"} & device.attributes.keys()
    assert device.consumes_counters == ()


def test_what_claims_can_choose_has_the_whole_gpus_first_and_names_that_say_gpu_mode_and_number() -> None:
    inventory = build_inventory(reading_of(gpu_of(), gpu_of(index=1)), COMPUTE)
    names = [one.name for one in inventory.devices]
    assert names[:4] == ["gpu-0-128", "gpu-8-136", "gpu-0-128-dpx-nps1-0", "gpu-0-128-dpx-nps1-1"]
    assert names[-1] == "gpu-8-136-cpx-nps1-7"
    assert len(names) == 2 * (1 + 2 + 4 + 8)
    assert [one.name for one in inventory.counter_sets] == ["gpu-0-128-partitions", "gpu-8-136-partitions"]


def test_memory_that_cannot_be_read_is_left_out_and_not_guessed() -> None:
    gpu = gpu_of(mode="cpx_nps1", memory=0)
    gpu = replace(gpu, partitions=tuple(replace(one, memory=0) for one in gpu.partitions))
    for partitioning in Partitioning:
        assert all("memory" not in one.capacity for one in build_inventory(reading_of(gpu), partitioning).devices)


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("0x74b5", "AMD Instinct MI300X VF"),
        ("0x74bd", "AMD Instinct MI300X HF VF"),
        ("0x74b9", "AMD Instinct MI325X VF"),
        ("0x74b6", "AMD Instinct MI308X VF"),
        ("0x74bc", "AMD Instinct MI308X HF VF"),
        ("0x75b0", "AMD Instinct MI350X VF"),
        ("0x75b3", "AMD Instinct MI355X VF"),
        ("0x7410", "AMD Instinct MI210 VF"),
        ("0x74a1", "AMD Instinct MI300X"),
        ("0x1234", ""),
    ],
)
def test_gpus_and_their_virtual_functions_have_a_name(device: str, name: str) -> None:
    assert name_product(device) == name


@pytest.mark.parametrize(
    ("text", "version"),
    [("6.12.12", "6.12.12"), ("6.19.14.1", "6.19.14"), ("6.08.5", "6.8.5"), ("6.3", "6.3.0"), ("", ""), ("dev", "")],
)
def test_a_drivers_version_is_one_that_the_api_takes_or_none(text: str, version: str) -> None:
    assert parse_version(text) == (Version(version) if version else None)
