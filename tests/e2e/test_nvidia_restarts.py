"""The agent is killed, the node reboots, the vendor's driver was there before: GPUs and pods get through it."""

from __future__ import annotations

import json
import os
import shlex
import signal
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from pydra.kube.api_resources import RESOURCE_CLAIMS
from pydra_nvidia import DRIVER
from pydra_nvidia.device_names import MigName, parse_name
from tests.e2e.agent import run_agent
from tests.e2e.cluster import KUBELET_ROOT, STAY, cdi_files, records
from tests.e2e.nvidia import (
    LOOK,
    ONE,
    TWO,
    NvidiaNode,
    allocated,
    ask,
    open_machine,
    open_nvidia_cluster,
    partition,
    serve,
)

RESTART_KUBELET = shlex.split(os.environ.get("PYDRA_E2E_KUBELET_RESTART", ""))
PLUGIN = KUBELET_ROOT / "plugins" / DRIVER


@pytest.mark.gates("DRAPartitionableDevices")
async def test_a_partition_that_a_killed_agent_left_half_made_is_made_again(tmp_path: Path) -> None:
    hangs = f"{ONE}faults: [{{op: nvmlGpuInstanceCreateComputeInstance*, do: hang, count: 1}}]\n"
    async with open_nvidia_cluster() as cluster:
        await cluster.create_claim("parts", requests=[partition("1g.10gb", count=2)])
        with run_agent(cluster.node, tmp_path, backend="nvidia", scenario=hangs) as agent:
            await agent.wait_serving(cluster)
            machine = await open_machine(tmp_path)
            await cluster.create_pod("app", STAY, resourceClaimName="parts")
            await cluster.wait("half a partition", lambda: _has_instances(NvidiaNode(cluster, agent, machine)))
            assert await to_thread.run_sync(agent.stop, signal.SIGKILL) == -signal.SIGKILL
        async with serve(cluster, tmp_path, ONE) as node:
            await cluster.wait_phase("app", "Running")
            places = [place_of(one["device"]) for one in await allocated(cluster, "parts")]
            assert sorted(node.partitions()) == sorted(places)
            assert all(len(one.compute) == 1 for one in node.gpus()[0].instances)


@pytest.mark.gates("DRAPartitionableDevices")
@pytest.mark.skipif(not RESTART_KUBELET, reason="PYDRA_E2E_KUBELET_RESTART names no command that restarts the kubelet")
async def test_after_a_reboot_a_claims_partition_is_made_again(tmp_path: Path) -> None:
    boot = tmp_path / "boot_id"
    flags = ("--boot-id-file", str(boot))
    boot.write_text("the-first-boot\n")
    async with open_nvidia_cluster() as cluster:
        await cluster.create_claim("part", requests=[partition("1g.10gb")])
        with run_agent(cluster.node, tmp_path, backend="nvidia", scenario=ONE, flags=flags) as agent:
            await agent.wait_serving(cluster)
            await cluster.start_pod("app", STAY, resourceClaimName="part")
            assert await to_thread.run_sync(agent.stop) == 0
        machine = await open_machine(tmp_path)
        before = NvidiaNode(cluster, agent, machine).partitions()
        await to_thread.run_sync(machine.inject.reboot)
        boot.write_text("the-second-boot\n")
        for file in cdi_files(DRIVER):
            file.unlink()
        async with serve(cluster, tmp_path, ONE, flags=flags) as node:
            assert node.partitions() == []
            await anyio.run_process(RESTART_KUBELET)
            found = (await cluster.run_pod("look", LOOK, resourceClaimName="part"))["main"]
            assert node.partitions() == before
            assert len([line for line in found if "nvidia-cap" in line]) == 2


