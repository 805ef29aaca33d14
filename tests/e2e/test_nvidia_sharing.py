"""Configuration of NVIDIA devices by claims: what is set, what containers get, what a wrong one is told."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from anyio import to_thread

from tests.e2e.agent import run_agent
from tests.e2e.cluster import STAY
from tests.e2e.nvidia import PLAIN, ask, configure, open_node, open_nvidia_cluster, serve

MPS = {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 50, "defaultPinnedDeviceMemoryLimit": "10Gi"}}
SLICES = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
LOOK = "{ env | grep CUDA_MPS; [ -S /tmp/nvidia-mps/control ] && echo control; } >/dev/termination-log"
PIPES = ["CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps", "control"]


@pytest.fixture
def short_path() -> Iterator[Path]:
    """For what has sockets in it: their paths are of 107 bytes at most, of which an MPS daemon's needs 84."""
    with tempfile.TemporaryDirectory(prefix="") as name:
        if len(os.fsencode(name)) > 107 - 84:
            pytest.skip(f"the paths of sockets in {name} are too long; TMPDIR can name another place")
        yield Path(name)


async def test_a_gpu_is_shared_through_a_daemon_that_outlives_the_agent(short_path: Path) -> None:
    async with open_nvidia_cluster() as cluster:
        await cluster.create_claim("mps", config=configure("GpuConfig", sharing=MPS))
        with run_agent(cluster.node, short_path, backend="nvidia", scenario=PLAIN) as agent:
            await agent.wait_serving(cluster)
            await cluster.start_pod("holder", STAY, resourceClaimName="mps")
            assert (await cluster.run_pod("one", LOOK, resourceClaimName="mps"))["main"] == PIPES
            before = daemons(short_path)
            assert len(before) == 1
            assert await to_thread.run_sync(agent.stop) == 0
        async with serve(cluster, short_path, PLAIN) as node:
            assert sorted(gpu.compute_mode for gpu in node.gpus()) == [0, 3], "only the daemon computes on it"
            assert (await cluster.run_pod("two", LOOK, resourceClaimName="mps"))["main"] == PIPES
            assert daemons(short_path) == before
            await cluster.clear()
            await node.wait_clean()
            assert daemons(short_path) == []


async def test_a_time_slice_is_set_while_a_claim_wants_it(tmp_path: Path) -> None:
    async with open_node(tmp_path, PLAIN) as node:
        await node.cluster.create_claim("sliced", config=configure("GpuConfig", sharing=SLICES))
        await node.cluster.start_pod("app", STAY, resourceClaimName="sliced")
        assert sorted(gpu.time_slice for gpu in node.gpus()) == [0, 3]
        await node.cluster.delete_pod("app")
        assert sorted(gpu.time_slice for gpu in node.gpus()) == [0, 0]


WRONG: dict[str, tuple[list[Any], tuple[str, ...]]] = {
    "misspelt": (configure("GpuConfig", sharin=SLICES), ("$.sharin: unknown field", "sharing")),
    "no-interval": (
        configure("GpuConfig", sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Loong"}}),
        ("interval", "Loong", "Medium"),
    ),
    "both": (
        configure("GpuConfig", sharing={**MPS, "timeSlicingConfig": {"interval": "Long"}}),
        ("sharing.timeSlicingConfig", "MPS"),
    ),
    "other-device": (
        configure("MigDeviceConfig", ["gpu"], sharing=MPS),
        ("request gpu", "MigDeviceConfig", "GpuConfig"),
    ),
    "no-such-gpu": (
        configure(
            "GpuConfig", sharing={"strategy": "MPS", "mpsConfig": {"defaultPerDevicePinnedMemoryLimit": {"7": "1Gi"}}}
        ),
        ('defaultPerDevicePinnedMemoryLimit["7"]', "allowed: 0"),
    ),
}


async def test_claims_with_wrong_configurations_say_what_to_change_and_cost_the_others_nothing(tmp_path: Path) -> None:
    scenario = PLAIN.replace("count: 2", "count: 8")
    async with open_node(tmp_path, scenario) as node:
        for name, (config, _) in WRONG.items():
            await node.cluster.create_claim(name, requests=[ask()], config=config)
            await node.cluster.create_pod(name, STAY, resourceClaimName=name)
        await node.cluster.create_claim("right", requests=[ask()])
        for name, (_, words) in WRONG.items():
            note = await node.cluster.wait_note("InvalidConfig", about=name)
            assert [word for word in words if word not in note] == [], note
        await node.cluster.start_pod("right", STAY, resourceClaimName="right")


def daemons(scratch: Path) -> list[int]:
    """The control daemons of the machine there, by pid."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (process / "cmdline").read_bytes()
            if b"nvidia-cuda-mps-control" in command and os.fsencode(scratch) in command:
                found.append(int(process.name))
    return found
