"""Which interfaces the node itself needs, for networks of all shapes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from pydra_net.network_types import Address, Link, Reading, Route
from pydra_net.protected_interfaces import find_needed, find_unmovable

DEFAULT = Route(destination="0.0.0.0/0", gateway="192.0.2.1")
OTHER = Route(destination="10.0.0.0/8")


def link(index: int, *, lower: int = 0, master: int = 0, kind: str = "") -> Link:
    return Link(index=index, name=f"if{index}", lower=lower, master=master, kind=kind)


@pytest.mark.parametrize(
    ("links", "routes", "protected"),
    [
        pytest.param([link(2), link(3)], {2: (DEFAULT,), 3: (OTHER,)}, {2}, id="hardware"),
        pytest.param([link(2), link(3)], {2: (DEFAULT,), 3: (DEFAULT,)}, {2, 3}, id="two"),
        pytest.param(
            [link(2), link(3)],
            {2: (DEFAULT,), 3: (Route(destination="::/0", table=77),)},
            {2, 3},
            id="ipv6-in-another-table",
        ),
        pytest.param(
            [link(2, master=4), link(3, master=4), link(4, kind="bond"), link(5, lower=4, kind="vlan"), link(6)],
            {5: (DEFAULT,)},
            {2, 3, 4, 5},
            id="vlan-on-a-bond",
        ),
        pytest.param(
            [link(2, master=3), link(3, kind="bridge"), link(4, master=3, kind="tun"), link(5)],
            {3: (DEFAULT,)},
            {2, 3, 4},
            id="bridge",
        ),
        pytest.param(
            [link(2), link(3, lower=2, kind="macvlan"), link(4, lower=2, kind="vlan")],
            {2: (DEFAULT,)},
            {2, 3, 4},
            id="what-is-above",
        ),
        pytest.param(
            [link(2), link(3, lower=2, kind="vlan"), link(4, lower=2, kind="vlan")],
            {3: (DEFAULT,)},
            {2, 3},
            id="another-vlan-is-free",
        ),
        pytest.param(
            [link(2, lower=3, kind="veth"), link(3, lower=2, kind="veth")], {2: (DEFAULT,)}, {2, 3}, id="veth"
        ),
        pytest.param(
            [link(2), link(3)],
            {2: (Route(destination="10.0.0.0/8", not_recorded="other links"),)},
            {2},
            id="part-of-a-route-of-several",
        ),
        pytest.param([link(2), link(3, lower=2, kind="vlan")], {}, {2}, id="below-a-vlan"),
        pytest.param(
            [replace(link(2, kind="ipip"), name="tunl0"), link(3, kind="ipip")], {}, {2}, id="a-modules-tunnel"
        ),
        pytest.param([replace(link(2), immovable=True), link(3)], {}, {2}, id="immovable"),
        pytest.param([link(2, lower=3, kind="veth"), link(3, lower=2, kind="veth")], {}, set(), id="veth-not-needed"),
        pytest.param([link(2, master=3), link(3, kind="openvswitch")], {}, {2, 3}, id="a port of Open vSwitch"),
    ],
)
def test_uplinks_and_what_is_below_and_above_them_are_protected(
    links: list[Link], routes: dict[int, tuple[Route, ...]], protected: set[int]
) -> None:
    reading = Reading(links=tuple(links), routes=routes)
    assert {*find_needed(reading, ()), *find_unmovable(reading)} == protected


def test_an_interface_with_an_address_of_the_node_is_protected() -> None:
    addresses = {2: (Address(address="10.0.0.5/24"),), 3: (Address(address="fd00::0:5/64"),)}
    reading = Reading(links=(link(2), link(3), link(4)), addresses=addresses)
    assert find_needed(reading, ("10.0.0.5", "fd00::5")) == {
        2: "has the node's address 10.0.0.5",
        3: "has the node's address fd00::0:5",
    }