@pytest.mark.gates("DRAPartitionableDevices")
async def test_claims_that_the_vendors_driver_prepared_are_taken_over_while_their_pods_run(tmp_path: Path) -> None:
    async with open_nvidia_cluster() as cluster:
        requests = {"gpu": [ask()], "part": [partition("1g.10gb", count=2)]}
        for name, wanted in requests.items():
            await cluster.create_claim(name, requests=wanted)
        with run_agent(cluster.node, tmp_path, backend="nvidia", scenario=TWO) as agent:
            await agent.wait_serving(cluster)
            for name in requests:
                await cluster.start_pod(name, STAY, resourceClaimName=name)
            assert await to_thread.run_sync(agent.stop) == 0
        node = NvidiaNode(cluster, agent, await open_machine(tmp_path))
        checkpoint = await vendor_checkpoint(node, list(requests))
        for file in (*cdi_files(DRIVER), *records(DRIVER)):  # as if we had never been here
            file.unlink()
        (PLUGIN / "checkpoint.json").write_text(checkpoint)
        before = node.partitions()
        assert len(before) == 2
        try:
            async with serve(cluster, tmp_path, TWO) as node:
                await node.agent.wait_said(cluster, "took over claims that another driver had prepared: 2")
                assert node.partitions() == before
                found = (await cluster.run_pod("look", LOOK, resourceClaimName="part"))["main"]
                assert len([line for line in found if "nvidia-cap" in line]) == 4
                for name in ("look", "part"):
                    await cluster.delete_pod(name)
                assert node.partitions() == []
                assert (await cluster.pod("gpu"))["status"]["phase"] == "Running"
        finally:
            (PLUGIN / "checkpoint.json.inherited").unlink(missing_ok=True)


async def vendor_checkpoint(node: NvidiaNode, claims: list[str]) -> str:
    """What NVIDIA's driver would have written for these claims; without checksums, which are looked at to warn."""
    prepared: dict[str, Any] = {}
    for name in claims:
        claim = await node.cluster.client.get(RESOURCE_CLAIMS, name, namespace=node.cluster.namespace)
        uid, results = claim["metadata"]["uid"], claim["status"]["allocation"]["devices"]["results"]
        devices = [_vendor_device(node, uid, result) for result in results]
        prepared[uid] = {
            "checkpointState": "PrepareCompleted",
            "status": {"allocation": {"devices": {"results": results}}},
            "preparedDevices": [{"devices": devices, "configState": {"mpsControlDaemonID": ""}}],
        }
    boot = node.machine.tree.read(node.machine.tree.proc("sys/kernel/random/boot_id"))
    v2 = {"checksum": 0, "preparedClaims": prepared, "nodeBootID": boot}
    return json.dumps({"checksum": 0, "v1": {}, "v2": v2})


def _vendor_device(node: NvidiaNode, uid: str, result: dict[str, Any]) -> dict[str, Any]:
    name = result["device"]
    device = {
        "Requests": [result["request"]],
        "PoolName": result["pool"],
        "DeviceName": name,
        "CDIDeviceIDs": [f"k8s.gpu.nvidia.com/claim={uid}-{name}"],
    }
    if "-mig-" not in name:
        return {"gpu": {"info": {"uuid": node.uuid(int(name[4:]))}, "device": device}, "mig": None}
    minor, profile, start = place_of(name)
    one = next(one for one in node.gpus()[minor].instances if (one.profile, one.start) == (profile, start))
    concrete = {
        "parentMinor": minor,
        "giId": one.id,
        "ciId": one.compute[0].id,
        "migUUID": one.compute[0].uuid,
        "parentUUID": node.uuid(minor),
    }
    return {"gpu": None, "mig": {"concrete": concrete, "device": device}}


def place_of(name: str) -> tuple[int, int, int]:
    """Minor number, profile and first memory slice of a partition."""
    parsed = parse_name(name)
    assert isinstance(parsed, MigName)
    return parsed.minor, parsed.profile, parsed.start


async def _has_instances(node: NvidiaNode) -> bool:
    return bool(node.partitions())
