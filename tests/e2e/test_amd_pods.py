"""AMD GPUs through the chart, with no right more than it gives: partitions that exist, modes that claims choose."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from pydra_amd import DRIVER
from pydra_amd.host.amdgpu import BOUND, COMPUTE, MEMORY
from pydra_amd.simulation.amdgpu_driver import Driver
from pydra_amd.simulation.machine_types import MACHINE_TYPES
from pydra_amd.simulation.tree import write_files
from tests.chart.rendering import at
from tests.e2e.cluster import STAY
from tests.e2e.hardware import allocated, ask, open_hardware
from tests.e2e.release import IMAGE
from tests.e2e.test_chart_node import create_plain_pod
from tests.e2e.watched_files import react_to_writes

pytestmark = pytest.mark.skipif(not IMAGE, reason="PYDRA_E2E_CHART_IMAGE names no image that is on the node")

LABEL = ("feature.node.kubernetes.io/amd-gpu", "true")
LOOK = "ls /dev/kfd /dev/dri/* | sort >/dev/termination-log"


MACHINE = MACHINE_TYPES["mi300x-8"]


def build_host(tree: Path) -> Mapping[str, Any]:
    """The files of a host with eight MI300X, and the values by which the agent finds them and writes to them."""
    write_files(str(tree), MACHINE)
    return {
        "amd": {
            "enabled": True,
            "settings": {"devRoot": f"{tree}/dev", "pollPeriod": 0.5},
            "hostPaths": [{"path": f"{tree}/sys", "mountPath": "/host-sys"}],
            "env": [{"name": "PYDRA_AMD_SYS_ROOT", "value": "/host-sys"}],
        }
    }


def list_mode_files(tree: Path, name: str = COMPUTE) -> list[Path]:
    """Where the driver has the GPUs' compute modes, or memory modes."""
    return [tree / "sys" / BOUND / address / name for address in MACHINE.addresses]


def run_driver(tree: Path) -> AbstractContextManager[Callable[[], None]]:
    """A driver that has done what is written to its files before anybody looks."""
    driver = Driver(str(tree), MACHINE)
    files = [*list_mode_files(tree), *list_mode_files(tree, MEMORY)]
    return react_to_writes(files, lambda path, text: driver.react(str(path), text))


def write_modprobe(folder: Path) -> None:
    """A program for the node's own modprobe, which asks the test: the host's files are read-only for it."""
    folder.mkdir()
    for name in ("asked", "answered"):
        os.mkfifo(folder / name, 0o600)
    program = folder / "modprobe"
    program.write_text(f'#!/bin/sh\necho "$@" >{folder}/asked\nread -r code <{folder}/answered\nexit "$code"\n')
    program.chmod(0o755)


@contextmanager
def serve_modprobe(tree: Path, loaded: Callable[[], None]) -> Iterator[list[str]]:
    """What `modprobe` was called with; it does that to the driver, and `loaded` is called after each loading."""
    driver, folder, calls = Driver(str(tree), MACHINE), tree / "bin", list[str]()

    def serve() -> None:
        while arguments := (folder / "asked").read_text().strip():
            if arguments == "-r amdgpu":
                read_all(list_mode_files(tree, MEMORY))  # which has the driver take what was written there
                driver.unload()
            else:
                driver.load(keeps=False)
                loaded()
            calls.append(arguments)
            (folder / "answered").write_text("0\n")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield calls
    finally:
        with suppress(OSError):  # it may not listen, when the agent has ended a modprobe
            os.write(os.open(folder / "asked", os.O_WRONLY | os.O_NONBLOCK), b"\n")
        thread.join(5)


async def test_a_partition_and_a_whole_gpu_are_used_side_by_side() -> None:
    async with open_hardware(DRIVER, LABEL, build_host) as (cluster, release, tree):
        Driver(str(tree), MACHINE).react(str(list_mode_files(tree)[0]), "CPX")
        await release.install()
        await cluster.wait("devices are published", cluster.devices)
        assert len(await cluster.devices()) == 8 + 7
        cpx = f"device.attributes['{DRIVER}'].computePartition == 'cpx'"
        part = {"deviceClassName": DRIVER, "selectors": [{"cel": {"expression": cpx}}]}
        whole = {"deviceClassName": f"{DRIVER}-spx"}
        requests = [{"name": "part", "exactly": part}, {"name": "whole", "exactly": whole}]
        await cluster.create_claim("both", requests=requests)
        containers = {name: [{"name": "both", "request": name}] for name in ("part", "whole")}
        found = await cluster.run_pod("app", LOOK, claims={"both": "both"}, containers=containers)
        assert found["part"] == ["/dev/dri/card1", "/dev/dri/renderD128", "/dev/kfd"]
        assert found["whole"] == ["/dev/dri/card9", "/dev/dri/renderD136", "/dev/kfd"]


