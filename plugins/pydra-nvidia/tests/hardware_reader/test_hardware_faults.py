"""Questions to NVML that fail from the start: they cost what they tell, and no GPU disappears without a word."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest

from pydra import Device, Inventory
from pydra_nvidia.hardware_types import Reading
from pydra_nvidia.health.diagnosis import diagnose
from pydra_nvidia.inventory.build import build_inventory
from pydra_nvidia.nvml.mig_state import MAKING

Open = Callable[[str], Any]

PARTITIONED = "{model: h100-80gb, mig: true, instances: [{profile: 1g.10gb, start: 2}, {profile: 3g.40gb, start: 4}]"
WHOLE = "{model: h100-80gb"
ASKED = ("nvmlDeviceGet", "nvmlGpuInstanceGet", "nvmlComputeInstanceGet")


def scenario(group: str, *faults: str, dynamic: bool = False, driver: str = "{}") -> str:
    return (
        f"settings: {{dynamic_mig: {str(dynamic).lower()}}}\ndriver: {driver}\nfaults: [{', '.join(faults)}]\n"
        "host: {onlyGpus: true}\n"
        f"gpus:\n- {group}, minors: [0]}}\n- {PARTITIONED}, minors: [1]}}\n"
    )


def fault(op: str, code: str = "UNKNOWN", **more: Any) -> str:
    rest = "".join(f", {name}: {value}" for name, value in more.items())
    return f"{{op: {op}, device: 0, do: raise, code: {code}{rest}}}"


def published(machine: Any, reading: Reading) -> Inventory:
    diagnosis = diagnose(reading, (), settings=machine.settings, now=0.0)
    return build_inventory(reading, settings=machine.settings, owned=(), diagnosis=diagnosis)


def exclude(information: Path) -> None:
    information.write_text(information.read_text().replace("Excluded:\t No", "Excluded:\t Yes"))


def of_gpu(minor: int, inventory: Inventory) -> dict[str, Device]:
    return {one.name: one for one in inventory.devices if one.name.split("-mig-")[0] == f"gpu-{minor}"}


@pytest.mark.parametrize(("group", "dynamic"), [(WHOLE, True), (PARTITIONED, False)], ids=["dynamic", "static"])
async def test_whatever_cannot_be_asked_of_one_gpu_it_is_published_or_named_and_the_others_are_as_before(
    node: Open, group: str, dynamic: bool
) -> None:
    machine = node(scenario(group, dynamic=dynamic))
    before = published(machine, await machine.hardware.read())
    assert before.unreadable == ()
    asked = sorted(name for name in pynvml._nvmlGetFunctionPointer_cache if name.startswith(ASKED))
    for symbol in asked:
        machine = node(scenario(group, fault(symbol), dynamic=dynamic))
        found = published(machine, await machine.hardware.read())
        assert of_gpu(1, found) == of_gpu(1, before), symbol
        assert of_gpu(0, found) or found.unreadable, symbol
        machine.session.close()


@pytest.mark.parametrize(
    ("group", "names"),
    [(WHOLE, ["gpu-0"]), (PARTITIONED, ["gpu-0-mig-1g10gb-19-2", "gpu-0-mig-3g40gb-9-4"])],
    ids=["whole", "partitioned"],
)
async def test_a_gpu_whose_mode_is_not_reported_is_used_as_it_is_known_to_be(
    node: Open, group: str, names: list[str]
) -> None:
    machine = node(scenario(group, fault("nvmlDeviceGetMigMode")))
    found = of_gpu(0, published(machine, await machine.hardware.read()))
    assert {name: one.health.status.value for name, one in found.items()} == dict.fromkeys(names, "Healthy")
    await machine.hardware.reread([0])  # as for a claim


@pytest.mark.parametrize(
    "ops",
    [("nvmlDeviceGetMigMode", "nvmlDeviceGetMaxMigDeviceCount"), ("nvmlDeviceGetGpuInstances",)],
    ids=["its mode", "its partitions"],
)
async def test_a_gpu_whose_partitioning_is_not_reported_gets_no_pods(node: Open, ops: tuple[str, ...]) -> None:
    machine = node(scenario(PARTITIONED, *map(fault, ops)))
    (device,) = of_gpu(0, published(machine, await machine.hardware.read())).values()
    assert (device.name, device.health.status.value) == ("gpu-0", "Unhealthy")
    assert device.health.taint == "gpu.nvidia.com/unreadable"
    assert device.health.message.startswith(f"it cannot be read how the GPU is partitioned: {ops[0]} for GPU-")


async def test_partitions_of_profiles_that_are_not_reported_are_named_and_the_others_are_published(node: Open) -> None:
    later = fault("nvmlDeviceGetGpuInstanceProfileInfo*", after=2)
    machine = node(scenario(PARTITIONED, later))
    for _ in range(2):  # only the first attempt got the first two profiles
        found = published(machine, await machine.hardware.read())
        assert of_gpu(0, found) == {}
        (text,) = found.unreadable
        assert text.startswith("not all partitions of gpu-0 can be read: nvmlDeviceGetGpuInstanceProfileInfo for GPU-")
        assert set(of_gpu(1, found)) == {"gpu-1-mig-1g10gb-19-2", "gpu-1-mig-3g40gb-9-4"}


async def test_instances_that_cannot_be_listed_are_not_taken_for_none(node: Open) -> None:
    """NOT_SUPPORTED, which means for a field that it does not exist, says nothing about which instances exist."""
    machine = node(scenario(PARTITIONED, fault("nvmlDeviceGetGpuInstances", "NOT_SUPPORTED"), dynamic=True))
    found = of_gpu(0, published(machine, await machine.hardware.read()))
    assert [(one.name, one.health.status.value) for one in found.values()] == [("gpu-0", "Unhealthy")]


async def test_a_gpu_that_was_lost_before_the_start_is_named_with_its_address(node: Open) -> None:
    machine = node(scenario(f"{WHOLE}, lost: true"))
    reading = await machine.hardware.read()
    found = published(machine, reading)
    assert of_gpu(0, found) == {}
    address = min(reading.functions)
    (text,) = found.unreadable
    assert text.startswith(f"the GPU at {address} is not published: nvmlDeviceGetHandleByIndex for GPU 0 failed with")


async def test_a_gpu_that_the_admin_excluded_is_not_missed(node: Open) -> None:
    machine = node(scenario(WHOLE, "{op: nvmlDeviceGetHandleByIndex_v2, device: 0, do: raise, code: GPU_IS_LOST}"))
    reading = await machine.hardware.read()
    assert [one.pci for one in reading.lost] == [min(reading.functions)]
    information = machine.simulation.tree.proc(f"driver/nvidia/gpus/{min(reading.functions)}/information")
    exclude(Path(information))
    assert [one.pci for one in (await machine.hardware.read()).lost] == [""]


@pytest.mark.parametrize(
    "driver",
    [
        "{named_profiles_when_off: false}",
        "{missing: [nvmlDeviceGetGpuInstanceProfileInfoV]}",
        "{missing: [nvmlDeviceGetGpuInstanceProfileInfo]}",
        "{missing: [nvmlGpuInstanceGetComputeInstanceProfileInfoV]}",
        "{missing: [nvmlGpuInstanceGetComputeInstanceProfileInfo]}",
    ],
)
async def test_either_version_of_the_profiles_offers_the_same_partitions(node: Open, driver: str) -> None:
    machine = node(scenario(WHOLE, dynamic=True))
    before = published(machine, await machine.hardware.read())
    driver = driver.replace("named_profiles_when_off", "namedProfilesWhenOff")
    machine = node(scenario(WHOLE, dynamic=True, driver=driver))
    assert published(machine, await machine.hardware.read()) == before


@pytest.mark.parametrize("symbol", MAKING)
async def test_no_partition_is_offered_that_the_driver_has_no_function_to_make(
    node: Open, symbol: str, caplog: pytest.LogCaptureFixture
) -> None:
    machine = node(scenario(WHOLE, dynamic=True, driver=f"{{missing: [{symbol}]}}"))
    assert list(of_gpu(0, published(machine, await machine.hardware.read()))) == ["gpu-0"]
    (said,) = [one.getMessage() for one in caplog.records if one.name.startswith("pydra_nvidia")]
    assert said.startswith("no partitions are made for claims on gpu-0")
    assert f"{symbol} failed with NVML_ERROR_FUNCTION_NOT_FOUND (13): the installed driver is too old" in said
