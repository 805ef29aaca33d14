"""Enumeration and sessions of the simulated NVML: what is there, under which handle, and when it is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pydra_nvidia.nvml.errors import Code

Simulate = Callable[..., Any]
FOUR = {"gpus": [{"model": "h100-80gb", "count": 4, "minors": [3, 2, 1, 0]}]}


def test_a_gpu_is_found_by_each_of_its_names_and_no_other_is(simulate: Simulate) -> None:
    rig = simulate("hgx-h100")
    nvml = rig.init()
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
    assert rig.code(nvml.nvmlDeviceGetHandleByIndex, 8) == Code.INVALID_ARGUMENT
    assert rig.code(nvml.nvmlDeviceGetHandleByUUID, "GPU-none") == Code.NOT_FOUND
    assert rig.code(nvml.nvmlDeviceGetHandleByPciBusId, "0000:ff:00.0") == Code.NOT_FOUND
    assert rig.code(nvml.nvmlDeviceGetHandleByPciBusId, "somewhere") == Code.INVALID_ARGUMENT


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


CANNOT, CAN, WRONG = Code.NOT_SUPPORTED, Code.SUCCESS, Code.INVALID_ARGUMENT
SAYS = {
    "t4": [
        ("nvmlDeviceGetMigMode", (), CANNOT),
        ("nvmlDeviceGetRemappedRows", (), CANNOT),
        ("nvmlDeviceGetRetiredPagesPendingStatus", (), CAN),
        ("nvmlDeviceGetNvLinkState", (0,), CANNOT),
        ("nvmlDeviceGetRowRemapperHistogram", (), CANNOT),
        ("nvmlDeviceGetSupportedVgpus", (), CANNOT),  # of no model: it is not simulated
    ],
    "l40s": [("nvmlDeviceGetMigMode", (), CANNOT)],
    "a100-40gb": [
        ("nvmlDeviceGetRetiredPages", (0,), CANNOT),
        ("nvmlDeviceGetNvLinkErrorCounter", (0, 0), CAN),
        ("nvmlDeviceGetGpuInstanceProfileInfo", (0,), CANNOT),
    ],
    "h100-80gb": [
        ("nvmlDeviceGetGpuInstanceProfileInfo", (0,), CAN),
        ("nvmlDeviceGetGpuInstanceProfileInfo", (0xA,), CANNOT),
        ("nvmlDeviceGetGpuInstanceProfileInfo", (0x12,), WRONG),
        ("nvmlDeviceGetNvLinkErrorCounter", (0, 0), CANNOT),
    ],
}


@pytest.mark.parametrize("model", SAYS)
def test_what_a_generation_cannot_say_is_not_supported(simulate: Simulate, model: str) -> None:
    rig = simulate({"gpus": [{"model": model}]})
    nvml, handle = rig.opened()
    assert [rig.code(getattr(nvml, call), handle, *rest) for call, rest, _ in SAYS[model]] == [
        code for _, _, code in SAYS[model]
    ]


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
