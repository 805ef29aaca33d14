"""Which pod has which interface, over restarts, names that come again and interfaces that go: defects of DRANET."""

from __future__ import annotations

import asyncio
import gc
import threading
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from net_agent import build_container, build_sandbox
from pydra import UndoLater, UnknownDevice
from pydra_net.doctor_claim_interfaces import examine_interfaces
from pydra_net.kernel import KernelRefused, Namespace
from pydra_net.network_change_types import SetLink
from pydra_net.network_types import Link, Reading
from pydra_net.simulation.kernel import HOST, SimulatedKernel
from pydra_net.simulation.machine import MACHINE_TYPES
from pydra_nri.simulation.runtime import OperationFailed
from simulated_node import SimulatedNode

ETH1, ETH2 = "pci-0000-10-00-0", "pci-0000-20-00-0"


@pytest.fixture
def node(tmp_path: Path) -> SimulatedNode:
    return SimulatedNode(MACHINE_TYPES["server"], tmp_path)


async def test_a_claim_that_was_prepared_before_a_restart_is_for_the_pod_that_begins_afterwards(
    node: SimulatedNode,
) -> None:
    """Not so in DRANET #232: what the runtime did not list then was forgotten."""
    async with node.run() as agent:
        await agent.prepare("claim", ETH1, pod="trainer")
    sandbox = node.begin_pod("trainer")
    async with node.run() as agent:
        await agent.start(sandbox)
        assert node.names_in(sandbox) == ["eth1"]


async def test_whatever_fails_when_a_running_pod_gets_its_interface_is_reported(node: SimulatedNode) -> None:
    sandbox = node.begin_pod("trainer")
    async with node.run() as agent:
        await agent.prepare("claim", ETH1, pod="trainer")
    node.agent.runtime.pods[sandbox.id] = sandbox
    node.kill_at = 0
    async with node.run() as agent:
        async with asyncio.timeout(30):
            while (found := (await agent.backend.discover()).claim_statuses[0]).warning == "":
                await agent.backend.wait_changed()
        assert found.warning.startswith("pod team/trainer runs without eth1: ")


async def test_a_claim_says_nothing_of_what_failed_for_an_earlier_one(node: SimulatedNode) -> None:
    """The earlier one ended while the pod got its other interface."""
    sandbox, moves, goes_on = node.begin_pod("trainer"), threading.Event(), threading.Event()
    async with node.run() as agent:
        await agent.prepare("first", ETH1, pod="trainer")
        await agent.prepare("second", ETH2, pod="trainer")
        count = node.kernel.step
        node.kernel.step = lambda what: (moves.set(), goes_on.wait(), count(what))[2]
        begins = asyncio.create_task(agent.start(sandbox))
        await asyncio.to_thread(moves.wait)
        node.kernel.step = count
        await agent.unprepare("second")
        goes_on.set()
        with pytest.raises(OperationFailed, match=r"the claim of eth2 .* has ended"):
            await begins
        await agent.prepare("third", ETH2, pod="another")
        (third,) = [one for one in (await agent.backend.discover()).claim_statuses if one.claim_uid == "third"]
        assert (third.warning, third.status.conditions[0].reason) == ("", "WaitingForPod")


async def test_an_interface_that_is_on_its_way_back_is_not_lost(node: SimulatedNode) -> None:
    """The kernel reports the move while the interface is configured as it was before."""
    sandbox, moved, goes_on = node.begin_pod("trainer"), threading.Event(), threading.Event()
    async with node.run() as agent:
        await agent.prepare("claim", ETH1, pod="trainer")
        await agent.start(sandbox)
        node.kernel.step = lambda what: (moved.set(), goes_on.wait()) if what == "moved" else None
        ends = asyncio.create_task(agent.runtime.stop_pod(sandbox))
        await asyncio.to_thread(moved.wait)
        found = await agent.backend.discover()
        goes_on.set()
        await ends
        assert [one.warning for one in found.claim_statuses] == [""]
        assert {one.health.reason for one in found.devices} == {""}


class ShortOfMemory(SimulatedKernel):
    """Reading is a step, too."""

    def read_link(self, where: Namespace, index: int) -> Link | None:
        self.step("read")
        return super().read_link(where, index)


async def test_an_interface_does_not_end_with_a_pod_that_cannot_be_looked_into(tmp_path: Path) -> None:
    """The kernel has no memory for messages when it has moved the interface, and so the pod does not begin."""
    node = SimulatedNode(MACHINE_TYPES["server"], tmp_path, ShortOfMemory)
    sandbox, done = node.begin_pod("trainer"), list[str]()

    def refuse(what: str) -> None:
        done.append(what)
        if "moved" in done:
            raise KernelRefused("No buffer space available")

    async with node.run() as agent:
        await agent.prepare("claim", "dummy0", pod="trainer")
        works, node.kernel.step = node.kernel.step, refuse
        with pytest.raises(OperationFailed, match="No buffer space available"):
            await agent.start(sandbox)
        node.kernel.end_namespace(sandbox.network_namespace)
        node.kernel.step = works
        await agent.unprepare("claim")
        assert node.kernel.list_open() == [HOST]
    assert node.is_as_before()


