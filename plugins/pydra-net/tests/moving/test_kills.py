"""The backend is killed, or refused twice, at each thing that it does to the kernel: no interface is lost."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from net_agent import build_container
from pydra import ClaimError
from pydra_net.kernel import KernelRefused
from pydra_net.simulation.machine import MACHINE_TYPES
from pydra_nri.simulation.runtime import OperationFailed
from simulated_node import Killed, SimulatedNode

# Each RDMA device is in one namespace, so it is moved, too.
SERVER = replace(MACHINE_TYPES["server"], exclusive_rdma=True)
HARDWARE, VIRTUAL, SHARE = "pci-0000-10-00-0", "dummy0", "pci-0000-20-00-0/1"


async def live(node: SimulatedNode) -> None:
    """A pod's life, as far as the process lives."""
    sandbox = node.begin_pod("trainer")
    async with node.run() as agent:
        with suppress(Killed, OperationFailed, ClaimError):
            await agent.prepare("claim", HARDWARE, VIRTUAL, SHARE, pod="trainer")
            await agent.start(sandbox)
            await agent.runtime.stop_pod(sandbox)
            await agent.unprepare("claim")


async def test_no_interface_is_lost_wherever_the_backend_is_killed(tmp_path: Path) -> None:
    whole = SimulatedNode(SERVER, tmp_path / "whole", shared="eth2")
    await live(whole)
    assert whole.is_as_before()
    expected = {"move", "moved", "move RDMA", "moved RDMA", "make", "made", "set name eth2", "remove the interface"}
    assert expected <= set(whole.steps)
    for place in range(len(whole.steps)):
        node = SimulatedNode(SERVER, tmp_path / str(place), shared="eth2")
        node.kill_at = place
        await live(node)
        node.kill_at = -1
        async with node.run() as agent:
            if "claim" in agent.held:
                await agent.unprepare("claim")
        assert node.is_as_before(), f"killed before {whole.steps[place]} ({place})"
        assert node.list_in_pods() == [], f"killed before {whole.steps[place]} ({place})"


async def test_no_interface_is_lost_whatever_the_kernel_refuses_twice(tmp_path: Path) -> None:
    whole = SimulatedNode(SERVER, tmp_path / "whole", shared="eth2")
    await live(whole)
    for place, what in enumerate(whole.steps):
        node = SimulatedNode(SERVER, tmp_path / str(place), shared="eth2")
        done = list[str]()

        def refuse(step: str, place: int = place, what: str = what, done: list[str] = done) -> None:
            done.append(step)
            if step == what != "applied" and done[place:].count(step) in (1, 2):
                raise KernelRefused(os.strerror(errno.ENOBUFS), errno.ENOBUFS)

        node.kernel.step = refuse
        async with node.run() as agent:
            for number in (1, 2):
                sandbox = node.begin_pod("trainer", number=number)
                with suppress(OperationFailed, ClaimError):
                    if "claim" not in agent.held:
                        await agent.prepare("claim", HARDWARE, VIRTUAL, SHARE, pod="trainer")
                    await agent.start(sandbox)
                    await agent.runtime.stop_pod(sandbox)
                    break
                node.kernel.end_namespace(sandbox.network_namespace)
            while "claim" in agent.held:
                with suppress(ClaimError):
                    await agent.unprepare("claim")
        assert node.list_in_pods() == [], what
        assert node.is_as_before(), what


async def test_a_pod_that_goes_on_has_its_interfaces_wherever_the_backend_was_killed(tmp_path: Path) -> None:
    for place in range(100):
        node = SimulatedNode(SERVER, tmp_path / str(place), shared="eth2")
        sandbox = node.begin_pod("trainer")
        async with node.run() as agent:
            await agent.prepare("claim", HARDWARE, VIRTUAL, SHARE, pod="trainer")
            node.kill_at = len(node.steps) + place
            with suppress(OperationFailed):
                await agent.start(sandbox)
                break
        node.kill_at = -1
        async with node.run() as agent:
            await agent.runtime.create_container(build_container(sandbox))
            assert node.names_in(sandbox) == ["dummy0", "eth1", "eth2"]
    assert place > 5
