"""A slow kernel: sandboxes do not wait for it, containers do, and fail with words if it takes too long."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from net_agent import build_container
from pydra_net.kernel import KernelRefused
from pydra_net.simulation.machine import MACHINE_TYPES
from pydra_nri.simulation.runtime import OperationFailed
from simulated_node import SimulatedNode


async def test_the_interface_is_moved_while_the_runtime_goes_on_to_the_first_container(tmp_path: Path) -> None:
    node = SimulatedNode(MACHINE_TYPES["server"], tmp_path)
    sandbox, goes_on = node.begin_pod("trainer"), threading.Event()
    async with node.run() as agent:
        await agent.prepare("claim", "pci-0000-10-00-0", pod="trainer")
        works = node.kernel.step
        node.kernel.step = lambda what: (goes_on.wait(), works(what))[1]
        await agent.runtime.run_pod(sandbox)
        container = asyncio.create_task(agent.runtime.create_container(build_container(sandbox)))
        goes_on.set()
        await container
        assert node.names_in(sandbox) == ["eth1"]
        assert node.steps.count("move") == 1, "by the sandbox or by the container"
        await agent.unprepare("claim")


async def test_a_pod_has_none_of_its_interfaces_if_one_is_refused_after_its_container_waited(tmp_path: Path) -> None:
    node = SimulatedNode(MACHINE_TYPES["server"], tmp_path)
    sandbox, goes_on, moves = node.begin_pod("trainer"), threading.Event(), list[str]()
    node.agent.runtime.request_timeout = 1.0

    def refuse_second(what: str) -> None:
        goes_on.wait()
        if what == "move":
            moves.append(what)
            if len(moves) == 2:
                raise KernelRefused("Device or resource busy")

    async with node.run() as agent:
        await agent.prepare("one", "pci-0000-10-00-0", pod="trainer")
        await agent.prepare("two", "pci-0000-20-00-0", pod="trainer")
        works, node.kernel.step = node.kernel.step, refuse_second
        with pytest.raises(OperationFailed, match=r"could not be given to the pod within 0.6 s"):
            await agent.start(sandbox)
        goes_on.set()
        async with asyncio.timeout(30):
            while "resource busy" not in (await agent.backend.discover()).claim_statuses[0].warning:
                await agent.backend.wait_changed()
        assert node.names_in(sandbox) == []
        node.kernel.step = works
        await agent.unprepare("one")
        await agent.unprepare("two")
    assert node.is_as_before()


async def test_a_pod_does_not_begin_without_its_interface_because_the_kernel_is_slow(tmp_path: Path) -> None:
    node = SimulatedNode(MACHINE_TYPES["server"], tmp_path)
    sandbox = node.begin_pod("trainer")
    goes_on = threading.Event()
    node.agent.runtime.request_timeout = 1.0
    async with node.run() as agent:
        await agent.prepare("claim", "pci-0000-10-00-0", pod="trainer")
        count = node.kernel.step
        node.kernel.step = lambda what: (goes_on.wait(), count(what))[1]
        with pytest.raises(OperationFailed, match=r"eth1 could not be given to the pod within 0.6 s"):
            await agent.start(sandbox)
        assert "closed dra.net" not in agent.runtime.log, "the runtime would go on without the backend"
        goes_on.set()
        await agent.unprepare("claim")
    assert node.is_as_before()
    assert node.names_in(sandbox) == []
