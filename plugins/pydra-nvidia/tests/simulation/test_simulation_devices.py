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


def test_handles_of_an_ended_session_are_refused(simulate: Simulate) -> None:
    rig = simulate(FOUR)
    nvml, handle = rig.opened()
    nvml.nvmlShutdown()
    assert rig.code(nvml.nvmlDeviceGetUUID, handle) == Code.UNINITIALIZED
    nvml.nvmlInit()
    assert rig.code(nvml.nvmlDeviceGetUUID, handle) == Code.INVALID_ARGUMENT
    nvml.nvmlShutdown()
    assert rig.code(nvml.nvmlShutdown) == Code.UNINITIALIZED


def test_without_the_library_there_is_nothing_to_load(simulate: Simulate) -> None:
    rig = simulate(FOUR | {"driver": {"state": "absent"}})
    with pytest.raises(NvmlError) as caught:
        rig.simulation.load()
    assert caught.value.code == Code.LIBRARY_NOT_FOUND
    rig.inject.load_driver(force=True)
    assert rig.init().nvmlDeviceGetCount() == 4


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