async def test_names_of_a_pod_do_not_stay_on_an_interface_that_the_kernel_has_returned(node: SimulatedNode) -> None:
    sandbox = node.begin_pod("trainer")
    async with node.run() as agent:
        await agent.prepare("claim", ETH1, pod="trainer")
        await agent.start(sandbox)
    inside = node.kernel.namespaces[sandbox.network_namespace]
    links = tuple(replace(one, alternative_names=("cni0",)) for one in inside.links if one.name == "eth1")
    node.kernel.namespaces[sandbox.network_namespace] = replace(inside, links=links)
    node.kernel.end_namespace(sandbox.network_namespace)
    async with node.run() as agent:
        await agent.unprepare("claim")
    assert node.is_as_before()


async def test_an_interface_whose_driver_is_loaded_again_while_it_is_put_back_has_everything_again(
    node: SimulatedNode,
) -> None:
    sandbox = node.begin_pod("trainer")
    (link,) = (one for one in node.before.links if one.name == "eth1")

    def load_again(what: str) -> None:
        if what == "set up True":
            node.kernel.step = lambda _: None
            node.kernel.end_links(link.parent)
            node.kernel.add_link(replace(link, index=90, up=False, mtu=1500, parameters={}))

    async with node.run() as agent:
        await agent.prepare("claim", ETH1, pod="trainer")
        await agent.start(sandbox)
        node.kernel.step = load_again
        with pytest.raises(UndoLater, match=r"eth1 .* vanished when it had been moved back"):
            await agent.unprepare("claim")
        await agent.unprepare("claim")
    assert node.is_as_before()


async def test_no_namespace_is_kept_for_a_claim_that_ended_before_its_pod(tmp_path: Path) -> None:
    """The kernel needs longer to move the first interface back than the runtime waits."""
    node = SimulatedNode(MACHINE_TYPES["server"], tmp_path, ShortOfMemory)
    sandbox, moves, goes_on = node.begin_pod("trainer"), threading.Event(), threading.Event()

    def step(what: str) -> None:
        if what == "move" and not moves.is_set():
            moves.set()
            goes_on.wait()
        if what == "read" and goes_on.is_set():
            raise KernelRefused("No buffer space available")

    async with node.run() as agent:
        await agent.prepare("first", ETH1, pod="trainer")
        await agent.prepare("second", ETH2, pod="trainer")
        await agent.start(sandbox)
        node.kernel.step = step
        ends = asyncio.create_task(agent.runtime.stop_pod(sandbox))
        await asyncio.to_thread(moves.wait)
        await agent.unprepare("second")
        goes_on.set()
        await ends
        await agent.unprepare("first")
        await agent.backend.discover()
        assert node.kernel.list_open() == [HOST]


async def test_a_container_does_not_begin_without_an_interface_that_could_not_be_put_back(node: SimulatedNode) -> None:
    """It cannot be configured in the pod, and the network manager has made another of its name on the node."""
    sandbox = node.begin_pod("trainer")
    container = build_container(sandbox)
    node.agent.runtime.pods[sandbox.id] = sandbox  # it began while the backend did not run

    def step(what: str) -> None:
        if what == "moved" and node.kernel.namespaces[HOST].find_name("dummy0") is None:
            node.kernel.add_link(Link(index=90, name="dummy0", kind="dummy"))
        if what == "set up True":
            raise KernelRefused("Invalid argument")

    async with node.run() as agent:
        await agent.prepare("claim", "dummy0", pod="trainer")
        node.kernel.step = step
        for _ in range(2):
            with pytest.raises(OperationFailed, match=r"dummy0 .* cannot be configured in the pod"):
                await agent.runtime.create_container(container)


async def test_nothing_is_kept_of_shares_whose_claims_have_ended(tmp_path: Path) -> None:
    node = SimulatedNode(MACHINE_TYPES["server"], tmp_path, shared="eth1")

    def count() -> int:
        return sum(isinstance(one, asyncio.Lock) for one in gc.get_objects())

    async with node.run() as agent:
        before = count()
        for number in range(8):
            await agent.prepare("claim", f"{ETH1}/{number}")
            await agent.unprepare("claim")
        await agent.backend.discover()
        assert count() <= before


