"""Virtual functions: made as the admin says, given to pods, and configured on their card as claims say."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from pydra import ClaimError, HealthStatus, PreparedDevice, TerminalError, UndoLater
from pydra_net.claim_config import NetworkConfig
from pydra_net.kernel import KernelRefused
from pydra_net.network_types import VirtualFunctionState
from pydra_net.simulation.kernel import HOST
from pydra_net.simulation.machine import MACHINE_TYPES, UPLINK, Card
from simulated_node import SimulatedNode

CARD = "0000:50:00.0"
MACHINE = replace(
    MACHINE_TYPES["server"],
    cards=(*MACHINE_TYPES["server"].cards, Card(name="eth5", address=CARD, most_functions=4)),
)
FUNCTION, OTHER = "pci-0000-50-02-1", "pci-0000-50-02-0"
NEW = VirtualFunctionState(
    mac="00:00:00:00:00:00", vlan=0, qos=0, min_rate=0, max_rate=0, spoof_check=True, trust=False, link_state=0
)
SWITCHED_OFF = ["set up True", "set up False"]


def make_node(root: Path, *, count: int = 2, **settings: str) -> SimulatedNode:
    node = SimulatedNode(MACHINE, root, **settings)
    if count:
        node.cards.set_functions(CARD, count)
        node.before = node.kernel.namespaces[HOST]
    return node


def read_state(node: SimulatedNode, number: int = 1) -> VirtualFunctionState:
    return next(one for one in node.kernel.namespaces[HOST].links if one.name == "eth5").functions[number]


async def prepare(node: SimulatedNode, device: str, **interface: Any) -> list[PreparedDevice]:
    config = msgspec.convert({"interface": interface}, NetworkConfig)
    return await node.agent.prepare("claim", device, pod="trainer", configs=(config,))


async def list_offered(node: SimulatedNode) -> set[str]:
    return {device.name for device in (await node.agent.backend.discover()).devices if "-50-" in device.name}


@pytest.mark.parametrize(
    ("count", "setting", "offered", "problem"),
    [
        (0, "eth5=2", {OTHER, FUNCTION}, ""),
        (0, "eth*=2,dummy*=2", {OTHER, FUNCTION}, ""),
        (0, "eth4=2", {"pci-0000-50-00-0"}, ""),
        (0, "eth5=5", {"pci-0000-50-00-0"}, "eth5: the setting virtualFunctions asks for 5, but the card can have 4"),
        (2, "eth5=1", {OTHER, FUNCTION}, "eth5: the setting virtualFunctions asks for 1, and there are 2, which are"),
        (2, "eth5=2", {OTHER, FUNCTION}, ""),
    ],
)
async def test_cards_without_virtual_functions_get_as_many_as_the_admin_says(
    count: int, setting: str, offered: set[str], problem: str, tmp_path: Path
) -> None:
    node = make_node(tmp_path, count=count, virtual_functions=setting)
    async with node.run():
        assert await list_offered(node) == offered, "a card with functions configures them, so it stays on the node"
        problems = (await node.agent.backend.discover()).unreadable
        assert [one.startswith(problem) for one in problems] == ([True] if problem else [])


@pytest.mark.parametrize(("setting", "made"), [("eth*=1", "0"), ("eth0=1", "1")])
async def test_a_card_that_the_node_needs_gets_functions_only_by_its_name(
    setting: str, made: str, tmp_path: Path
) -> None:
    node = make_node(tmp_path, count=0, virtual_functions=setting)
    place = tmp_path / f"sys/bus/pci/devices/{UPLINK.address}"
    (place / "sriov_totalvfs").write_text("4\n")
    (place / "sriov_numvfs").write_text("0\n")
    async with node.run():
        await node.agent.backend.discover()
    assert (place / "sriov_numvfs").read_text().strip() == made


async def test_a_card_does_with_a_function_what_the_claim_says_and_then_what_it_did_before(tmp_path: Path) -> None:
    node = make_node(tmp_path)
    sandbox = node.begin_pod("trainer")
    wanted = {"vlan": 100, "vlanQoS": 3, "maxTxRate": 1000, "spoofChk": False, "trust": True, "linkState": "enable"}
    async with node.run() as agent:
        await prepare(node, FUNCTION, name="net1", hardwareAddr="02:00:00:00:00:AA", vf=wanted)
        await agent.start(sandbox)
        assert node.names_in(sandbox) == ["net1"]
        configured = {"mac": "02:00:00:00:00:aa", "vlan": 100, "qos": 3, "max_rate": 1000}
        assert read_state(node) == replace(NEW, **configured, spoof_check=False, trust=True, link_state=1)
        assert read_state(node, 0) == NEW
        await agent.runtime.stop_pod(sandbox)
        await agent.unprepare("claim")
    assert node.is_as_before()


async def test_a_card_that_refuses_leaves_the_function_as_it_was(tmp_path: Path) -> None:
    node = make_node(tmp_path)

    def refuse(what: str) -> None:
        if what in ("set trust True", "set mac 02:00:00:00:00:aa"):
            raise KernelRefused("Operation not supported")

    async with node.run():
        node.kernel.step = refuse
        with pytest.raises(
            ClaimError, match=r"eth5 does not take the configuration of VF 1: set trust True: .*support"
        ):
            await prepare(node, FUNCTION, vf={"vlan": 100, "trust": True})
        assert node.is_as_before()
        await prepare(node, FUNCTION, hardwareAddr="02:00:00:00:00:aa")  # which the function has itself
        await node.agent.unprepare("claim")


async def test_a_card_knows_no_address_of_a_pod_that_has_ended(tmp_path: Path) -> None:
    """It need not know it, but only a card that cannot know any may refuse to forget it."""
    node = make_node(tmp_path)

    def refuse(what: str) -> None:
        if what == f"set mac {NEW.mac}":
            raise KernelRefused(os.strerror(errno.EAGAIN), errno.EAGAIN)

    async with node.run():
        await prepare(node, FUNCTION, hardwareAddr="02:00:00:00:00:aa")
        works, node.kernel.step = node.kernel.step, refuse
        with pytest.raises(UndoLater, match="eth5 does not take back the configuration of VF 1: set mac"):
            await node.agent.unprepare("claim")
        node.kernel.step = works
        await node.agent.unprepare("claim")
        assert node.is_as_before()


async def test_a_claim_stays_held_while_the_card_does_not_take_back_what_it_took(tmp_path: Path) -> None:
    """As i40e, which refuses everything while the function is reset for the VLAN."""
    node = make_node(tmp_path)

    def reset(what: str) -> None:
        if what.startswith(("set vlan 0", "set trust")):
            raise KernelRefused("Resource temporarily unavailable")

    async with node.run():
        node.kernel.step = reset
        with pytest.raises(UndoLater, match=r"eth5 does not take back the configuration of VF 1: .*unavailable"):
            await prepare(node, FUNCTION, vf={"vlan": 100, "trust": True})
        node.kernel.step = lambda _: None
        await node.agent.unprepare("claim")
        assert node.is_as_before()


async def test_a_function_that_takes_an_address_only_when_it_is_switched_off_gets_it_in_the_pod_and_back(
    tmp_path: Path,
) -> None:
    """As igbvf, which asks its card only then which address it has, and refuses it before."""
    node = make_node(tmp_path)
    sandbox = node.begin_pod("trainer")
    switched: list[str] = []

    def refuse(what: str) -> None:
        if what.startswith("set up"):
            switched.append(what)
        if what.startswith("set mac") and what != f"set mac {NEW.mac}" and switched[-2:] != SWITCHED_OFF:
            raise KernelRefused(os.strerror(errno.EADDRNOTAVAIL), errno.EADDRNOTAVAIL)

    async with node.run() as agent:
        await prepare(node, FUNCTION, name="net1", hardwareAddr="02:00:00:00:00:aa")
        node.kernel.step = refuse
        await agent.start(sandbox)
        assert node.names_in(sandbox) == ["net1"]
        switched.clear()
        await agent.unprepare("claim")
    assert node.is_as_before()


@pytest.mark.parametrize(
    ("device", "interface", "text"),
    [
        ("pci-0000-10-00-0", {"vf": {"vlan": 5}}, "interface.vf: pci-0000-10-00-0 is not a virtual function"),
        ("pci-0000-50-00-0", {}, "eth5 .* configures virtual functions .2., which can be given instead"),
    ],
)
async def test_what_cannot_be_is_refused_early(
    device: str, interface: dict[str, Any], text: str, tmp_path: Path
) -> None:
    node = make_node(tmp_path)
    async with node.run():
        with pytest.raises(ClaimError, match=text):
            await prepare(node, device, **interface)


async def test_a_function_without_its_card_can_be_given_but_not_configured(tmp_path: Path) -> None:
    """As in a virtual machine, whose host has the card."""
    node = make_node(tmp_path)
    (tmp_path / f"sys/bus/pci/devices/{CARD[:-4]}02.1/physfn").unlink()
    async with node.run() as agent:
        with pytest.raises(TerminalError, match="is not a virtual function"):
            await prepare(node, FUNCTION, vf={"vlan": 5})
        await prepare(node, FUNCTION, hardwareAddr="02:00:00:00:00:aa")
        await agent.unprepare("claim")


@pytest.mark.parametrize(("count", "text"), [(0, "0000:50:02.1 was removed"), (3, "made it again")])
async def test_it_is_told_when_somebody_removes_the_function_of_a_pod(count: int, text: str, tmp_path: Path) -> None:
    node = make_node(tmp_path)
    sandbox = node.begin_pod("trainer")
    async with node.run() as agent:
        await prepare(node, FUNCTION, vf={"vlan": 100})
        await agent.start(sandbox)
        node.cards.set_functions(CARD, count)
        inventory = await agent.backend.discover()
        (device,) = (one for one in inventory.devices if one.name == FUNCTION)
        assert (device.health.status, device.health.reason) == (HealthStatus.UNHEALTHY, "InterfaceLost")
        assert text in device.health.message
        (status,) = (one.status for one in inventory.claim_statuses)
        assert text in status.conditions[0].message
        await agent.runtime.stop_pod(sandbox)
        await agent.unprepare("claim")
        assert agent.held == {}
