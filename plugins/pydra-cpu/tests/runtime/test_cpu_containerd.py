"""The backend with this machine's CPUs and a real containerd, or that below `TEST_CONTAINERD`."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

import containerd_node
from containerd_node import ContainerdNode, run_containerd
from cpu_agent import Agent
from cpu_machines import read_here
from pydra_cpu import examine
from pydra_cpu.cpu_list import format_cpu_list
from pydra_cpu.settings import GroupBy, Settings

CPUS = [cpu.id for cpu in read_here().cpus]
_PROBLEM = containerd_node.find_problem() or ("" if len(CPUS) > 1 else "this machine has one CPU only")
pytestmark = pytest.mark.skipif(bool(_PROBLEM), reason=_PROBLEM)

FIRST, ALL, OTHERS = format_cpu_list(CPUS[:1]), format_cpu_list(CPUS), format_cpu_list(CPUS[1:])


@pytest.fixture
async def node() -> AsyncIterator[ContainerdNode]:
    with tempfile.TemporaryDirectory(prefix="nri", dir="/tmp", ignore_cleanup_errors=True) as path:
        async with run_containerd(Path(path)) as node:
            yield node


def settings(node: ContainerdNode) -> Settings:
    return Settings(nri_socket=node.nri_socket, group_by=GroupBy.MACHINE, kubelet_root="/nowhere")


async def test_a_container_runs_on_the_cpus_of_its_claim_and_its_neighbour_gets_them_back(node: ContainerdNode) -> None:
    agent = Agent(namespace="default")
    async with agent.connect(settings(node)):
        pod = await node.run_pod("trainer")
        neighbour = await node.run_container(pod, "neighbour")
        prepared = await agent.prepare("claim", 1, "cpudevmachine")
        fast = await node.run_container(pod, "fast", env=prepared.edits.env)
        assert (node.read_cpus(fast), node.read_cpus(neighbour)) == (FIRST, OTHERS)
        await node.end_container(fast)
        assert node.read_cpus(neighbour) == ALL
        await agent.unprepare("claim")


async def test_a_change_that_the_runtime_refused_is_repeated_with_the_next_event(node: ContainerdNode) -> None:
    agent = Agent(namespace="default")
    async with agent.connect(settings(node)):
        pod = await node.run_pod("trainer")
        neighbour = await node.run_container(pod, "neighbour")
        prepared = await agent.prepare("claim", 1, "cpudevmachine")
        fast = await node.run_container(pod, "fast", env=prepared.edits.env)
        assert node.read_cpus(neighbour) == OTHERS
        node.find_cgroup_file(neighbour, "cpuset.cpus").write_text(ALL)  # as if it had been
        await node.run_container(pod, "later")
        assert (node.read_cpus(fast), node.read_cpus(neighbour)) == (FIRST, OTHERS)
    node.find_cgroup_file(neighbour, "cpuset.cpus").write_text(ALL)
    async with agent.connect(settings(node)):
        await node.run_container(pod, "latest")
        assert node.read_cpus(neighbour) == OTHERS


async def test_the_doctor_sees_containers_and_what_has_been_changed_behind_the_runtimes_back(
    node: ContainerdNode, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/containerd").symlink_to(Path(node.nri_socket).parent / "run")
    (tmp_path / "sys").symlink_to("/sys")
    agent = Agent(namespace="default")
    seen = msgspec.structs.replace(settings(node), host_root=str(tmp_path))
    async with agent.connect(settings(node)):
        pod = await node.run_pod("trainer")
        await node.run_container(pod, "neighbour")
        prepared = await agent.prepare("claim", 1, "cpudevmachine")
        fast = await node.run_container(pod, "fast", env=prepared.edits.env)
        assert list(examine(seen, tuple(agent.held.values()))) == []
        node.find_cgroup_file(fast, "cpuset.cpus").write_text(ALL)
        (text,) = examine(seen, tuple(agent.held.values()))
        wrong = f"container fast of pod default/trainer may run on CPU {ALL}, and its claims give it {FIRST}: it was"
        assert text.startswith(f"{wrong} created with them, and something else has changed it since")


async def test_what_ran_while_backend_and_runtime_were_killed_is_corrected(node: ContainerdNode) -> None:
    agent = Agent(namespace="default")
    async with agent.connect(settings(node)):
        pod = await node.run_pod("trainer")
        prepared = await agent.prepare("claim", 1, "cpudevmachine")
        before = await node.run_container(pod, "before", env=prepared.edits.env)
    await node.kill()
    await node.start()
    assert node.read_cpus(before) == FIRST, "nothing changes a running container"
    neighbour = await node.run_container(pod, "neighbour")
    fast = await node.run_container(pod, "fast", env=prepared.edits.env)
    assert (node.read_cpus(fast), node.read_cpus(neighbour)) == (ALL, ALL)
    async with agent.connect(settings(node)):
        await node.run_pod("later")  # after the corrections
        assert (node.read_cpus(before), node.read_cpus(fast), node.read_cpus(neighbour)) == (FIRST, FIRST, OTHERS)
