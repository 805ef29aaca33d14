"""RDMA devices of interfaces, and alone: for all namespaces, or moved into the pod, and back."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from pydra import HealthStatus, PreparedDevice
from pydra_net.apply_rdma import RdmaMover
from pydra_net.kernel import KernelRefused
from pydra_net.simulation.kernel import HOST, SimulatedNamespace
from pydra_net.simulation.machine import MACHINE_TYPES, Card, Machine
from pydra_net.steps import GiveRdma
from pydra_nri.simulation.runtime import OperationFailed
from simulated_node import SimulatedNode

SERVER = MACHINE_TYPES["server"]
SHARED_MODE = replace(SERVER, cards=(*SERVER.cards, Card(name="", address="0000:50:00.0", rdma="mlx5_5", alone=True)))
EXCLUSIVE_MODE = replace(SHARED_MODE, exclusive_rdma=True)
INTERFACE, ALONE, SHARE = "pci-0000-10-00-0", "pci-0000-50-00-0", "pci-0000-20-00-0/1"


def list_nodes(prepared: list[PreparedDevice]) -> list[list[str]]:
    return [[one.path.removeprefix("/dev/infiniband/") for one in device.edits.device_nodes] for device in prepared]


def list_rdma(node: SimulatedNode, path: str) -> list[str]:
    return [one.name for one in node.kernel.namespaces[path].rdma]


async def test_containers_that_name_the_claim_get_the_device_nodes_of_its_rdma_devices(tmp_path: Path) -> None:
    node = SimulatedNode(SHARED_MODE, tmp_path, shared="eth2")
    sandbox = node.begin_pod("trainer")
    async with node.run() as agent:
        prepared = await agent.prepare("claim", INTERFACE, SHARE, ALONE, pod="trainer")
        assert list_nodes(prepared) == [
            ["rdma_cm", "umad0", "uverbs0"],
            ["rdma_cm", "umad1", "uverbs1"],
            ["rdma_cm", "umad4", "uverbs4"],
        ]
        assert [one.attributes["rdmaDevice"] for one in prepared] == ["mlx5_1", "mlx5_2", "mlx5_5"]
        await agent.start(sandbox)
        assert "move RDMA" not in node.steps, "all namespaces have them"
        await agent.unprepare("claim")
    assert node.is_as_before()


async def test_an_rdma_device_of_one_namespace_is_moved_with_its_interface_and_back(tmp_path: Path) -> None:
    node = SimulatedNode(EXCLUSIVE_MODE, tmp_path, shared="eth2")
    sandbox = node.begin_pod("trainer")
    async with node.run() as agent:
        prepared = await agent.prepare("claim", INTERFACE, SHARE, ALONE, pod="trainer")
        assert [len(one) for one in list_nodes(prepared)] == [3, 0, 3], "that of a shared interface stays on the node"
        await agent.start(sandbox)
        assert list_rdma(node, sandbox.network_namespace) == ["mlx5_1", "mlx5_5"]
        statuses = {one.device: one.status for one in (await agent.backend.discover()).claim_statuses}
        conditions = {name: [(one.type, one.reason) for one in status.conditions] for name, status in statuses.items()}
        assert conditions[INTERFACE] == [("Ready", "NetworkDeviceReady"), ("RDMALinkReady", "RDMALinkReady")]
        assert conditions[ALONE] == [("Ready", "RDMAOnlyDeviceReady")]
        await agent.runtime.stop_pod(sandbox)
        assert node.is_as_before()
        await agent.unprepare("claim")


async def test_a_claim_ends_although_an_rdma_device_that_all_namespaces_have_is_gone(tmp_path: Path) -> None:
    """As when only the module for RDMA was unloaded, which nobody has to wait for."""
    node = SimulatedNode(SHARED_MODE, tmp_path)
    async with node.run() as agent:
        await agent.prepare("claim", ALONE, pod="trainer")
        node.kernel.namespaces[HOST] = replace(node.before, rdma=())
        await agent.unprepare("claim")
        assert agent.held == {}


def test_an_rdma_device_is_found_in_a_pod_beside_one_whose_namespace_has_ended(tmp_path: Path) -> None:
    node = SimulatedNode(EXCLUSIVE_MODE, tmp_path)
    pod = node.kernel.open(node.begin_pod("trainer").network_namespace)
    mover = RdmaMover(node.kernel, node.kernel.open(HOST), lambda _: True, lambda _: ())
    step = GiveRdma(device=ALONE, name="mlx5_5", moves=True)
    mover.give(step, pod)
    mover.mark(step, [SimulatedNamespace(node.kernel, "/pods/ended"), pod])


async def test_a_pod_does_not_start_without_the_rdma_device_that_the_kernel_does_not_move(tmp_path: Path) -> None:
    node = SimulatedNode(EXCLUSIVE_MODE, tmp_path)
    sandbox = node.begin_pod("trainer")

    def refuse(what: str) -> None:
        if what == "move RDMA":
            raise KernelRefused("Operation not supported")

    async with node.run() as agent:
        await agent.prepare("claim", INTERFACE, pod="trainer")
        node.kernel.step = refuse
        with pytest.raises(OperationFailed, match=r"mlx5_1 .* cannot be moved into the pod: .*set netns shared"):
            await agent.start(sandbox)
        assert node.names_in(sandbox) == [], "the interface is back, too"
        await agent.unprepare("claim")
    assert node.is_as_before()


async def test_two_rdma_devices_are_not_moved_at_once(tmp_path: Path) -> None:
    """The kernel could give each the device nodes of the other."""
    node = SimulatedNode(EXCLUSIVE_MODE, tmp_path)
    both = threading.Barrier(2)
    met: list[str] = []

    def meet(what: str) -> None:
        if what == "move RDMA":
            with suppress(threading.BrokenBarrierError):
                both.wait(timeout=0.2)
                met.append(what)

    async with node.run() as agent:
        for pod, device in (("first", INTERFACE), ("second", ALONE)):
            await agent.prepare(pod, device, pod=pod)
        node.kernel.step = meet
        await asyncio.gather(*(agent.start(node.begin_pod(pod)) for pod in ("first", "second")))
        await asyncio.gather(*(agent.unprepare(pod) for pod in ("first", "second")))
    assert met == []
    assert node.is_as_before()


async def test_no_container_starts_with_the_device_nodes_of_another_rdma_device(tmp_path: Path) -> None:
    """The kernel gives a device that is moved the lowest number that is free."""
    node = SimulatedNode(EXCLUSIVE_MODE, tmp_path)
    sandbox = node.begin_pod("trainer")
    verbs = tmp_path / "sys/class/infiniband_verbs"

    def renumber(what: str) -> None:
        if what == "move RDMA":
            (verbs / "uverbs0").rename(verbs / "uverbs7")
            node.kernel.step = lambda _: None

    async with node.run() as agent:
        await agent.prepare("claim", INTERFACE, pod="trainer")
        node.kernel.step = renumber
        with pytest.raises(OperationFailed, match=r"mlx5_1 .* other device nodes .*uverbs7 instead .*delete the pod"):
            await agent.start(sandbox)
        assert node.names_in(sandbox) == []
        await agent.unprepare("claim")
    assert node.is_as_before()


async def test_what_is_published_of_rdma(tmp_path: Path) -> None:
    node = SimulatedNode(EXCLUSIVE_MODE, tmp_path)
    reading = node.kernel.namespaces[HOST]
    ports = tuple(replace(one, active=one.name != "mlx5_2") for one in reading.rdma)
    node.kernel.namespaces[HOST] = replace(reading, rdma=ports)
    async with node.run() as agent:
        before = {one.name: one for one in (await agent.backend.discover()).devices}
        assert before[ALONE].attributes["rdmaDevice"] == "mlx5_5"
        assert "ifName" not in before[ALONE].attributes
        ill = [one.name for one in before.values() if one.health.status is HealthStatus.UNHEALTHY]
        assert ill == ["pci-0000-20-00-0"]
        assert before[ill[0]].health.reason == "RdmaPortDown"
        await agent.prepare("claim", INTERFACE, ALONE, pod="trainer")
        await agent.start(node.begin_pod("trainer"))
        after = {one.name: one for one in (await agent.backend.discover()).devices}
        assert {name: one.attributes["rdma"] for name, one in after.items()} == {
            name: one.attributes["rdma"] for name, one in before.items()
        }, "also of those that are in pods"


async def test_an_interface_with_an_rdma_device_of_software_is_only_shared(tmp_path: Path) -> None:
    """The kernel removes such a device when the interface is moved."""
    machine = Machine(cards=(Card(name="eth1", address="0000:10:00.0", rdma="rxe0"),))
    node = SimulatedNode(machine, tmp_path)
    (tmp_path / "sys/class/infiniband/rxe0").unlink()
    (tmp_path / "sys/class/infiniband/rxe0").symlink_to("../../devices/virtual/infiniband/rxe0")
    async with node.run() as agent:
        assert (await agent.backend.discover()).devices == ()
