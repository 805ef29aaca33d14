"""What is published of functions for passthrough."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from pydra import Capacity, CounterConsumption, Health, HealthStatus
from pydra_nvidia.health.diagnosis import Diagnosis
from pydra_pci import Assessment, VfioHost


def test_a_function_has_the_attributes_of_nvidias_driver(boards: Any) -> None:
    gpu = boards.gpu("T4", pci="0000:65:00.0", module=3)
    device = boards.devices(boards.reading(gpu), vfio=True)["gpu-vfio-0"]
    assert device.attributes == {
        "type": "vfio",
        "uuid": "8533fd84-02c8-5350-bd10-3cf08fc7bcd0",
        "deviceID": "0x2330",
        "vendorID": "0x10de",
        "productName": "GH100 [H100 SXM5 80GB]",
        "iommuFDEnabled": True,
        "resource.kubernetes.io/pciBusID": "0000:65:00.0",
        "resource.kubernetes.io/pcieRoot": "pci0000:0c",
        "resource.kubernetes.io/numaNode": 0,
    }
    assert device.capacity == {"addressableMemory": Capacity(f"{128 * 1024**2}Ki")}


def test_a_function_has_its_position_on_the_baseboard_also_while_it_is_bound_for_a_guest(boards: Any) -> None:
    gpu = boards.gpu("T4", pci="0000:65:00.0", module=3)
    reading = replace(boards.reading(gpu), modules={"0000:65:00.0": 3})
    bound = {gpu.pci: boards.function(gpu, driver="vfio-pci")}
    for one in (reading, replace(reading, gpus=(), functions=bound)):
        found = [device for name, device in boards.devices(one, vfio=True).items() if name.startswith("gpu-vfio-")]
        assert [device.attributes["gpuModuleID"] for device in found] == [3]


def test_a_function_that_pci_ids_does_not_name_is_called_as_nvidias_driver_does(boards: Any) -> None:
    gpu = boards.gpu("T4")
    reading = boards.reading(gpu, functions={gpu.pci: boards.function(gpu, name="")})
    assert boards.devices(reading, vfio=True)["gpu-vfio-0"].attributes["productName"] == "UNKNOWN_DEVICE"


@pytest.mark.parametrize(
    ("vfio", "host"),
    [(False, VfioHost(iommu=True, iommufd=True)), (True, VfioHost(iommu=False, iommufd=True))],
    ids=["not wanted", "no IOMMU"],
)
def test_without_the_setting_or_an_iommu_there_is_nothing_of_passthrough(
    boards: Any, vfio: bool, host: VfioHost
) -> None:
    inventory = boards.inventory(boards.reading(boards.gpu("T4"), vfio=host), vfio=vfio)
    assert [device.name for device in inventory.devices] == ["gpu-0"]
    assert inventory.counter_sets == ()


@pytest.mark.parametrize("model", ["T4", "A100", "H100"])
def test_a_gpu_is_used_here_or_passed_through_or_partitioned(boards: Any, model: str) -> None:
    inventory = boards.inventory(boards.reading(boards.gpu(model)), vfio=True, dynamic_mig=True)
    devices = {device.name: device for device in inventory.devices}
    (counters,) = inventory.counter_sets
    everything = (CounterConsumption(counter_set="gpu-0-counter-set", counters=counters.counters),)
    assert devices["gpu-0"].consumes_counters == everything
    assert devices["gpu-vfio-0"].consumes_counters == everything
    assert list(devices)[-1] == "gpu-vfio-0"
    assert any(counters.counters.values())


@pytest.mark.parametrize(
    ("changes", "offered"),
    [
        pytest.param({"driver": "nvidia"}, True, id="nvidia"),
        pytest.param({"driver": ""}, True, id="no driver"),
        pytest.param({"driver": "vfio-pci"}, True, id="vfio-pci"),
        pytest.param({"driver": "nvgrace_gpu_vfio_pci"}, True, id="a variant of vfio-pci"),
        pytest.param({"driver": "nouveau"}, False, id="another driver"),
        pytest.param({"driver": "vfio-pci-snoop"}, False, id="a driver of a similar name"),
        pytest.param({"has_virtual": True}, False, id="virtual functions in use"),
        pytest.param({"group": ""}, False, id="no IOMMU group"),
    ],
)
def test_only_functions_that_can_be_bound_are_offered(boards: Any, changes: dict[str, Any], offered: bool) -> None:
    gpu = boards.gpu("T4")
    function = boards.function(gpu, **changes)
    managed = (gpu,) if function.driver == "nvidia" else ()
    reading = boards.reading(gpu, gpus=managed, functions={gpu.pci: function})
    assert ("gpu-vfio-0" in boards.devices(reading, vfio=True)) is offered


def test_a_function_that_is_bound_to_vfio_draws_from_nothing(boards: Any) -> None:
    bound, other = boards.gpu("T4"), boards.gpu("T4", minor=1)
    functions = {bound.pci: boards.function(bound, driver="vfio-pci"), other.pci: boards.function(other)}
    inventory = boards.inventory(boards.reading(other, functions=functions), vfio=True)
    devices = {device.name: device for device in inventory.devices}
    assert list(devices) == ["gpu-1", "gpu-vfio-0", "gpu-vfio-1"]
    assert devices["gpu-vfio-0"].consumes_counters == ()
    assert [one.name for one in inventory.counter_sets] == ["gpu-1-counter-set"]


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_a_partitioned_gpu_is_not_passed_through(boards: Any, dynamic: bool) -> None:
    reading = boards.reading(boards.gpu(mig=True, made=[(9, 0)]), boards.gpu("A100", minor=1, mig=True))
    assert not [name for name in boards.devices(reading, vfio=True, dynamic_mig=dynamic) if "vfio" in name]


def test_what_the_nvidia_driver_has_without_showing_it_is_left_alone(boards: Any) -> None:
    reading = boards.reading(boards.gpu("T4"), gpus=())
    assert boards.inventory(reading, vfio=True).devices == ()


def test_virtual_functions_are_neither_offered_nor_counted(boards: Any) -> None:
    first, second = boards.gpu("T4"), boards.gpu("T4", minor=1)
    virtual = boards.function(first, address="0000:10:00.4", driver="", parent=first.pci)
    before = boards.reading(first, second)
    after = replace(before, functions={**before.functions, virtual.address: virtual})
    assert boards.devices(after, vfio=True) == boards.devices(before, vfio=True)


def test_functions_count_by_address_also_where_domains_have_more_digits(boards: Any) -> None:
    far, near = boards.gpu("T4", pci="10000:01:00.0"), boards.gpu("T4", minor=1, pci="2000:01:00.0")
    devices = boards.devices(boards.reading(far, near), vfio=True)
    found = {name: device.attributes["resource.kubernetes.io/pciBusID"] for name, device in devices.items()}
    assert found["gpu-vfio-0"] == near.pci
    assert found["gpu-vfio-1"] == far.pci


def test_a_function_has_the_worst_of_the_assessments_on_it_and_on_its_gpu(boards: Any) -> None:
    gpu = boards.gpu("T4")
    unknown = Assessment(health=Health(status=HealthStatus.UNKNOWN, message="not asked"))
    sick = Assessment(health=Health(status=HealthStatus.UNHEALTHY, message="XID 79"))
    diagnosis = Diagnosis(functions={gpu.pci: unknown}, gpus={gpu.uuid: sick})
    device = boards.devices(boards.reading(gpu), vfio=True, diagnosis=diagnosis)["gpu-vfio-0"]
    assert device.health == sick.health
