"""A machine that is recorded and simulated from the recording reads as it did, but for the names that are its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pydra_nvidia.hardware_types import Reading
from pydra_nvidia.host.driver_root import DriverMissing
from pydra_nvidia.nvml.errors import Code
from pydra_nvidia.simulation.recording.anonymise import Names

SALT = b"salt"
Simulate = Callable[..., Any]
H100 = {"model": "h100-80gb", "count": 2, "minors": [4, 1]}
ADDRESSES = ["0000:1b:00.0", "0000:43:00.0"]


async def round_trip(rig: Any, simulate: Simulate) -> Reading:
    """The reading of `rig`, after checking that its recording reads the same."""
    before = await rig.read()
    recording = await rig.record()
    assert recording.differences == ()
    assert "Read back from this file, the machine is the same." in recording.text.replace("\n#  ", "")
    after = await simulate(recording.text).read()
    assert after == Names(SALT).reading(before)
    return after


@pytest.mark.parametrize("name", ["dgx-a100", "gb200", "mixed"])
async def test_a_bundled_machine_reads_as_recorded(simulate: Simulate, name: str) -> None:
    reading = await round_trip(simulate(name), simulate)
    assert reading.driver is not None
    assert reading.gpus
    assert set(reading.functions) == {gpu.pci for gpu in reading.gpus}


async def test_a_recording_of_a_recording_is_the_same_but_for_names(simulate: Simulate) -> None:
    first = await simulate("mixed").record()
    again = await simulate(first.text).record()
    assert again.scenario.models == first.scenario.models
    assert again.scenario.host == first.scenario.host
    assert again.scenario.driver == first.scenario.driver
    assert [one.addresses for one in again.scenario.gpus] == [one.addresses for one in first.scenario.gpus]


async def test_partitions_are_kept_with_their_ids_and_places(simulate: Simulate) -> None:
    rig = simulate({"gpus": [H100]})
    rig.inject.set_mig_mode(4, True, force=True)
    for profile, start in (("1g.10gb", 6), ("3g.40gb", 0), ("2g.20gb", 4)):
        rig.inject.create_mig(4, profile, start)
    rig.inject.destroy_mig(4, 6)  # ids have a gap now
    reading = await round_trip(rig, simulate)
    mig = next(gpu.mig for gpu in reading.gpus if gpu.minor == 4)
    assert mig is not None
    assert [(one.id, one.placement.start) for one in mig.instances] == [(2, 0), (3, 4)]


async def test_compute_instances_that_share_a_partition_are_kept(simulate: Simulate) -> None:
    compute = [{"slices": 1, "id": 3, "start": 2}, 1]
    presets = [{"profile": "3g.40gb", "start": 4, "id": 9, "compute": compute}, {"profile": "1g.10gb", "start": 0}]
    rig = simulate({"gpus": [{"model": "h100-80gb", "mig": True, "instances": presets}]})
    (gpu,) = (await round_trip(rig, simulate)).gpus
    assert gpu.mig is not None
    assert [(ci.id, ci.slices) for ci in gpu.mig.instances[1].compute] == [(1, 1), (3, 1)]


async def test_a_mode_that_waits_for_a_reset_is_kept(simulate: Simulate) -> None:
    rig = simulate({"gpus": [{"model": "a100-40gb", "mig": False, "migPending": True}]})
    (gpu,) = (await round_trip(rig, simulate)).gpus
    assert gpu.mig is not None
    assert (gpu.mig.enabled, gpu.mig.pending, gpu.mig.profiles) == (False, True, ())


async def test_an_ampere_with_the_mode_off_can_be_partitioned_in_the_simulation(simulate: Simulate) -> None:
    recording = await simulate({"gpus": [{"model": "a100-40gb"}]}).record()
    again = simulate(recording.text)
    again.inject.set_mig_mode(0, True, force=True)
    again.inject.create_mig(0, "3g.20gb", 4)
    (gpu,) = (await again.read()).gpus
    assert gpu.mig is not None
    assert [one.placement.start for one in gpu.mig.instances] == [4]


async def test_a_lost_gpu_is_lost_in_the_recording_too(simulate: Simulate) -> None:
    rig = simulate({"gpus": [H100]})
    rig.inject.lose(1)
    reading = await round_trip(rig, simulate)
    (lost,) = reading.lost
    assert (lost.index, lost.code, len(reading.gpus), len(reading.functions)) == (1, Code.GPU_IS_LOST, 1, 2)


async def test_a_gpu_that_needs_a_reset_answers_so(simulate: Simulate) -> None:
    fault = {"op": "nvmlDeviceGetHandleByIndex_v2", "device": 1, "do": "raise", "code": "RESET_REQUIRED"}
    reading = await round_trip(simulate({"gpus": [H100], "faults": [fault]}), simulate)
    assert [one.code for one in reading.lost] == [Code.RESET_REQUIRED]


async def test_sick_gpus_are_as_sick(simulate: Simulate) -> None:
    rig = simulate({"gpus": [{"model": "h100-80gb"}, {"model": "t4"}]})
    rig.inject.count(0, ecc_uncorrected_volatile=3, remap_pending=True, remap_failed=True)
    rig.inject.count(1, retirement_pending=True)
    rig.inject.recovery_action(0, 2)
    rig.inject.links_down(0, 1, 5)
    first, second = (await round_trip(rig, simulate)).gpus
    assert (first.condition.recovery, first.condition.ecc_uncorrected) == (2, 3)
    assert (first.condition.remap_pending, first.condition.remap_failed) == (True, True)
    assert first.links is not None
    assert first.links.up == 16
    assert second.condition.retirement_pending is True


async def test_what_an_old_driver_does_not_tell_is_not_told_by_the_recording(simulate: Simulate) -> None:
    missing = [
        "nvmlDeviceGetGpuInstanceProfileInfoV",
        "nvmlGpuInstanceGetComputeInstanceProfileInfoV",
        "nvmlDeviceGetGpuFabricInfo*",
        "nvmlDeviceGetNvLinkRemoteDeviceType",
        "nvmlDeviceGetAddressingMode",
    ]
    driver = {"version": "470.256.02", "cuda": 11040, "missing": missing}
    scenario = {"driver": driver, "gpus": [{"model": "a100-40gb", "mig": True}, {"model": "a100-40gb", "count": 2}]}
    rig = simulate(scenario)
    reading = await round_trip(rig, simulate)
    assert reading.driver is not None
    assert reading.driver.version == "470.256.02"
    assert [gpu.addressing for gpu in reading.gpus] == [None] * 3
    assert "nvmlDeviceGetAddressingMode" in (await rig.record()).scenario.driver.missing


async def test_fields_that_a_gpu_refuses_are_refused(simulate: Simulate) -> None:
    refusals = [
        {"op": op, "device": 4, "do": "raise", "code": code}
        for op, code in (
            ("nvmlDeviceGetPersistenceMode", "NOT_SUPPORTED"),
            ("nvmlDeviceGetSupportedEventTypes", "UNKNOWN"),
            ("nvmlDeviceGetModuleId", "NOT_SUPPORTED"),
            ("nvmlDeviceGetBrand", "TIMEOUT"),
        )
    ]
    rig = simulate({"gpus": [H100], "faults": refusals})
    reading = await round_trip(rig, simulate)
    gpu = next(one for one in reading.gpus if one.minor == 4)
    assert (gpu.persistence, gpu.condition.monitored, gpu.module, gpu.brand) == (None, False, None, 0)
    scenario = (await rig.record()).scenario
    assert len(scenario.models) == 2, "the other GPU of the product answers"
    assert {(one.op, one.code) for one in scenario.faults} == {
        ("nvmlDeviceGetSupportedEventTypes", "UNKNOWN"),
        ("nvmlDeviceGetBrand", "TIMEOUT"),
    }


async def test_without_root_partitions_are_as_unreadable_as_they_were(simulate: Simulate) -> None:
    presets = [{"profile": "1g.10gb", "start": 0}]
    group = {"model": "h100-80gb", "mig": True, "instances": presets}
    rig = simulate({"driver": {"privileged": False}, "gpus": [group, {"model": "h100-80gb"}]})
    reading = await round_trip(rig, simulate)
    assert reading.lost == ()
    assert ["NO_PERMISSION" in gpu.unread for gpu in reading.gpus] == [True, False]
    assert (await rig.record()).scenario.driver.privileged is False


async def test_without_root_places_for_partitions_are_as_unknown_as_they_were(simulate: Simulate) -> None:
    rig = simulate({"driver": {"privileged": False}, "gpus": [{"model": "h100-80gb"}]})
    reading = await round_trip(rig, simulate)
    (gpu,) = reading.gpus
    assert gpu.mig is not None
    assert {one.placements for one in gpu.mig.profiles} == {()}
    assert (await rig.record()).scenario.driver.privileged is False


async def test_a_gpu_that_another_driver_or_none_has_is_kept_as_a_function(simulate: Simulate) -> None:
    places = zip([*ADDRESSES, "0000:61:00.0"], ["vfio-pci", "nvidia", ""], strict=True)
    rig = simulate({"gpus": [{"model": "h100-80gb", "addresses": [at], "driver": driver} for at, driver in places]})
    reading = await round_trip(rig, simulate)
    assert [one.driver for _, one in sorted(reading.functions.items())] == ["vfio-pci", "nvidia", ""]
    (gpu,) = reading.gpus
    assert gpu.pci == ADDRESSES[1]
    assert len((await rig.record()).scenario.models) == 1, "a GPU with the same PCI ids is of the same kind"


async def test_a_node_whose_gpus_are_all_passed_through_is_kept(simulate: Simulate) -> None:
    pci = {"device": "0x2bb5", "regionsMiB": [64, 131072, 32]}
    model = {"name": "X", "architecture": 10, "compute": [12, 0], "memoryMiB": 97887, "pci": pci}
    rig = simulate({"models": {"x": model}, "gpus": [{"model": "x", "count": 2, "driver": "vfio-pci"}]})
    reading = await round_trip(rig, simulate)
    assert (reading.driver, reading.gpus, len(reading.functions)) == (None, (), 2)


@pytest.mark.parametrize("state", ["unloaded", "absent"])
async def test_a_machine_without_a_driver_is_recorded_without_one(simulate: Simulate, state: str) -> None:
    rig = simulate({"driver": {"state": state}, "gpus": [{"model": "t4", "count": 2}]})
    recording = await rig.record()
    assert (recording.differences, recording.scenario.driver.state) == ((), state)
    again = simulate(recording.text)
    if state == "absent":  # it may be a node for passthrough
        assert (await again.read()).gpus == ()
    else:
        with pytest.raises(DriverMissing):
            await again.read()
        again.inject.load_driver(force=True)
        assert len((await again.read()).gpus) == 2


async def test_the_host_is_kept_as_far_as_it_says_nothing_of_its_owner(simulate: Simulate) -> None:
    ids = "10de  NVIDIA Corporation\n\t2330  GH100 [H100 SXM5 80GB]\n\t1234  Another\n"
    host = {
        "iommufd": False,
        "driverRoot": "/run/nvidia/driver",
        "kernel": "6.8.0-acme-secret",
        "cpus": 96,
        "memoryMiB": 4096,
        "vfioVariants": {"pci:v000010DEd00002330sv*sd*bc*sc*i*": "nvgrace-gpu-vfio-pci"},
        "files": {"/usr/share/misc/pci.ids": ids, "/etc/motd": "acme"},
    }
    rig = simulate({"host": host, "settings": {"dynamic_mig": True, "state": "/acme"}, "gpus": [H100]})
    reading = await round_trip(rig, simulate)
    assert {one.name for one in reading.functions.values()} == {"GH100 [H100 SXM5 80GB]"}
    assert {one.vfio_driver for one in reading.functions.values()} == {"nvgrace_gpu_vfio_pci"}
    recording = await rig.record()
    found = recording.scenario.host
    assert (found.iommufd, found.driver_root, found.kernel, found.cpus, found.memory) == (
        False,
        "/run/nvidia/driver",
        "6.8.0",
        96,
        4096,
    )
    assert recording.scenario.settings == {"dynamic_mig": True}
    assert "acme" not in recording.text
    assert "Another" not in recording.text


async def test_what_a_recording_cannot_keep_is_said_in_it(simulate: Simulate) -> None:
    rig = simulate({"gpus": [{"model": "h100-80gb", "addresses": ADDRESSES[:1]}]})
    tree = rig.simulation.tree
    tree.write(tree.sys(f"bus/pci/devices/{ADDRESSES[0]}/sriov_numvfs"), "4\n")
    recording = await rig.record()
    difference = f"functions.{ADDRESSES[0]}.has_virtual: True, reads back as False"
    assert recording.differences == (difference,)
    assert "not quite the same" in recording.text
    assert f"# - {difference}" in recording.text