async def test_a_pod_of_the_same_name_has_nothing_of_the_claims_of_an_earlier_one(node: SimulatedNode) -> None:
    """A StatefulSet's pods have the same name, and so do their claims."""
    earlier, later = node.begin_pod("trainer"), node.begin_pod("trainer", number=2)
    later = build_sandbox("trainer", later.network_namespace, number=2, uid="another")
    async with node.run() as agent:
        await agent.prepare("claim", ETH1, pod="trainer")
        await agent.start(earlier)
        await agent.start(later)
        assert (node.names_in(earlier), node.names_in(later)) == (["eth1"], [])
        await agent.runtime.stop_pod(later)
        assert node.names_in(earlier) == ["eth1"]


async def test_an_interface_that_came_back_by_itself_and_was_switched_on_has_its_name_again(
    node: SimulatedNode,
) -> None:
    """The kernel returns it with its name in the pod, and the node's network manager sees a new interface."""
    async with node.run() as agent:
        await agent.prepare("claim", ETH1)
        host = node.kernel.open(HOST)
        index = next(one.index for one in node.before.links if one.name == "eth1")
        back = (SetLink(index=index, up=False), SetLink(index=index, name="net1"), SetLink(index=index, up=True))
        assert node.kernel.apply(host, back) == []
        await agent.unprepare("claim")
    assert node.is_as_before()


async def test_an_adapter_that_was_unplugged_in_the_pod_does_not_keep_its_claim(
    node: SimulatedNode, tmp_path: Path
) -> None:
    """The USB controller is still there, with its driver."""
    controller, adapter = tmp_path / "sys/bus/pci/devices/0000:00:14.0", tmp_path / "sys/usb/0000:00:14.0/2-1:1.0"
    for place, driver in ((controller, "xhci_hcd"), (adapter, "r8152")):
        place.mkdir(parents=True)
        (place / "driver").symlink_to(driver)
    devices = tmp_path / "sys/bus/usb/devices"
    devices.mkdir(parents=True)
    (devices / "2-1:1.0").symlink_to(adapter)
    node.kernel.add_link(Link(index=30, name="usb0", parent="usb/2-1:1.0", permanent_mac="02:00:00:00:00:30"))
    async with node.run() as agent:
        await agent.prepare("claim", "pci-0000-00-14-0-2-1-1-0", pod="trainer")
        sandbox = node.begin_pod("trainer")
        await agent.start(sandbox)
        assert node.names_in(sandbox) == ["usb0"]
        node.kernel.end_links("usb/2-1:1.0")
        with pytest.raises(UndoLater, match="in a network namespace that cannot be seen"):
            await agent.unprepare("claim")
        (adapter / "driver").unlink()
        await agent.unprepare("claim")


async def test_a_link_that_another_pod_made_is_not_taken_for_the_claims_interface(node: SimulatedNode) -> None:
    """With CAP_NET_ADMIN, a pod can give its links any alternative name."""
    async with node.run() as agent:
        other = node.begin_pod("other")
        forged = Link(index=40, name="net1", kind="dummy", alternative_names=("pydra.dummy0",))
        node.kernel.namespaces[other.network_namespace] = Reading(links=(forged,))
        await agent.prepare("claim", "dummy0", pod="trainer")
        sandbox = node.begin_pod("trainer")
        await agent.start(sandbox)
        assert node.names_in(sandbox) == ["dummy0"]
        await agent.runtime.stop_pod(sandbox)
        await agent.unprepare("claim")
        assert node.names_in(other) == ["net1"]
    assert node.is_as_before()


async def test_an_interface_that_has_gone_is_not_offered_and_its_claim_says_so(node: SimulatedNode) -> None:
    """Not so in DRANET's google/dranet#155: it stayed in the slice, and claims for it failed for ever."""
    async with node.run() as agent:
        links = node.kernel.namespaces[HOST].links
        gone = replace(node.before, links=tuple(one for one in links if one.name != "eth1"))
        node.kernel.namespaces[HOST] = gone
        assert ETH1 not in [device.name for device in (await agent.backend.discover()).devices]
        with pytest.raises(UnknownDevice, match=r"no interface pci-0000-10-00-0 now; delete the pod to get another"):
            await agent.prepare("claim", ETH1)


