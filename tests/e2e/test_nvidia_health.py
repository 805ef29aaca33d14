"""What the slice, the scheduler, the pod's status and the pod itself show of a sick GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import pytest

from tests.e2e.cluster import STAY
from tests.e2e.nvidia import TWO, NvidiaNode, allocated, open_node, partition

SOON = ("--healthy-after", "0", "--rescan-period", "1")


@pytest.mark.gates("DRADeviceTaints", "DRAPartitionableDevices")
async def test_an_xid_taints_the_gpu_and_its_partitions_until_it_has_been_well_for_a_while(tmp_path: Path) -> None:
    scenario = TWO.replace("dynamic_mig: true", "dynamic_mig: true, quiet_period: 5")
    async with open_node(tmp_path, scenario, flags=SOON) as node:
        await node.cluster.create_claim("part", requests=[partition("1g.10gb")])
        await node.cluster.start_pod("app", STAY, resourceClaimName="part")
        assert (await allocated(node.cluster, "part"))[0]["device"].startswith("gpu-0-mig-")
        node.inject.xid(0, 31)
        node.inject.xid(0, 48)
        await node.cluster.wait_health("app", "Unhealthy", "XID 48")
        # XID 31, which an application caused, keeps nobody away.
        await wait_taints(node, {"gpu-0": {("gpu.nvidia.com/xid", "48", "NoSchedule")}})
        await node.cluster.create_claim("other", requests=[partition("7g.80gb")])
        await node.cluster.start_pod("other", STAY, resourceClaimName="other")
        assert (await allocated(node.cluster, "other"))[0]["device"].startswith("gpu-1-mig-")
        await node.cluster.wait_health("app", "Healthy")
        await wait_taints(node, {})


@pytest.mark.gates("DRADeviceTaints")
async def test_pods_leave_a_lost_gpu_and_its_claims_end(tmp_path: Path) -> None:
    flags = (*SOON, "--health-taint", "NoExecute")
    async with open_node(tmp_path, TWO, flags=flags) as node:
        for name in ("first", "second"):
            await node.cluster.create_claim(name)
            await node.cluster.start_pod(name, STAY, resourceClaimName=name)
        assert (await allocated(node.cluster, "first"))[0]["device"] == "gpu-0"
        node.inject.lose(0)
        await node.cluster.wait_gone("first")
        assert (await node.cluster.pod("second"))["status"]["phase"] == "Running"
        await wait_taints(node, {"gpu-0": {("gpu.nvidia.com/gpu-lost", "", "NoExecute")}})
        node.inject.reset(0, force=True)
        await node.cluster.create_pod("first", STAY, resourceClaimName="first")
        await node.cluster.wait_phase("first", "Running")


Taints: TypeAlias = dict[str, set[tuple[str, str, str]]]
"""By GPU, those of its devices that keep pods away: key, value and effect."""


async def wait_taints(node: NvidiaNode, wanted: Taints) -> None:
    """Wait until the slices have these; the pods' status may be ahead of them."""

    async def look() -> bool:
        return await taints(node) == wanted

    await node.cluster.wait(f"the taints {wanted}", look)


async def taints(node: NvidiaNode) -> Taints:
    """Those in the slices."""
    found: Taints = {}
    for device in await node.cluster.devices():
        for taint in device.get("taints") or ():
            if taint["effect"] != "None":
                gpu = device["name"].partition("-mig-")[0]
                found.setdefault(gpu, set()).add((taint["key"], taint.get("value", ""), taint["effect"]))
    return found
