"""The client and a real containerd, where there is one: `TEST_CONTAINERD` names the directory of another one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest

import containerd_node
from containerd_node import ContainerdNode, run_containerd
from pinning import FAST, Pinning
from pydra import ClaimError
from pydra_nri import ContainerUpdate, connect, cpuset

_PROBLEM = containerd_node.find_problem()
pytestmark = pytest.mark.skipif(bool(_PROBLEM), reason=_PROBLEM)


@pytest.fixture
async def node(short_path: Path) -> AsyncIterator[ContainerdNode]:
    async with run_containerd(short_path) as node:
        yield node


async def test_containers_have_the_cpus_that_a_backend_gives_them(node: ContainerdNode) -> None:
    backend = Pinning("0")
    async with connect("pinning", index=50, handlers=backend.handlers, socket=node.nri_socket, pauses=FAST) as plugin:
        await plugin.wait_synchronized()
        pod = await node.run_pod("trainer")
        container = await node.run_container(pod, "main")
        assert node.read_cpus(container) == "0"
        backend.cpus = "0-1"
        await node.update_container(container, cpu_shares=512)
        assert node.read_cpus(container) == "0-1"

        other = await node.run_container(pod, "other")
        sent = await plugin.update([ContainerUpdate.of(container, cpuset("1"))])
        assert sent.now is False
        await node.end_container(other)
        assert node.read_cpus(container) == "1"
        await node.end_container(container)
        await node.end_pod(pod[0])
    events = ["run trainer", "create main", "update main", "create other", "stop other", "remove other"]
    assert backend.calls == ["synchronize", *events, "stop main", "remove main", "stop trainer"]


async def test_a_container_whose_backend_refuses_is_not_created(node: ContainerdNode) -> None:
    async def refuse(call: str) -> None:
        if call.startswith("create"):
            raise ClaimError("cpu-3 is offline")

    handlers = Pinning(before=refuse).handlers
    async with connect("pinning", index=50, handlers=handlers, socket=node.nri_socket, pauses=FAST) as plugin:
        await plugin.wait_synchronized()
        pod = await node.run_pod("trainer")
        with pytest.raises(grpc.aio.AioRpcError, match="pinning: cpu-3 is offline"):
            await node.run_container(pod, "main")
        plugin.require_synchronized()


async def test_a_backend_meets_its_containers_after_containerd_was_killed_and_corrects_them(
    node: ContainerdNode,
) -> None:
    backend = Pinning("0")
    async with connect("pinning", index=50, handlers=backend.handlers, socket=node.nri_socket, pauses=FAST) as plugin:
        await plugin.wait_synchronized()
        container = await node.run_container(await node.run_pod("trainer"), "main")
        backend.corrections = [ContainerUpdate.of(container, cpuset("0-1"))]
        await node.kill()
        await backend.wait_called("synchronize", times=1)
        await node.start()
        await backend.wait_called("synchronize", times=2)
        assert backend.known == ["trainer", "main"]
        await node.run_pod("later")
        assert node.read_cpus(container) == "0-1"


async def test_two_instances_that_want_the_same_do_not_conflict(node: ContainerdNode) -> None:
    old, new = Pinning("0"), Pinning("0")
    async with (
        connect("pinning", index=50, handlers=old.handlers, socket=node.nri_socket, pauses=FAST) as first,
        connect("pinning", index=50, handlers=new.handlers, socket=node.nri_socket, pauses=FAST) as second,
    ):
        await first.wait_synchronized()
        await second.wait_synchronized()
        pod = await node.run_pod("trainer")
        container = await node.run_container(pod, "main")
        assert node.read_cpus(container) == "0"
        await node.update_container(container, cpu_shares=512)
        new.cpus = "1"
        with pytest.raises(grpc.aio.AioRpcError, match="both tried to set CPU pinning"):
            await node.run_container(pod, "other")
