"""A kernel that takes longer than the container runtime waits: the pod fails with words, and nothing stays in it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from pydra_net.simulation.machine import MACHINE_TYPES
from pydra_nri.simulation.runtime import OperationFailed
from simulated_node import SimulatedNode


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