async def test_the_doctor_says_where_interfaces_are_and_what_they_lack(node: SimulatedNode) -> None:
    sandbox = node.begin_pod("trainer")
    host, path = node.kernel.open(HOST), sandbox.network_namespace

    def examine() -> list[str]:
        return list(examine_interfaces(node.kernel, host, tuple(agent.held.values())))

    async with node.run() as agent:
        await agent.prepare("claim", ETH1, pod="trainer")
        assert examine() == [], "it waits for its pod"
        await agent.start(sandbox)
        assert examine() == []
        inside = node.kernel.open(path)
        index = next(link.index for link in node.kernel.read(inside).links if link.name == "eth1")
        node.kernel.apply(inside, [SetLink(index=index, mtu=1280)])
        (found,) = examine()
        text = "of claim team/claim is in the network namespace /pods/trainer-1 as eth1, and is not as it should be: "
        assert f"eth1 ({ETH1}) {text}set mtu 9000; delete the pod" == found
        agent.held["claim"] = replace(agent.held["claim"], left_over=True)
        assert "which has ended, is still in the network namespace /pods/trainer-1" in examine()[0]
        node.kernel.move(inside, index, host, "pydra7")
        (found,) = examine()
        assert "is on the node as pydra7, and is not as it should be: set name eth1, set mtu 9000, " in found
        node.kernel.namespaces[HOST] = replace(node.before, links=())
        assert "is in no network namespace that can be seen here" in examine()[0]


async def test_a_runtime_starts_again_after_a_pod_twice_could_not_have_its_interface(node: SimulatedNode) -> None:
    """containerd 2 before 2.2.6 and 2.3.3 does not, if a plugin has refused two sandboxes of one pod."""
    async with node.run() as agent:
        await agent.prepare("claim", ETH1, pod="trainer")
        for number in (1, 2):
            with pytest.raises(OperationFailed, match="pod team/trainer uses the node's own network"):
                await agent.start(build_sandbox("trainer", "", number=number))
    async with node.run() as agent:
        await agent.unprepare("claim")


async def test_a_pod_has_its_interface_if_the_runtime_went_on_while_it_was_moved(node: SimulatedNode) -> None:
    sandbox, moves, goes_on = node.begin_pod("trainer"), threading.Event(), threading.Event()
    agent, runtime, socket = node.agent, node.agent.runtime, node.agent.settings.nri_socket
    done = list[str]()
    async with AsyncExitStack() as process:
        async with runtime.serve(socket):
            await process.enter_async_context(agent.run())
            await agent.prepare("claim", ETH1, pod="trainer")
            node.kernel.step = lambda what: (done.append(what), moves.set(), goes_on.wait())
            await runtime.run_pod(sandbox)
            await asyncio.to_thread(moves.wait)
        async with runtime.serve(socket), asyncio.timeout(30):
            await runtime.wait_logged("registered dra.net", times=2)
            goes_on.set()
            while node.names_in(sandbox) != ["eth1"]:  # noqa: ASYNC110 - in the kernel
                await asyncio.sleep(0.01)
            await agent.unprepare("claim")
    assert done.count("move") == 2, "into the pod, and back when the claim has ended"


async def test_an_interface_follows_its_pod_into_a_sandbox_that_began_while_the_runtime_was_away(
    node: SimulatedNode,
) -> None:
    """The runtime says nothing of the end of the earlier one: containerd does so of those before its last start."""
    first, second = node.begin_pod("trainer"), node.begin_pod("trainer", number=2)
    agent, runtime, socket = node.agent, node.agent.runtime, node.agent.settings.nri_socket
    async with AsyncExitStack() as process:
        async with runtime.serve(socket):
            await process.enter_async_context(agent.run())
            await agent.prepare("claim", ETH1, pod="trainer")
            await agent.start(first)
        runtime.pods = {second.id: second}
        async with runtime.serve(socket), asyncio.timeout(30):
            while node.names_in(second) != ["eth1"]:  # noqa: ASYNC110 - in the kernel
                await asyncio.sleep(0.01)
            await runtime.create_container(build_container(second))
            assert node.kernel.list_open() == [HOST, second.network_namespace]
            await agent.unprepare("claim")


async def test_a_claim_does_not_end_while_its_interface_is_put_back_if_the_runtime_ends(node: SimulatedNode) -> None:
    sandbox, moved, goes_on = node.begin_pod("trainer"), threading.Event(), threading.Event()
    agent, runtime, socket = node.agent, node.agent.runtime, node.agent.settings.nri_socket
    async with AsyncExitStack() as process:
        async with runtime.serve(socket):
            await process.enter_async_context(agent.run())
            await agent.prepare("claim", ETH1, pod="trainer")
            await agent.start(sandbox)
            node.kernel.step = lambda what: what == "moved" and (moved.set(), goes_on.wait())
            ends = asyncio.create_task(runtime.stop_pod(sandbox))
            await asyncio.to_thread(moved.wait)
        await asyncio.gather(ends, return_exceptions=True)
        unprepared = asyncio.create_task(agent.unprepare("claim"))
        async with runtime.serve(socket):
            await runtime.wait_logged("registered dra.net", times=2)
        try:
            assert not unprepared.done()
        finally:
            goes_on.set()
        await unprepared
    assert node.is_as_before()
