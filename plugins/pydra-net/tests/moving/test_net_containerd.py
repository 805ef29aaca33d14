"""Interfaces in pods of a real containerd, or of that below `TEST_CONTAINERD`."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import containerd_node
import namespaces
from containerd_node import ContainerdNode, run_containerd
from namespaces import TestNode, make_node
from net_agent import NetAgent
from pydra_net.settings import Settings

_PROBLEM = containerd_node.find_problem() or namespaces.find_problem()
pytestmark = pytest.mark.skipif(bool(_PROBLEM), reason=_PROBLEM)


@asynccontextmanager
async def serve() -> AsyncIterator[tuple[ContainerdNode, TestNode, NetAgent]]:
    with (
        tempfile.TemporaryDirectory(prefix="nri", dir="/tmp", ignore_cleanup_errors=True) as root,
        make_node() as node,
    ):
        async with run_containerd(Path(root)) as containerd:
            settings = Settings(
                network_namespace=node.host.path, nri_socket=containerd.nri_socket, exclude_types="", poll_period=1000.0
            )
            yield containerd, node, NetAgent(settings, fake=False)


async def test_a_pods_interface_comes_back_after_backend_and_runtime_were_killed() -> None:
    async with serve() as (containerd, node, agent):
        before = node.host.describe("nic0")
        async with agent.run():
            await agent.prepare("claim", "nic0", pod="trainer")
            await containerd.run_container(await containerd.run_pod("trainer"), "main")
            assert node.host.links() == ["up0"]
        await containerd.kill()
        await containerd.start()
        assert node.host.links() == ["up0"], "the pod lives on, and has it"
        async with agent.run():
            await agent.unprepare("claim")
        assert node.host.describe("nic0") == before


async def test_a_pod_that_cannot_have_its_interface_does_not_start() -> None:
    async with serve() as (containerd, node, agent), agent.run():
        await agent.prepare("claim", "nic0", pod="trainer")
        node.host.run("ip link del nic0")
        pod = await containerd.run_pod("trainer")
        with pytest.raises(Exception, match=r"nic0 .nic0. is not on the node any more; delete the pod"):
            await containerd.run_container(pod, "main")
