"""Which routes of a DHCP server an interface gets, and in which table."""

from __future__ import annotations

import pytest

from dhcp_server import ADDRESS, ROUTES, SERVER, DhcpServer
from pydra_net.dhcp.messages import DISCOVER, Lease, Request, decode, encode
from pydra_net.interface_diff import plan_lease
from pydra_net.interface_state import InterfaceState
from pydra_net.network_types import Link, Reading, Route

LINK = Link(index=3, name="net1", up=True)
MAIN, VRF = InterfaceState(name="net1", dhcp=True), InterfaceState(name="net1", dhcp=True, vrf="blue", vrf_table=1007)
BY_DHCP = 16


def ask(routes: bytes = b"", router: bytes = b"") -> Lease:
    """The lease of a server with these options."""
    answer = DhcpServer((3600, routes)).answer(encode(Request(kind=DISCOVER, transaction=7, mac="02:00:00:00:00:01")))
    assert answer is not None
    if not routes:
        answer = answer.replace(bytes((121, 0)), b"")
    if router:
        answer = answer[:-1] + bytes((3, len(router))) + router + b"\xff"
    return decode(answer).lease


def plan(wanted: InterfaceState, lease: Lease, **routes: tuple[Route, ...]) -> list[str]:
    """What is done to the link, of `own` routes by it and those by another one."""
    reading = Reading(links=(LINK,), routes={3: routes.get("own", ()), 2: routes.get("other", ())})
    return [str(one) for one in plan_lease(wanted, lease, None, LINK, reading) if "route" in str(one)]


@pytest.mark.parametrize(
    ("wanted", "options", "found"),
    [
        (MAIN, {"routes": ROUTES}, ["add route 10.8.0.0/16 via 10.0.0.8 in table 254"]),
        (MAIN, {"router": bytes((10, 0, 0, 8))}, []),
        (
            VRF,
            {"routes": ROUTES, "router": bytes((10, 0, 0, 9))},
            [
                "add route 0.0.0.0/0 via 10.0.0.8 in table 1007",
                "add route 10.8.0.0/16 via 10.0.0.8 in table 1007",
            ],
        ),
        (VRF, {"router": bytes((10, 0, 0, 8, 10, 0, 0, 9))}, ["add route 0.0.0.0/0 via 10.0.0.8 in table 1007"]),
    ],
)
def test_routes_are_in_the_table_of_the_vrf_or_in_the_main_one_without_a_default_route(
    wanted: InterfaceState, options: dict[str, bytes], found: list[str]
) -> None:
    assert plan(wanted, ask(**options)) == found


def test_what_the_pod_has_by_another_interface_stays() -> None:
    theirs = Route(destination="10.8.0.0/16", gateway="192.0.2.1")
    assert plan(MAIN, ask(ROUTES), other=(theirs,)) == []
    assert plan(VRF, ask(ROUTES), other=(theirs,)) != [], "in another table"


def test_what_the_claim_configures_stays() -> None:
    configured = Route(destination="10.8.0.0/16", gateway="10.0.0.9", protocol=4)
    wanted = InterfaceState(name="net1", dhcp=True, routes=(configured,))
    assert plan(wanted, ask(ROUTES)) == ["add route 10.8.0.0/16 via 10.0.0.9 in table 254"]


def test_routes_of_an_earlier_lease_are_removed() -> None:
    earlier = Route(destination="10.7.0.0/16", gateway=SERVER, protocol=BY_DHCP)
    replaced = Route(destination="10.8.0.0/16", gateway="10.0.0.9", protocol=BY_DHCP)
    of_the_claim = Route(destination="10.9.0.0/16", gateway=SERVER, protocol=4)
    assert plan(MAIN, ask(ROUTES), own=(earlier, replaced, of_the_claim)) == [
        "remove route 10.7.0.0/16 via 10.0.0.8 in table 254",
        "add route 10.8.0.0/16 via 10.0.0.8 in table 254",
    ]
    assert ADDRESS in ask(ROUTES).address
