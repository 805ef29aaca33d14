"""TPUs through the chart, with no right more than it gives: the real scheduler cuts the mesh of a v5e host."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pydra_tpu import DRIVER
from pydra_tpu.simulation.machine_types import MACHINE_TYPES
from pydra_tpu.simulation.tree import write_files
from tests.e2e.cluster import STAY, Cluster
from tests.e2e.hardware import allocated, ask, open_hardware
from tests.e2e.release import IMAGE, Release
from tests.e2e.test_chart_node import create_plain_pod

pytestmark = pytest.mark.skipif(not IMAGE, reason="PYDRA_E2E_CHART_IMAGE names no image that is on the node")

LABEL = ("cloud.google.com/gke-tpu-accelerator", "tpu-v5-lite-podslice")
CHIPS = {"backends": {"tpu": {"settings": {"offer": "chips"}}}}
LOOK = "{ env | grep ^TPU_; ls /dev/vfio; } | sort >/dev/termination-log"


def build_host(tree: Path) -> Mapping[str, Any]:
    """The files of a v5e host with eight chips, and the values by which the agent finds them."""
    machine = MACHINE_TYPES["v5e-8"]
    write_files(str(tree), machine)
    told = tree / "etc" / "tpu" / "tpu-env"
    told.parent.mkdir(parents=True)
    told.write_text(f"ACCELERATOR_TYPE: 'v5litepod-8'\nTOPOLOGY: '{machine.topology}'\n")
    settings = {
        "devRoot": f"{tree}/dev",
        "tpuEnv": str(told),
        "logDirectory": f"{tree}/logs",
        "metadataServer": "",
        "pollPeriod": 0.5,
    }
    return {
        "tpu": {
            "enabled": True,
            "settings": settings,
            "env": [{"name": "PYDRA_TPU_SYS_ROOT", "value": f"/host{tree}/sys"}],
        }
    }


@asynccontextmanager
async def open_host(*values: Mapping[str, Any]) -> AsyncIterator[tuple[Cluster, Release, Path]]:
    """A node that is such a host, with the release installed."""
    async with open_hardware(DRIVER, LABEL, build_host) as (cluster, release, tree):
        await release.install(*values)
        await cluster.wait("devices are published", cluster.devices)
        yield cluster, release, tree


FIRST = [{"cel": {"expression": f"device.attributes['{DRIVER}'].index == 0"}}]
"""Of devices of one shape, that with chip 0: the scheduler of 1.35 takes any."""


async def start(cluster: Cluster, name: str, device_class: str, *, phase: str = "", **exactly: Any) -> None:
    """A pod and its claim, both of this name; waited for if the pod shall come to a phase."""
    await cluster.create_claim(name, requests=ask(device_class, **exactly))
    await cluster.create_pod(name, STAY, resourceClaimName=name)
    if phase:
        await cluster.wait_phase(name, phase)


def nodes(found: list[str]) -> list[str]:
    """Of what LOOK has found, the device nodes."""
    return [line for line in found if not line.startswith("TPU_")]


@pytest.mark.gates("DRAPartitionableDevices")
async def test_the_scheduler_cuts_the_mesh_and_pods_that_do_not_fit_get_the_reason() -> None:
    async with open_host() as (cluster, _, _):
        await start(cluster, "left", f"2x2.{DRIVER}", phase="Running")
        found = (await cluster.run_pod("look", LOOK, resourceClaimName="left"))["main"]
        assert {"TPU_TOPOLOGY=2x2", "TPU_VISIBLE_CHIPS=0,1,2,3", "TPU_ACCELERATOR_TYPE=v5litepod-4"} <= set(found)
        assert nodes(found) == ["0", "1", "2", "3", "vfio"]
        await start(cluster, "right", f"2x2.{DRIVER}", phase="Running")
        assert await allocated(cluster, "right") == ["2x2-4"]
        await start(cluster, "chip", DRIVER)
        assert "cannot allocate all claims" in await cluster.stays_pending("chip")
        await cluster.delete_pod("right")
        await cluster.wait_phase("chip", "Running")
        await start(cluster, "pair", f"1x2.{DRIVER}", phase="Running")
        await start(cluster, "square", f"2x2.{DRIVER}")
        assert "cannot allocate all claims" in await cluster.stays_pending("square")
        for name in ("chip", "pair"):
            await cluster.delete_pod(name)
        await cluster.wait_phase("square", "Running")


async def test_chips_that_are_offered_alone_are_claimed_without_any_feature_gate() -> None:
    async with open_host(CHIPS) as (cluster, _, _):
        await cluster.create_claim("half", requests=ask(DRIVER, count=4))
        found = (await cluster.run_pod("half", LOOK, resourceClaimName="half"))["main"]
        assert {"TPU_TOPOLOGY=2x2", "TPU_VISIBLE_CHIPS=0,1,2,3"} <= set(found)
        assert nodes(found) == ["0", "1", "2", "3", "vfio"]


@pytest.mark.gates("DRAPartitionableDevices")
async def test_the_containers_of_a_pod_are_processes_on_one_mesh_each_with_its_own_chips() -> None:
    processes = {
        "apiVersion": "tpu.resource.google.com/v1alpha1",
        "kind": "TpuConfig",
        "processes": {"firstPort": 9000},
    }
    async with open_host() as (cluster, _, _):
        requests = [{"name": name, "exactly": {"deviceClassName": f"2x2.{DRIVER}"}} for name in ("first", "second")]
        config = [{"opaque": {"driver": DRIVER, "parameters": processes}}]
        await cluster.create_claim("mesh", requests=requests, config=config)
        containers = {name: [{"name": "accel", "request": name}] for name in ("first", "second")}
        look = LOOK.replace("^TPU_", "-e ^TPU_ -e ^CLOUD_TPU_")
        found = await cluster.run_pod("mesh", look, containers=containers, resourceClaimName="mesh")
        for rank, (name, chips) in enumerate((("first", "0123"), ("second", "4567"))):
            assert {
                f"CLOUD_TPU_TASK_ID={rank}",
                f"TPU_PROCESS_PORT={9000 + rank}",
                "TPU_PROCESS_ADDRESSES=localhost:9000,localhost:9001",
                "TPU_PROCESS_BOUNDS=1,2,1",
            } <= set(found[name])
            assert [line for line in found[name] if "TPU_" not in line] == [*chips, "vfio"]


@pytest.mark.gates("DRAPartitionableDevices", "DRAExtendedResource")
async def test_claims_as_for_googles_driver_and_its_device_plugin_get_a_host_or_a_mesh_and_never_less() -> None:
    async with open_host() as (cluster, _, _):
        await start(cluster, "three", DRIVER, count=3)
        said = await cluster.wait_note("NotAMesh", about="three")
        assert "chips 0, 1, 2 of this host do not form a mesh together" in said
        await cluster.delete_pod("three")
        await create_plain_pod(cluster, "plain", {"google.com/tpu": 4})
        await cluster.wait_phase("plain", "Succeeded")
        await cluster.delete_pod("plain")
        await cluster.create_claim("all", requests=ask(DRIVER, allocationMode="All"))
        found = (await cluster.run_pod("all", LOOK, resourceClaimName="all"))["main"]
        assert {"TPU_TOPOLOGY=2x4", "TPU_CHIPS_PER_HOST_BOUNDS=2,4,1"} <= set(found)
        assert nodes(found) == [*map(str, range(8)), "vfio"]


@pytest.mark.gates("DRADeviceTaints", "DRAPartitionableDevices")
async def test_a_chip_whose_node_is_gone_is_shown_by_its_pod_and_kept_from_others_until_it_is_back() -> None:
    async with open_host() as (cluster, _, tree):
        await start(cluster, "left", f"2x2.{DRIVER}", phase="Running", selectors=FIRST)
        node, aside = tree / "dev" / "vfio" / "3", tree / "vfio-3"
        node.rename(aside)
        await wait_tainted(cluster, {"chip-3", "1x2-2", "2x2-0", "2x4-0"})
        await cluster.wait_health("left", "Unhealthy", "of chip 3")
        await start(cluster, "right", f"2x2.{DRIVER}", phase="Running")
        aside.rename(node)
        await wait_tainted(cluster, set())
        await cluster.wait_health("left", "Healthy")


@pytest.mark.gates("DRADeviceTaints", "DRAPartitionableDevices")
async def test_chips_that_processes_outside_of_claims_have_open_are_kept_from_claims_where_the_agent_may_look() -> None:
    may_look = {"backends": {"tpu": {"hostPID": True, "capabilities": ["SYS_PTRACE"]}}}
    async with open_host(may_look) as (cluster, release, tree):
        await cluster.create_claim("left", requests=ask(f"2x2.{DRIVER}", selectors=FIRST))
        await cluster.start_pod("left", "exec 3</dev/vfio/0; sleep 1000", resourceClaimName="left")
        descriptor = os.open(tree / "dev" / "vfio" / "5", os.O_RDONLY)
        try:
            await wait_tainted(cluster, {"chip-5", "1x2-4", "2x2-4", "2x4-0"})
            await release.upgrade(may_look, {"podAnnotations": {"upgrade": "1"}})
        finally:
            os.close(descriptor)
        await wait_tainted(cluster, set())


@pytest.mark.gates("DRAPartitionableDevices")
async def test_no_chip_is_given_twice_when_the_admin_offers_other_devices_under_a_claim() -> None:
    async with open_host() as (cluster, release, _):
        await start(cluster, "left", f"2x2.{DRIVER}", phase="Running", selectors=FIRST)
        await release.upgrade(CHIPS)
        await cluster.wait("chips are published", lambda: _published(cluster, [f"chip-{index}" for index in range(8)]))
        await start(cluster, "one", DRIVER, selectors=FIRST)
        assert await cluster.wait_note("DeviceInUse", about="one")
        assert (await cluster.pod("left"))["status"]["phase"] == "Running"
        for name in ("one", "left"):
            await cluster.delete_pod(name)
        await cluster.wait_unprepared()


async def _published(cluster: Cluster, names: list[str]) -> bool:
    return [one["name"] for one in await cluster.devices()] == names


async def wait_tainted(cluster: Cluster, wanted: set[str]) -> None:
    """Wait until these devices are tainted, and no others."""

    async def look() -> bool:
        return {one["name"] for one in await cluster.devices() if one.get("taints")} == wanted

    await cluster.wait(f"the tainted devices are {wanted}", look)
