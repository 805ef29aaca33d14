"""What the simulated NVML measures and counts, and how its GPUs are connected."""

from __future__ import annotations

import ctypes
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from pydra_nvidia.nvml.errors import Code

Simulate = Callable[..., Any]


def test_what_is_measured_is_what_was_set(simulate: Simulate) -> None:
    rig = simulate("hgx-h100")
    nvml, gpu = rig.opened()
    minor = nvml.nvmlDeviceGetMinorNumber(gpu)
    rig.inject.measure(minor, temperature=71, power=432000, utilization=88, memory_utilization=40, memory_used=1000)
    utilization = nvml.nvmlDeviceGetUtilizationRates(gpu)
    assert nvml.nvmlDeviceGetTemperature(gpu, 0) == 71
    assert (nvml.nvmlDeviceGetPowerUsage(gpu), nvml.nvmlDeviceGetEnforcedPowerLimit(gpu)) == (432000, 700000)
    assert (utilization.gpu, utilization.memory) == (88, 40)
    assert nvml.nvmlDeviceGetMemoryInfo(gpu).used == 1480 << 20


def test_errors_are_counted(simulate: Simulate) -> None:
    rig = simulate("hgx-h100")
    nvml, gpu = rig.opened()
    minor = nvml.nvmlDeviceGetMinorNumber(gpu)
    rig.inject.count(
        minor,
        ecc_corrected=7,
        ecc_uncorrected_volatile=1,
        remapped_uncorrected=2,
        remap_pending=True,
        pcie_replays=3,
        nvlink_crc=4,
    )
    rig.inject.recovery_action(minor, 1)
    assert nvml.nvmlDeviceGetTotalEccErrors(gpu, 0, 1) == 7
    assert nvml.nvmlDeviceGetTotalEccErrors(gpu, 1, 0) == 1
    assert nvml.nvmlDeviceGetRemappedRows(gpu) == (0, 2, 1, 0)
    assert nvml.nvmlDeviceGetPcieReplayCounter(gpu) == 3
    values = nvml.nvmlDeviceGetFieldValues(gpu, [230, (163, 0), (163, 1), 4711])
    assert [(one.nvmlReturn, one.value.ullVal) for one in values[:3]] == [(0, 1), (0, 4), (0, 0)]
    assert values[3].nvmlReturn == Code.NOT_SUPPORTED


def test_retired_pages_are_listed_where_there_are_such(simulate: Simulate) -> None:
    rig = simulate("t4")
    nvml, gpu = rig.opened()
    assert nvml.nvmlDeviceGetRetiredPages(gpu, 1) == []
    rig.inject.count(1, retired_double=2, retirement_pending=True)
    assert len(nvml.nvmlDeviceGetRetiredPages(gpu, 1)) == 2
    assert nvml.nvmlDeviceGetRetiredPagesPendingStatus(gpu) == 1


def test_links_of_a_switched_node_end_at_switches(simulate: Simulate) -> None:
    rig = simulate("hgx-h100")
    nvml, gpu = rig.opened()
    rig.inject.links_down(nvml.nvmlDeviceGetMinorNumber(gpu), [3, 17])
    states = [nvml.nvmlDeviceGetNvLinkState(gpu, link) for link in range(18)]
    assert [link for link, state in enumerate(states) if not state] == [3, 17]
    assert nvml.nvmlDeviceGetNvLinkRemoteDeviceType(gpu, 0) == 2
    assert nvml.nvmlDeviceGetNvLinkRemotePciInfo(gpu, 0).busId.startswith("00000000:F")
    assert rig.code(nvml.nvmlDeviceGetNvLinkRemotePciInfo, gpu, 3) == Code.NOT_SUPPORTED
    assert rig.code(nvml.nvmlDeviceGetNvLinkState, gpu, 18) == Code.NOT_SUPPORTED
    assert rig.code(nvml.nvmlDeviceGetNvLinkState, gpu, 36) == Code.INVALID_ARGUMENT


def test_direct_links_end_at_the_other_gpus(simulate: Simulate) -> None:
    nvml, gpu = simulate("a30").opened()
    remotes = {nvml.nvmlDeviceGetNvLinkRemotePciInfo(gpu, link).busId for link in range(4)}
    assert remotes == {"00000000:65:00.0", "00000000:CA:00.0", "00000000:E3:00.0"}
    assert nvml.nvmlDeviceGetNvLinkRemoteDeviceType(gpu, 0) == 0


@pytest.mark.parametrize(
    ("scenario", "cluster", "clique", "summary"),
    [
        ("gb200", "5a4f3c1e-9d27-4b86-a0c5-7e1f2b3d4c5a", 2, 1),
        ("hgx-h100", "00000000-0000-0000-0000-000000000000", 0, 0),
    ],
)
def test_the_fabric_is_reported_in_each_version_of_its_struct(
    simulate: Simulate, scenario: str, cluster: str, clique: int, summary: int
) -> None:
    rig = simulate(scenario)
    nvml, gpu = rig.opened()
    for kind in (nvml.c_nvmlGpuFabricInfo_v2_t, nvml.c_nvmlGpuFabricInfo_v3_t):
        info = kind()
        nvml.nvmlDeviceGetGpuFabricInfoV(gpu, ctypes.byref(info))
        assert (str(uuid.UUID(bytes=bytes(info.clusterUuid))), info.cliqueId, info.state) == (cluster, clique, 3)
    assert info.healthSummary == summary
    info.version = 7
    assert rig.code(nvml.nvmlDeviceGetGpuFabricInfoV, gpu, ctypes.byref(info)) == Code.ARGUMENT_VERSION_MISMATCH


def test_a_coherent_gpu_tells_how_it_is_addressed(simulate: Simulate) -> None:
    nvml = simulate("gb200").init()
    gpu = nvml.nvmlDeviceGetHandleByIndex(3)
    assert nvml.nvmlDeviceGetAddressingMode(gpu) == 2
