"""What containers get with NVIDIA GPUs, made by the real container runtime from what the agent wrote for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pydra_nvidia.simulation.tree.kernel_driver_files import compute_minor, instance_minor
from tests.e2e.cluster import STAY, Cluster
from tests.e2e.nvidia import (
    LIBRARIES,
    LOOK,
    ONE,
    PLAIN,
    TWO,
    allocated,
    ask,
    configure,
    delete_pods,
    open_node,
    partition,
)

COMMON = {"/dev/nvidia-modeset", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidiactl"}
DRIVER_VERSION = "580.105.08"


def nodes(found: list[str]) -> dict[str, str]:
    """The numbers of the device nodes, by path."""
    return {line.split()[0]: line.split()[1] for line in found if line.startswith("/dev/")}


async def test_each_container_has_the_gpus_of_its_requests_and_the_driver(tmp_path: Path) -> None:
    async with open_node(tmp_path, TWO) as node:
        await node.cluster.create_claim("pair", requests=[ask("left"), ask("right")])
        containers = {
            "left": [{"name": "claim", "request": "left"}],
            "both": [{"name": "claim"}],
            "none": [],
        }
        await node.cluster.start_pod("holder", STAY, resourceClaimName="pair")
        found = await node.cluster.run_pod("app", LOOK, claims={"claim": "pair"}, containers=containers)
        minors = {one["request"]: one["device"].removeprefix("gpu-") for one in await allocated(node.cluster, "pair")}
        assert set(nodes(found["left"])) == {*COMMON, f"/dev/nvidia{minors['left']}"}
        assert set(nodes(found["both"])) == {*COMMON, "/dev/nvidia0", "/dev/nvidia1"}
        assert nodes(found["none"]) == {}
        for name in ("left", "both"):
            assert "NVIDIA_VISIBLE_DEVICES=void" in found[name]
            assert f"libcuda libcuda.so.{DRIVER_VERSION}" in found[name], "the hook links it"


@pytest.mark.gates("DRAPartitionableDevices")
async def test_a_partition_is_made_for_its_pod_and_its_container_can_open_nothing_else(tmp_path: Path) -> None:
    async with open_node(tmp_path, ONE) as node:
        await node.cluster.wait_published()
        before = [one["metadata"]["resourceVersion"] for one in await node.cluster.slices()]
        for name in ("one", "two"):
            await node.cluster.create_claim(name, requests=[partition("1g.10gb")])
        await node.cluster.start_pod("two", STAY, resourceClaimName="two")
        await node.cluster.start_pod("one", STAY, resourceClaimName="one")
        (device,) = await allocated(node.cluster, "one")
        found = (await node.cluster.run_pod("app", LOOK, resourceClaimName="one"))["main"]
        (gpu,) = node.gpus()
        assert len(gpu.instances) == 2
        (made,) = [one for one in gpu.instances if device["device"].endswith(f"-{one.profile}-{one.start}")]
        capabilities = {instance_minor(0, made.id), compute_minor(0, made.id, made.compute[0].id)}
        assert {path: numbers for path, numbers in nodes(found).items() if path not in COMMON} == {
            "/dev/nvidia0": "1:3",  # the simulation's nodes are those of /dev/null
            **{f"/dev/nvidia-caps/nvidia-cap{minor}": f"237:{minor}" for minor in capabilities},
        }
        await delete_pods(node.cluster, ["app", "one", "two"])
        await node.wait_clean()
        assert [one["metadata"]["resourceVersion"] for one in await node.cluster.slices()] == before


async def test_without_the_hook_the_driver_is_there_under_all_its_names(tmp_path: Path) -> None:
    async with open_node(tmp_path, PLAIN + 'host: {cdiHook: ""}\n') as node:
        await node.agent.wait_said(node.cluster, "nvidia-cdi-hook is not on this node")
        await node.cluster.create_claim("gpu")
        found = (await node.cluster.run_pod("app", LOOK, resourceClaimName="gpu"))["main"]
        assert "libcuda 3" in found, "libcuda.so, libcuda.so.1 and the file itself"
        assert any(line.startswith(f"LD_LIBRARY_PATH={LIBRARIES}:") for line in found)


@pytest.mark.gates("DRAPartitionableDevices")
async def test_a_gpu_is_passed_through_and_nobody_else_gets_it_meanwhile(tmp_path: Path) -> None:
    async with open_node(tmp_path, ONE.replace("dynamic_mig: true", "dynamic_mig: true, vfio: true")) as node:
        interface = {"backendPolicy": "PreferIommuFD", "enableAPIDevice": True}
        await node.cluster.create_claim(
            "guest", requests=[ask(kind="vfio")], config=configure("VfioDeviceConfig", iommu=interface)
        )
        await node.cluster.create_claim("whole", requests=[ask()])
        await node.cluster.create_claim("part", requests=[partition("1g.10gb")])
        await node.cluster.start_pod("guest", STAY, resourceClaimName="guest")
        found = (await node.cluster.run_pod("look", LOOK, resourceClaimName="guest"))["main"]
        assert set(nodes(found)) == {"/dev/vfio/devices/vfio0", "/dev/iommu"}
        assert node.gpus()[0].driver == "vfio-pci"
        for name in ("whole", "part"):
            await node.cluster.create_pod(name, STAY, resourceClaimName=name)
            await node.cluster.stays_pending(name)
        await delete_pods(node.cluster, ["look", "guest"])
        await node.cluster.wait("one of them has the GPU", lambda: _some_running(node.cluster, "whole", "part"))
        assert node.gpus()[0].driver == "nvidia"


async def _some_running(cluster: Cluster, *names: str) -> bool:
    return "Running" in [(await cluster.pod(name))["status"]["phase"] for name in names]
