"""Enumeration and sessions of the simulated NVML: what is there, under which handle, and when it is not."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pydra_nvidia.nvml.errors import Code, NvmlError

Simulate = Callable[..., Any]
FOUR = {"gpus": [{"model": "h100-80gb", "count": 4, "minors": [3, 2, 1, 0]}]}


def test_a_gpu_is_found_by_each_of_its_names(simulate: Simulate) -> None:
    nvml = simulate("hgx-h100").init()
    handle = nvml.nvmlDeviceGetHandleByIndex(3)
    uuid, pci = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetPciInfo(handle)
    for found in (
        nvml.nvmlDeviceGetHandleByUUID(uuid),
        nvml.nvmlDeviceGetHandleByPciBusId(pci.busId),
        nvml.nvmlDeviceGetHandleByPciBusId(pci.busIdLegacy.lower()),
    ):
        assert nvml.nvmlDeviceGetUUID(found) == uuid
    assert (pci.busId, pci.busIdLegacy, pci.bus) == ("00000000:61:00.0", "0000:61:00.0", 0x61)
    assert pci.pciDeviceId == 0x233010DE


@pytest.mark.parametrize(
    ("call", "argument", "code"),
    [
        ("nvmlDeviceGetHandleByIndex", 8, Code.INVALID_ARGUMENT),
        ("nvmlDeviceGetHandleByUUID", "GPU-none", Code.NOT_FOUND),
        ("nvmlDeviceGetHandleByPciBusId", "0000:ff:00.0", Code.NOT_FOUND),
        ("nvmlDeviceGetHandleByPciBusId", "somewhere", Code.INVALID_ARGUMENT),
    ],
)
def test_what_is_not_there_is_not_found(simulate: Simulate, call: str, argument: object, code: Code) -> None:
    rig = simulate("hgx-h100")
    nvml = rig.init()
    assert rig.code(getattr(nvml, call), argument) == code


def test_a_gpu_on_vfio_is_gone_from_the_next_session_and_minors_stay(simulate: Simulate) -> None:
    rig = simulate(FOUR)
    nvml, first = rig.opened()
    uuid = nvml.nvmlDeviceGetUUID(first)
    with rig.machine.change() as view:
        view.state.gpus[uuid].driver = "vfio-pci"
    assert nvml.nvmlDeviceGetCount() == 4  # the session knows what was there when it began
    assert rig.code(nvml.nvmlDeviceGetUUID, first) == Code.GPU_IS_LOST
    nvml.nvmlShutdown()
    nvml.nvmlInit()
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    assert [nvml.nvmlDeviceGetMinorNumber(handle) for handle in handles] == [2, 1, 0]
    assert rig.code(nvml.nvmlDeviceGetHandleByUUID, uuid) == Code.NOT_FOUND


def test_without_gpus_a_session_begins_only_when_asked_to(simulate: Simulate) -> None:
    rig = simulate({})
    nvml = rig.simulation.load()
    assert rig.code(nvml.nvmlInit) == Code.NOT_FOUND
    nvml.nvmlInitWithFlags(1)
    assert nvml.nvmlDeviceGetCount() == 0


def test_a_lost_gpu_answers_so_to_every_call_and_the_others_do_not(simulate: Simulate) -> None:
    rig = simulate(FOUR)
    nvml, handle = rig.opened()
    rig.inject.lose(3)
    for call in (nvml.nvmlDeviceGetUUID, nvml.nvmlDeviceGetMigMode, nvml.nvmlDeviceGetMemoryInfo):
        assert rig.code(call, handle) == Code.GPU_IS_LOST
    assert rig.code(nvml.nvmlDeviceGetHandleByIndex, 0) == Code.GPU_IS_LOST
    assert nvml.nvmlDeviceGetCount() == 4
    assert nvml.nvmlDeviceGetMinorNumber(nvml.nvmlDeviceGetHandleByIndex(1)) == 2
    rig.inject.reset(3, force=True)
    assert nvml.nvmlDeviceGetMinorNumber(handle) == 3


@pytest.mark.parametrize("device", ["gpu-3", "gpu-3-mig-1g10gb-19-0"])
def test_a_gpu_is_lost_while_one_of_its_devices_has_a_mark(simulate: Simulate, device: str) -> None:
    rig = simulate(FOUR)
    nvml, handle = rig.opened()
    mark = Path(rig.machine.path, "unhealthy", device)
    mark.touch()
    assert rig.code(nvml.nvmlDeviceGetUUID, handle) == Code.GPU_IS_LOST
    assert nvml.nvmlDeviceGetMinorNumber(nvml.nvmlDeviceGetHandleByIndex(1)) == 2
    mark.unlink()
    assert nvml.nvmlDeviceGetMinorNumber(handle) == 3
    nvml.nvmlShutdown()


def test_a_gpu_that_is_plugged_in_is_there_in_the_next_session(simulate: Simulate) -> None:
    rig = simulate({"gpus": [{"model": "t4"}, {"model": "t4", "plugged": False, "minors": [7]}]})
    nvml = rig.init()
    assert nvml.nvmlDeviceGetCount() == 1
    rig.inject.plug(7)
    nvml.nvmlShutdown()
    nvml.nvmlInit()
    assert nvml.nvmlDeviceGetCount() == 2
    rig.inject.unplug(7)
    assert rig.code(nvml.nvmlDeviceGetHandleByIndex, 1) == Code.GPU_IS_LOST


def test_handles_of_an_ended_session_are_refused(simulate: Simulate) -> None:
    rig = simulate(FOUR)
    nvml, handle = rig.opened()
    nvml.nvmlShutdown()
    assert rig.code(nvml.nvmlDeviceGetUUID, handle) == Code.UNINITIALIZED
    nvml.nvmlInit()
    assert rig.code(nvml.nvmlDeviceGetUUID, handle) == Code.INVALID_ARGUMENT
    nvml.nvmlShutdown()
    assert rig.code(nvml.nvmlShutdown) == Code.UNINITIALIZED


def test_sessions_nest(simulate: Simulate) -> None:
    rig = simulate(FOUR)
    nvml, handle = rig.opened()
    nvml.nvmlInit()
    nvml.nvmlShutdown()
    assert nvml.nvmlDeviceGetMinorNumber(handle) == 3
    nvml.nvmlShutdown()
    assert rig.code(nvml.nvmlDeviceGetCount) == Code.UNINITIALIZED


def test_a_driver_that_is_not_loaded_comes_up_later(simulate: Simulate) -> None:
    rig = simulate(FOUR | {"driver": {"state": "unloaded"}})
    nvml = rig.simulation.load()
    assert rig.code(nvml.nvmlInit) == Code.DRIVER_NOT_LOADED
    rig.inject.load_driver(force=True)
    nvml.nvmlInit()
    assert nvml.nvmlDeviceGetCount() == 4


def test_without_the_library_there_is_nothing_to_load(simulate: Simulate) -> None:
    rig = simulate(FOUR | {"driver": {"state": "absent"}})
    with pytest.raises(NvmlError) as caught:
        rig.simulation.load()
    assert caught.value.code == Code.LIBRARY_NOT_FOUND
    rig.inject.load_driver(force=True)
    assert rig.init().nvmlDeviceGetCount() == 4


def test_a_driver_that_was_unloaded_ends_the_session(simulate: Simulate) -> None:
    rig = simulate(FOUR)
    nvml, handle = rig.opened()
    rig.inject.unload_driver(force=True)
    assert rig.code(nvml.nvmlDeviceGetUUID, handle) == Code.UNINITIALIZED
    assert rig.code(nvml.nvmlInit) == Code.DRIVER_NOT_LOADED
    rig.inject.load_driver(force=True)
    assert rig.code(nvml.nvmlDeviceGetCount) == Code.UNINITIALIZED
    nvml.nvmlInit()
    assert nvml.nvmlDeviceGetCount() == 4


def test_a_driver_that_was_replaced_does_not_fit_the_library_from_before(simulate: Simulate) -> None:
    rig = simulate(FOUR)
    nvml = rig.init()
    rig.inject.load_driver("590.10", force=True)
    assert rig.code(nvml.nvmlInit) == Code.LIB_RM_VERSION_MISMATCH
    assert rig.init().nvmlSystemGetDriverVersion() == "590.10"


def test_an_old_driver_lacks_symbols_and_a_new_sdk_says_so(simulate: Simulate) -> None:
    rig = simulate(FOUR | {"driver": {"missing": ["nvmlDeviceGetGpuFabricInfo*"]}})
    nvml, handle = rig.opened()
    info = nvml.c_nvmlGpuFabricInfo_v3_t()
    assert rig.code(nvml.nvmlDeviceGetGpuFabricInfoV, handle, ctypes.byref(info)) == Code.FUNCTION_NOT_FOUND
    assert nvml.nvmlDeviceGetMinorNumber(handle) == 3


def test_errors_have_names(simulate: Simulate) -> None:
    nvml = simulate(FOUR).simulation.load()
    assert [nvml.nvmlErrorString(code) for code in (3, 15, 4711)] == ["Not supported", "Gpu is lost", "Unknown"]


def test_a_function_that_is_not_simulated_is_not_supported(simulate: Simulate) -> None:
    rig = simulate(FOUR)
    nvml, handle = rig.opened()
    assert rig.code(nvml.nvmlDeviceGetSupportedVgpus, handle) == Code.NOT_SUPPORTED


@pytest.mark.parametrize(
    ("model", "call", "arguments", "code"),
    [
        ("t4", "nvmlDeviceGetMigMode", (), Code.NOT_SUPPORTED),
        ("t4", "nvmlDeviceGetRemappedRows", (), Code.NOT_SUPPORTED),
        ("t4", "nvmlDeviceGetRetiredPagesPendingStatus", (), Code.SUCCESS),
        ("t4", "nvmlDeviceGetNvLinkState", (0,), Code.NOT_SUPPORTED),
        ("t4", "nvmlDeviceGetRowRemapperHistogram", (), Code.NOT_SUPPORTED),
        ("l40s", "nvmlDeviceGetMigMode", (), Code.NOT_SUPPORTED),
        ("a100-40gb", "nvmlDeviceGetRetiredPages", (0,), Code.NOT_SUPPORTED),
        ("a100-40gb", "nvmlDeviceGetNvLinkErrorCounter", (0, 0), Code.SUCCESS),
        ("a100-40gb", "nvmlDeviceGetGpuInstanceProfileInfo", (0,), Code.NOT_SUPPORTED),
        ("h100-80gb", "nvmlDeviceGetGpuInstanceProfileInfo", (0,), Code.SUCCESS),
        ("h100-80gb", "nvmlDeviceGetGpuInstanceProfileInfo", (0xA,), Code.NOT_SUPPORTED),
        ("h100-80gb", "nvmlDeviceGetGpuInstanceProfileInfo", (0x12,), Code.INVALID_ARGUMENT),
        ("h100-80gb", "nvmlDeviceGetNvLinkErrorCounter", (0, 0), Code.NOT_SUPPORTED),
    ],
)
def test_what_a_generation_cannot_say_is_not_supported(
    simulate: Simulate, model: str, call: str, arguments: tuple[object, ...], code: Code
) -> None:
    rig = simulate({"gpus": [{"model": model}]})
    nvml, handle = rig.opened()
    assert rig.code(getattr(nvml, call), handle, *arguments) == code


def test_a_model_can_lack_what_its_generation_has(simulate: Simulate) -> None:
    model = {
        "name": "NVIDIA X",
        "architecture": 9,
        "compute": [9, 0],
        "memoryMiB": 100,
        "memoryReported": False,
        "pci": {"device": "0x1234"},
        "unsupported": ["nvmlDeviceGetTemp*"],
        "unsupportedFields": [230],
    }
    rig = simulate({"models": {"x": model}, "gpus": [{"model": "x"}]})
    nvml, handle = rig.opened()
    assert rig.code(nvml.nvmlDeviceGetTemperature, handle, 0) == Code.NOT_SUPPORTED
    assert rig.code(nvml.nvmlDeviceGetMemoryInfo, handle) == Code.NOT_SUPPORTED
    assert nvml.nvmlDeviceGetFieldValues(handle, [230])[0].nvmlReturn == Code.NOT_SUPPORTED


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("nvmlDeviceSetMigMode", (1,)),
        ("nvmlDeviceSetComputeMode", (3,)),
        ("nvmlDeviceSetPersistenceMode", (0,)),
    ],
)
def test_who_is_not_root_changes_nothing(simulate: Simulate, call: str, arguments: tuple[object, ...]) -> None:
    rig = simulate(FOUR | {"driver": {"privileged": False}})
    nvml, handle = rig.opened()
    assert rig.code(getattr(nvml, call), handle, *arguments) == Code.NO_PERMISSION
    assert nvml.nvmlDeviceGetMigMode(handle) == [0, 0]


def test_only_root_gets_the_places_where_partitions_could_be(simulate: Simulate) -> None:
    rig = simulate(FOUR | {"driver": {"privileged": False}})
    nvml, handle = rig.opened()
    ask, count = nvml.nvmlDeviceGetGpuInstancePossiblePlacements, ctypes.c_uint()
    assert rig.code(ask, handle, 19, None, ctypes.byref(count)) == Code.NO_PERMISSION
    assert nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, 0, version=2).id == 19


def test_compute_mode_and_persistence_are_kept_until_the_machine_starts_again(simulate: Simulate) -> None:
    rig = simulate(FOUR)
    nvml, handle = rig.opened()
    nvml.nvmlDeviceSetComputeMode(handle, 3)
    nvml.nvmlDeviceSetPersistenceMode(handle, 0)
    assert rig.code(nvml.nvmlDeviceSetComputeMode, handle, 1) == Code.INVALID_ARGUMENT
    nvml.nvmlShutdown()
    nvml, handle = rig.opened()
    assert (nvml.nvmlDeviceGetComputeMode(handle), nvml.nvmlDeviceGetPersistenceMode(handle)) == (3, 0)
    rig.inject.reboot()
    nvml, handle = rig.opened()
    assert nvml.nvmlDeviceGetComputeMode(handle) == 0


def test_processes_are_listed_with_their_memory(simulate: Simulate) -> None:
    rig = simulate(FOUR)
    nvml, handle = rig.opened()
    assert nvml.nvmlDeviceGetComputeRunningProcesses(handle) == []
    free = nvml.nvmlDeviceGetMemoryInfo(handle).free
    rig.inject.start_process(3, pid=4711, memory=1000, name="train")
    rig.inject.start_process(3, pid=4712, memory=10, kind="graphics")
    (process,) = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    assert (process.pid, process.usedGpuMemory, process.gpuInstanceId) == (4711, 1000 << 20, 0xFFFFFFFF)
    assert [one.pid for one in nvml.nvmlDeviceGetGraphicsRunningProcesses(handle)] == [4712]
    assert nvml.nvmlSystemGetProcessName(4711) == "train"
    assert free - nvml.nvmlDeviceGetMemoryInfo(handle).free == 1010 << 20
    rig.inject.end_process(3, 4711)
    assert nvml.nvmlDeviceGetComputeRunningProcesses(handle) == []