@pytest.mark.gates("DRAExtendedResource")
async def test_a_pod_that_asks_as_with_the_device_plugin_gets_gpus() -> None:
    async with open_hardware(DRIVER, LABEL, build_host) as (cluster, release, _):
        await release.install()
        await create_plain_pod(cluster, "plain", {"amd.com/gpu": 2})
        await cluster.wait_phase("plain", "Succeeded")


@pytest.mark.gates("DRAPartitionableDevices")
async def test_a_claim_chooses_the_mode_of_its_gpu_which_is_set_back_without_any_privilege() -> None:
    async with open_hardware(DRIVER, LABEL, build_host) as (cluster, release, tree):
        with run_driver(tree):
            await release.install(at("backends.amd.settings.partitioning", "compute"))
            cpx = f"device.attributes['{DRIVER}'].computePartition == 'cpx'"
            await cluster.create_claim("eighth", requests=ask(DRIVER, selectors=[{"cel": {"expression": cpx}}]))
            await cluster.create_claim("whole", requests=ask(f"{DRIVER}-spx"))
            for name in ("eighth", "whole"):
                await cluster.start_pod(name, STAY, resourceClaimName=name)
            (part,), (whole,) = await allocated(cluster, "eighth"), await allocated(cluster, "whole")
            modes = [path.read_text().strip() for path in list_mode_files(tree)]
            assert ("-cpx-nps1-" in part, modes.pop(find_gpu(part)), set(modes)) == (True, "CPX", {"SPX"})
            assert find_gpu(whole) != find_gpu(part)
            (container,) = (await release.agent())["spec"]["containers"]
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            await cluster.delete_pod("eighth")
            assert read_all(list_mode_files(tree)) == {"SPX"}


@pytest.mark.gates("DRAPartitionableDevices")
async def test_a_claim_chooses_the_memory_mode_of_all_gpus_for_which_the_nodes_own_modprobe_reloads_the_driver() -> (
    None
):
    async with open_hardware(DRIVER, LABEL, build_host) as (cluster, release, tree):
        write_modprobe(tree / "bin")
        path = {"name": "PATH", "value": f"{tree}/bin:/usr/local/bin:/usr/sbin:/usr/bin"}
        sys_root = {"name": "PYDRA_AMD_SYS_ROOT", "value": "/host-sys"}
        own = {"settings": {"partitioning": "memory"}, "capabilities": ["SYS_MODULE", "SYS_CHROOT"]}
        with run_driver(tree) as loaded, serve_modprobe(tree, loaded) as calls:
            await release.install({"backends": {"amd": {**own, "env": [path, sys_root]}}})
            profile = f"device.attributes['{DRIVER}'].partitionProfile == 'cpx_nps4'"
            await cluster.create_claim("eighth", requests=ask(DRIVER, selectors=[{"cel": {"expression": profile}}]))
            await cluster.start_pod("eighth", STAY, resourceClaimName="eighth")
            (part,) = await allocated(cluster, "eighth")
            assert ("-cpx-nps4-" in part, read_all(list_mode_files(tree, MEMORY))) == (True, {"NPS4"})
            assert list_mode_files(tree)[find_gpu(part)].read_text().strip() == "CPX"
            other = "gpu-1-128" if find_gpu(part) else "gpu-9-136"

            async def is_tainted() -> bool:
                devices = {one["name"]: one.get("taints", ()) for one in await cluster.devices()}
                return [one["key"] for one in devices[other]] == [f"{DRIVER}/memory-partition-conflict"]

            await cluster.wait("GPUs of the other memory mode are tainted", is_tainted)
            await cluster.delete_pod("eighth")
            assert read_all(list_mode_files(tree, MEMORY)) == {"NPS1"}
            assert read_all(list_mode_files(tree)) == {"SPX"}
            assert calls == ["-r amdgpu", "amdgpu"] * 2


def find_gpu(device: str) -> int:
    """Which GPU it is of. The scheduler of 1.35 takes any; each GPU has eight cards."""
    return int(device.split("-")[1]) // 8


def read_all(paths: list[Path]) -> set[str]:
    """What the files say."""
    return {path.read_text().strip() for path in paths}
