"""Interfaces in the kernel's own network namespaces: into pods, and back as they were."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from namespaces import TestNamespace, TestNode, find_problem, make_node
from net_agent import NetAgent, build_container, build_sandbox, build_settings
from pydra import ClaimError, UndoLater
from pydra_net.claim_config import InterfaceConfig, NeighborConfig, NetworkConfig, RouteConfig, RuleConfig
from pydra_net.doctor_claim_interfaces import examine_node
from pydra_net.netlink.events import LinkEvents
from pydra_net.netlink.kernel import NetlinkKernel
from pydra_net.netlink.namespaces import OpenNamespace
from pydra_nri import PodSandbox
from pydra_nri.simulation.runtime import OperationFailed

_PROBLEM = find_problem()
_NO_VXLAN = find_problem("vxlan")
pytestmark = pytest.mark.skipif(bool(_PROBLEM), reason=_PROBLEM)


@pytest.fixture
def node() -> Iterator[TestNode]:
    with make_node() as node:
        yield node


def build_agent(node: TestNode) -> NetAgent:
    settings = build_settings(node, node_addresses="192.0.2.10")
    return NetAgent(settings)


@asynccontextmanager
async def serve(agent: NetAgent) -> AsyncIterator[None]:
    async with agent.runtime.serve(agent.settings.nri_socket), agent.run():
        yield


async def test_an_interface_goes_into_the_pod_with_its_configuration_and_comes_back_as_it_was(node: TestNode) -> None:
    before = node.host.describe("nic0")
    agent = build_agent(node)
    async with serve(agent):
        await agent.prepare("claim", "nic0", pod="trainer")
        assert node.host.links() == ["nic0", "up0"], "it stays on the node until the pod has a network namespace"
        pod = node.begin_pod("trainer")
        sandbox = build_sandbox("trainer", pod.path)
        await agent.start(sandbox)
        assert (node.host.links(), pod.links()) == (["up0"], ["nic0"])
        inside = pod.describe("nic0")
        for text in ("mtu 1400", "10.0.0.1/24", "fd00::1/64", "10.5.0.0/16 via 10.0.0.9", "table 100", "lladdr 02:00"):
            assert text in inside
        assert "from 10.0.0.0/24 lookup 100" in pod.run("ip rule")
        await agent.runtime.stop_pod(sandbox)
        assert node.host.links() == ["nic0", "up0"], "before the namespace ends"
        await agent.unprepare("claim")
    assert node.host.describe("nic0") == before


UNUSUAL = """
    ip addr add 10.4.0.1/24 broadcast 10.4.0.255 label nic0:old scope link dev nic0
    ip addr add 10.2.0.1/24 metric 50 dev nic0
    ip addr add 10.1.0.1/24 noprefixroute dev nic0
    ip route add 10.1.0.0/24 proto kernel scope link src 10.1.0.1 metric 101 dev nic0
    ip addr add 10.3.0.1 peer 10.3.0.2/32 dev nic0
    ip route add 10.6.1.0/24 via inet6 fd00::9 dev nic0
    ip route add 10.6.2.0/24 via 172.16.0.1 dev nic0 onlink
    ip route add 10.6.3.0/24 dev nic0 src 10.4.0.1 congctl reno initcwnd 20 table 1000
    ip rule add fwmark 5 table 100 priority 501
    ip rule add from 10.0.0.0/24 ipproto tcp table 100 priority 502
    ip rule add not from 10.0.0.0/24 table 100 priority 503
    ip rule add uidrange 0-0 table 100 priority 504
    ip rule add fwmark 0/4 table 100 priority 505
    ip rule add from 10.0.0.5/16 table 1000 priority 506
    ip neigh add fd00::9 lladdr 02:00:00:00:00:99 dev nic0 nud permanent
"""


async def test_whatever_is_configured_on_the_interface_is_there_again(node: TestNode) -> None:
    node.host.run(UNUSUAL)
    before = node.host.describe("nic0")
    agent = build_agent(node)
    async with serve(agent):
        await agent.prepare("claim", "nic0", pod="trainer")
        pod = node.begin_pod("trainer")
        await agent.start(build_sandbox("trainer", pod.path))
        for text in (
            "metric 50",
            "10.1.0.0/24 proto kernel",
            "peer 10.3.0.2/32",
            "via inet6 fd00::9",
            "onlink",
            "congctl reno",
            "initcwnd 20",
        ):
            assert text in pod.describe("nic0")
        rules = pod.run("ip rule")
        assert not re.search("^50[1-5]:", rules, re.MULTILINE), "they would be for all packets"
        assert "from 10.0.0.0/16 lookup 1000" in rules
        await agent.unprepare("claim")
    assert node.host.describe("nic0") == before


async def test_addresses_and_routes_are_chosen_in_the_pod_and_afterwards_as_on_the_node(node: TestNode) -> None:
    node.host.run(
        """
        ip addr add 10.0.0.7/24 preferred_lft 0 dev nic0; ip addr add fd00::7/64 nodad preferred_lft 0 dev nic0
        ip addr add fd00::2/64 nodad dev nic0; ip addr add fd00::3/64 nodad dev nic0
        ip addr add fe80::1/64 nodad dev nic0; ip addr add fd77::1 peer fd77::2 nodad dev nic0
        ip route add local 198.51.100.0/24 dev nic0; ip -6 route add local fd08::/64 dev nic0
        ip route add multicast 224.1.0.0/16 table 100 dev nic0
        ip -6 route add fd09::/32 via fd00::9 pref high
        """
    )
    chosen = """
        ip -o addr show deprecated dev nic0 | cut -d" " -f2-
        ip -6 route get fd00::9; ip -o addr show to fe80::1 | cut -d" " -f2-; ip -6 route show fd77::2
        ip route show table local 198.51.100.0/24; ip -6 route show table local fd08::/64
        ip route show table 100 type multicast; ip -6 route show fd09::/32
    """
    before = node.host.run(chosen)
    agent = build_agent(node)
    async with serve(agent):
        await agent.prepare("claim", "nic0", pod="trainer")
        pod = node.begin_pod("trainer")
        await agent.start(build_sandbox("trainer", pod.path))
        assert pod.run(chosen) == before
        await agent.unprepare("claim")
    assert node.host.run(chosen) == before


async def test_routes_of_other_interfaces_to_the_same_destinations_stay(node: TestNode) -> None:
    node.host.run(
        """
        ip link add nic1 type veth peer name nic2; ip link set nic1 up; ip link set nic2 up
        ip route add 10.9.0.0/16 dev nic1; ip route append 10.9.0.0/16 dev nic0
        ip -6 route add fd09::/64 dev nic1; ip -6 route append fd09::/64 dev nic0
        """
    )
    listed = "ip route show 10.9.0.0/16; ip -6 route show fd09::/64"
    before = node.host.run(listed)
    agent = build_agent(node)
    async with serve(agent):
        await agent.prepare("claim", "nic0", pod="trainer")
        await agent.start(build_sandbox("trainer", node.begin_pod("trainer").path))
        await agent.unprepare("claim")
    assert node.host.run(listed) == before


@pytest.mark.parametrize(
    ("route", "what"),
    [
        pytest.param("10.7.0.0/16 encap ip id 42 dst 10.0.0.9 dev nic0", "an encapsulation", id="encapsulation"),
        pytest.param("10.7.0.0/16 via 10.0.0.9 tos 0x10", "a type of service", id="type-of-service"),
        pytest.param("10.7.0.0/16 nhid 5", "a nexthop object", id="nexthop-object"),
    ],
)
async def test_an_interface_whose_routes_could_not_be_put_back_stays(node: TestNode, route: str, what: str) -> None:
    node.host.run(f"ip nexthop add id 5 via 10.0.0.9 dev nic0; ip route add {route}")
    agent = build_agent(node)
    async with serve(agent):
        with pytest.raises(ClaimError, match=f"has the route to 10.7.0.0/16 with {what}, which could not be put back"):
            await agent.prepare("claim", "nic0", pod="trainer")


@pytest.mark.skipif(bool(problem := find_problem("bond")), reason=problem)
async def test_a_member_of_a_bond_has_its_own_mac_address_in_the_pod_and_afterwards(node: TestNode) -> None:
    node.host.run(
        """
        ip link add bond0 mtu 9000 type bond mode active-backup
        ip link add dummy1 address 02:00:00:00:00:01 type dummy; ip link set dummy1 master bond0
        ip link add dummy2 address 02:00:00:00:00:02 type dummy; ip link set dummy2 master bond0
        """
    )
    member = "ip -d -o link show dummy2 | grep -o -e 'mtu [0-9]*' -e 'master bond0' -e 'perm_hwaddr [0-9a-f:]*'"
    before = node.host.run(member)
    agent = build_agent(node)
    async with serve(agent):
        (prepared,) = await agent.prepare("claim", "dummy2", pod="trainer")
        assert prepared.status
        assert prepared.status.network_data
        assert prepared.status.network_data.hardware_address == "02:00:00:00:00:02"
        pod = node.begin_pod("trainer")
        await agent.start(build_sandbox("trainer", pod.path))
        assert re.search("mtu 9000 .* 02:00:00:00:00:02", pod.run("ip -o link show dummy2"))
        await agent.unprepare("claim")
    assert node.host.run(member) == before


def test_the_kernel_says_which_links_it_keeps_in_their_namespace(node: TestNode) -> None:
    host = OpenNamespace(node.host.path)
    found = {link.name: link.immovable for link in NetlinkKernel(()).read_links(host).links}
    host.close()
    says = tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) >= (6, 15)
    assert (found["lo"], found["nic0"]) == (says, False)


async def test_the_uplink_of_a_default_route_that_names_only_a_nexthop_object_stays(node: TestNode) -> None:
    node.host.run(
        """
        sysctl -qw net.ipv4.nexthop_compat_mode=0
        ip nexthop add id 5 via 10.0.0.9 dev nic0; ip nexthop add id 6 group 5; ip route add default nhid 6 metric 9
        """
    )
    agent = build_agent(node)
    async with serve(agent):
        with pytest.raises(ClaimError, match=r"nic0 .* has a default route of the node"):
            await agent.prepare("claim", "nic0", pod="trainer")


@pytest.mark.skipif(
    not Path("/proc/sys/net/mpls").exists(), reason="this kernel has no MPLS; `modprobe mpls_router` may help"
)
async def test_an_interface_that_labels_of_mpls_go_to_stays(node: TestNode) -> None:
    node.host.run("echo 200 >/proc/sys/net/mpls/platform_labels; ip -f mpls route add 100 via inet 10.0.0.9 dev nic0")
    agent = build_agent(node)
    async with serve(agent):
        with pytest.raises(ClaimError, match="has the route to a label with MPLS, which could not be put back"):
            await agent.prepare("claim", "nic0", pod="trainer")


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        pytest.param("bridge link set dev nic0 isolated on", "isolated 1", id="isolated"),
        pytest.param("bridge vlan add dev nic0 vid 10", "VLANs 1, 10", id="vlans"),
    ],
)
async def test_a_port_of_a_bridge_whose_settings_could_not_be_put_back_stays(
    node: TestNode, settings: str, what: str
) -> None:
    node.host.run("ip link add br0 type bridge; ip link set nic0 master br0")
    try:
        node.host.run(settings)
    except AssertionError as error:
        pytest.skip(str(error))
    agent = build_agent(node)
    async with serve(agent):
        with pytest.raises(ClaimError, match=f"is a port of a bridge with {what}, which could not be put back"):
            await agent.prepare("claim", "nic0", pod="trainer")


async def test_an_interface_whose_bridge_is_gone_meanwhile_comes_back_with_a_warning(
    node: TestNode, caplog: pytest.LogCaptureFixture
) -> None:
    node.host.run("ip link add br0 type bridge; ip link set nic0 master br0")
    agent = build_agent(node)
    async with serve(agent):
        await agent.prepare("claim", "nic0", pod="trainer")
        await agent.start(build_sandbox("trainer", node.begin_pod("trainer").path))
        node.host.run("ip link delete br0")
        await agent.unprepare("claim")
    assert "nic0 is back, but not as it was before: its master br0 is gone" in caplog.text
    assert "nic0" in node.host.run("ip -o link show nic0")


async def test_flags_that_a_pod_sets_are_not_there_for_the_next_one(node: TestNode) -> None:
    node.host.run("ip link set nic0 txqueuelen 500 group 7")
    described = "ip -o link show nic0 | sed 's/^[0-9]*: //'"
    before = node.host.run(described)
    agent = build_agent(node)
    async with serve(agent):
        await agent.prepare("claim", "nic0", pod="trainer")
        pod = node.begin_pod("trainer")
        await agent.start(build_sandbox("trainer", pod.path))
        pod.run("ip link set nic0 arp off promisc on allmulticast on multicast off txqueuelen 7 group 5")
        await agent.unprepare("claim")
    assert node.host.run(described) == before


async def test_sizes_and_sysctls_of_the_interface_are_set_in_the_pod_and_put_back(node: TestNode) -> None:
    """The kernel resets the sysctls whenever an interface moves."""

    def read(where: TestNamespace) -> list[str]:
        sizes = re.findall("(?:gso|gro)_(?:ipv4_)?max_size [0-9]+", where.run("ip -d link show nic0"))
        return [*sizes, *where.run(f"cat {' '.join(f'/proc/sys/net/ipv4/conf/nic0/{one}' for one in names)}").split()]

    names = ("arp_ignore", "arp_announce", "forwarding", "rp_filter")
    node.host.run("ip link set nic0 gso_max_size 40000")
    node.host.run("for one in arp_ignore rp_filter; do echo 1 >/proc/sys/net/ipv4/conf/nic0/$one; done")
    before = read(node.host)
    agent = build_agent(node)
    pod = node.begin_pod("trainer")
    sizes = {"gsoMaxSize": 100000, "groMaxSize": 90000}
    if tuple(map(int, re.findall("[0-9]+", os.uname().release)[:2])) >= (6, 3):
        sizes |= {"gsoIPv4MaxSize": 80000, "groIPv4MaxSize": 70000}
    wanted = {**sizes, "arpIgnore": 2, "arpAnnounce": 1, "forwarding": True}
    async with serve(agent):
        configs = (msgspec.convert({"interface": wanted}, NetworkConfig),)
        await agent.prepare("claim", "nic0", pod="trainer", configs=configs)
        await agent.start(build_sandbox("trainer", pod.path))
        inside = read(pod)
        assert {"gso_max_size 100000", "gro_max_size 90000"} <= set(inside)
        assert inside[-4:-1] == ["2", "1", "1"]
        await agent.unprepare("claim")
    assert read(node.host) == before


async def test_sysctls_that_an_admin_changed_on_the_node_are_put_back_and_do_not_go_into_the_pod(
    node: TestNode,
) -> None:
    """Such as accept_ra 0 of ifupdown: without it, the node would take a default route from any router."""
    changed = {
        "ipv6/conf/nic0/accept_ra": "0",
        "ipv6/conf/nic0/addr_gen_mode": "1",
        "ipv4/conf/nic0/accept_local": "1",
        "ipv4/conf/nic0/proxy_arp": "1",
        "ipv4/neigh/nic0/ucast_solicit": "7",
        "ipv6/neigh/nic0/ucast_solicit": "8",
    }
    read = f"cd /proc/sys/net; cat {' '.join(changed)}"
    node.host.run("; ".join(f"echo {value} >/proc/sys/net/{name}" for name, value in changed.items()))
    agent = build_agent(node)
    pod = node.begin_pod("trainer")
    async with serve(agent):
        await agent.prepare("claim", "nic0", pod="trainer")
        await agent.start(build_sandbox("trainer", pod.path))
        assert pod.run(read).split() == ["1", "0", "0", "0", "3", "3"]
        await agent.unprepare("claim")
    assert node.host.run(read).split() == list(changed.values())


async def test_an_interface_with_an_ipv6_address_has_ipv6_also_in_a_pod_that_has_none(node: TestNode) -> None:
    """So has the loopback interface, by which the pod reaches its own addresses."""
    agent = build_agent(node)
    pod = node.begin_pod("trainer")
    pod.run("cd /proc/sys/net/ipv6/conf; echo 1 >all/disable_ipv6; echo 1 >default/disable_ipv6")
    async with serve(agent):
        await agent.prepare("claim", "nic0", pod="trainer")
        await agent.start(build_sandbox("trainer", pod.path))
        assert "fd00::1/64" in pod.describe("nic0")
        assert (
            pod.run("cat /proc/sys/net/ipv6/conf/nic0/disable_ipv6 /proc/sys/net/ipv6/conf/lo/disable_ipv6") == "0\n0\n"
        )
        await agent.unprepare("claim")


async def test_an_interface_without_ipv6_has_the_rest_of_its_configuration_in_the_pod(node: TestNode) -> None:
    agent = build_agent(node)
    pod = node.begin_pod("trainer")
    configs = (msgspec.convert({"interface": {"disableIPv6": True}}, NetworkConfig),)
    async with serve(agent):
        await agent.prepare("claim", "nic0", pod="trainer", configs=configs)
        await agent.start(build_sandbox("trainer", pod.path))
        inside = pod.describe("nic0")
        assert "10.0.0.1/24" in inside
        assert "fd0" not in inside
        await agent.unprepare("claim")


@pytest.mark.parametrize("sysctl", ["accept_ra", "router_solicitations"])
async def test_the_token_of_its_ipv6_addresses_is_put_back_and_does_not_go_into_the_pod(
    node: TestNode, sysctl: str
) -> None:
    """With either sysctl 0, the kernel would refuse the token."""
    node.host.run(f"ip token set ::5 dev nic0; echo 0 >/proc/sys/net/ipv6/conf/nic0/{sysctl}")
    read = f"ip token get dev nic0; cat /proc/sys/net/ipv6/conf/nic0/{sysctl}"
    before = node.host.run(read)
    agent = build_agent(node)
    pod = node.begin_pod("trainer")
    async with serve(agent):
        await agent.prepare("claim", "nic0", pod="trainer")
        await agent.start(build_sandbox("trainer", pod.path))
        assert "token :: " in pod.run("ip token get dev nic0")
        await agent.unprepare("claim")
    assert "token ::5 " in before
    assert node.host.run(read) == before


async def test_it_comes_back_when_the_end_of_the_pod_is_never_reported(node: TestNode) -> None:
    """Containerd does not report it for pods that are older than its last restart."""
    before = node.host.describe("nic0")
    agent = build_agent(node)
    pod = node.begin_pod("trainer")
    async with serve(agent):
        await agent.prepare("claim", "nic0", pod="trainer")
        await agent.start(build_sandbox("trainer", pod.path))
    async with serve(agent):
        await agent.unprepare("claim")
    assert (node.host.describe("nic0"), pod.links()) == (before, [])


async def test_it_comes_back_when_the_namespace_was_removed_before_the_end_of_the_pod_is_reported(
    node: TestNode,
) -> None:
    """CRI-O removes it first."""
    before = node.host.describe("nic0")
    agent = build_agent(node)
    pod = node.begin_pod("trainer")
    sandbox = build_sandbox("trainer", pod.path)
    async with serve(agent):
        await agent.prepare("claim", "nic0", pod="trainer")
        await agent.start(sandbox)
        pod.end()
        await agent.runtime.stop_pod(sandbox)
        assert node.host.links() == ["nic0", "up0"]
        await agent.unprepare("claim")
    assert node.host.describe("nic0") == before


async def test_a_pod_that_began_while_the_backend_did_not_run_gets_its_interface_before_its_containers(
    node: TestNode,
) -> None:
    agent = build_agent(node)
    pod = node.begin_pod("trainer")
    sandbox = build_sandbox("trainer", pod.path)
    async with serve(agent):
        await agent.prepare("claim", "nic0", pod="trainer")
        agent.runtime.pods[sandbox.id] = sandbox  # the runtime went on without the backend, which was too slow
        await agent.runtime.create_container(build_container(sandbox))
        assert pod.links() == ["nic0"]


async def test_a_pod_whose_containers_run_gets_its_interface_when_the_backend_starts_again(node: TestNode) -> None:
    agent = build_agent(node)
    pod = node.begin_pod("trainer")
    sandbox = build_sandbox("trainer", pod.path)
    async with serve(agent):
        await agent.prepare("claim", "nic0", pod="trainer")
    agent.runtime.pods[sandbox.id] = sandbox
    async with serve(agent):
        while pod.links() != ["nic0"]:  # noqa: ASYNC110 - in the kernel
            await asyncio.sleep(0.01)
        await agent.unprepare("claim")
    assert "nic0" in node.host.links()


async def test_what_a_pod_has_changed_of_its_interface_stays_when_the_backend_starts_again(node: TestNode) -> None:
    agent = build_agent(node)
    pod = node.begin_pod("trainer")
    sandbox = build_sandbox("trainer", pod.path)
    async with serve(agent):
        await agent.prepare("claim", "nic0", pod="trainer")
        await agent.start(sandbox)
    pod.run(
        """
        ip link set nic0 down; ip link set nic0 address 02:00:00:00:00:01 name lan mtu 1300; ip link set lan up
        ip addr add fd00::2/64 nodad dev lan; ip addr del 10.0.0.1/24 dev lan; ip addr add 10.7.0.7/24 dev lan
        """
    )
    before = pod.run("ip -o link show lan; ip -o addr show lan scope global")
    async with serve(agent):
        while "fd05::/32" not in pod.run("ip -6 route"):  # noqa: ASYNC110 - in the kernel
            await asyncio.sleep(0.01)
        await agent.runtime.create_container(build_container(sandbox))
        (found,) = (await agent.backend.discover()).claim_statuses
        assert found.warning == "", "nor is it a failure that its gateway cannot be reached any more"
        assert pod.run("ip -o link show lan; ip -o addr show lan scope global") == before
        await agent.unprepare("claim")
    assert "nic0" in node.host.links()


async def run_again(agent: NetAgent, first: TestNamespace, second: TestNamespace) -> PodSandbox:
    """Run the pod of a claim in one sandbox after the other; the first one, which has died without a word."""
    await agent.prepare("claim", "nic0", pod="trainer")
    dead = build_sandbox("trainer", first.path)
    await agent.start(dead)
    await agent.start(build_sandbox("trainer", second.path, number=2))
    return dead


async def test_another_sandbox_of_the_pod_gets_the_interface_of_the_dead_one(node: TestNode) -> None:
    agent = build_agent(node)
    first, second = node.begin_pod("first"), node.begin_pod("second")
    async with serve(agent):
        dead = await run_again(agent, first, second)
        assert (first.links(), second.links()) == ([], ["nic0"])
        await agent.runtime.stop_pod(dead)
        assert second.links() == ["nic0"], "the late end of the first takes nothing from the second"
        await agent.unprepare("claim")


async def test_a_sandbox_that_has_died_since_it_began_takes_nothing_from_the_one_that_runs(node: TestNode) -> None:
    agent = build_agent(node)
    first, second = node.begin_pod("first"), node.begin_pod("second")
    async with serve(agent):
        dead = await run_again(agent, first, second)
        second.run("ip neigh del 10.0.0.9 dev nic0")
        agent.runtime.pods[dead.id] = replace(dead, pid=0)
        agent.runtime.plugins[0].connection.close()
        while "lladdr" not in second.run("ip neigh show nud permanent"):  # noqa: ASYNC110 - in the kernel
            await asyncio.sleep(0.01)
        assert (first.links(), second.links()) == ([], ["nic0"])
        await agent.unprepare("claim")


async def test_what_was_moved_is_back_when_the_pod_cannot_have_all_of_its_interfaces(node: TestNode) -> None:
    node.host.run("ip link add nic1 type veth peer name nic2; ip addr add 10.7.0.1/24 dev nic1; ip link set nic1 up")
    before = node.host.describe("nic0")
    agent = build_agent(node)
    pod = node.begin_pod("trainer")
    pod.run("ip link add nic1 type veth peer name other")
    async with serve(agent):
        await agent.prepare("claim", "nic0", "nic1", pod="trainer")
        with pytest.raises(OperationFailed, match=r"the pod has an interface nic1 already; set another interface.name"):
            await agent.start(build_sandbox("trainer", pod.path))
        assert pod.links() == ["nic1", "other"]
        await agent.unprepare("claim")
    assert node.host.describe("nic0") == before


async def test_the_doctor_finds_nothing_missing_of_what_the_kernel_reports_in_other_words(node: TestNode) -> None:
    config = NetworkConfig(
        interface=InterfaceConfig(addresses=("FD00::0005/64",)),
        routes=(RouteConfig(destination="FD50::/32", gateway="FD00:0::9"),),
        rules=(RuleConfig(source="FD00::/64", table=7),),
        neighbors=(NeighborConfig(destination="FD00::0009", hardware_addr="02:00:00:00:00:0A"),),
    )
    agent = build_agent(node)
    async with serve(agent):
        await agent.prepare("claim", "nic0", pod="trainer", configs=(config,))
        await agent.start(build_sandbox("trainer", node.begin_pod("trainer").path))
        assert [*examine_node(agent.settings, tuple(agent.held.values()))] == []
        await agent.unprepare("claim")


async def test_the_doctor_says_nothing_of_a_token_which_it_does_not_read(node: TestNode) -> None:
    node.host.run("ip token set ::5 dev nic0")
    agent = build_agent(node)
    async with serve(agent):
        await agent.prepare("claim", "nic0", pod="trainer")
        node.host.run("ip link set nic0 down")
        (found,) = examine_node(agent.settings, (replace(agent.held["claim"], left_over=True),))
        assert "which has ended, is on the node as nic0, and is not as it should be" in found
        assert "token" not in found
        await agent.unprepare("claim")


async def test_a_pod_on_the_nodes_network_cannot_have_an_interface(node: TestNode) -> None:
    agent = build_agent(node)
    async with serve(agent):
        await agent.prepare("claim", "nic0", pod="trainer")
        with pytest.raises(OperationFailed, match="pod team/trainer uses the node's own network"):
            await agent.start(build_sandbox("trainer", ""))
        with pytest.raises(OperationFailed, match="the pod uses the node's own network, so it has nic0 already"):
            await agent.start(build_sandbox("trainer", node.host.path, number=2))


async def test_an_interface_that_the_node_needs_by_now_is_not_given_away(node: TestNode) -> None:
    agent = build_agent(node)
    async with serve(agent):
        names = [device.name for device in (await agent.backend.discover()).devices]
        assert names == ["nic0"], "neither the uplink nor the loopback interface"
        node.host.run("ip route add default via 10.0.0.9 table 7")
        await agent.backend.wait_changed()
        assert (await agent.backend.discover()).devices == ()
        with pytest.raises(ClaimError, match=r"nic0 .* has a default route of the node .table 7.; it is not given"):
            await agent.prepare("claim", "nic0", pod="trainer")


async def test_an_interface_whose_name_was_taken_meanwhile_is_back_under_another_and_told(node: TestNode) -> None:
    agent = build_agent(node)
    pod = node.begin_pod("trainer")
    async with serve(agent):
        await agent.prepare("claim", "nic0", pod="trainer")
        await agent.start(build_sandbox("trainer", pod.path))
        node.host.run("ip link add nic0 type veth peer name nic9")
        with pytest.raises(UndoLater, match=r"nic0 is back as pydra[0-9]+, since another interface has its name nic0"):
            await agent.unprepare("claim")
        node.host.run("ip link del nic0")
        await agent.unprepare("claim")
    assert node.host.links() == ["nic0", "up0"]


async def test_an_interface_with_another_name_in_the_pod_is_back_when_its_own_was_taken_meanwhile(
    node: TestNode,
) -> None:
    agent = build_agent(node)
    pod = node.begin_pod("trainer")
    renamed = NetworkConfig(interface=InterfaceConfig(name="net1"))
    async with serve(agent):
        await agent.prepare("claim", "nic0", pod="trainer", configs=(renamed,))
        await agent.start(build_sandbox("trainer", pod.path))
        node.host.run("ip link add nic0 type veth peer name nic9")
        with pytest.raises(UndoLater, match=r"nic0 is back as net1, since another interface has its name nic0"):
            await agent.unprepare("claim")


@pytest.mark.parametrize("names", [("up0",), ("nic0",), ("cni7", "$(printf 'b\\374')")])
async def test_names_that_a_pod_gives_to_its_interface_neither_keep_it_nor_stay(
    node: TestNode, names: tuple[str, ...]
) -> None:
    """With CAP_NET_ADMIN, a pod can give it those of the node's interfaces, or of interfaces that are to come there."""
    node.host.run("ip link property add dev nic0 altname enp7s0")
    before = node.host.run("ip link show nic0 | grep altname")
    agent = build_agent(node)
    pod = node.begin_pod("trainer")
    renamed = NetworkConfig(interface=InterfaceConfig(name="net1"))
    async with serve(agent):
        await agent.prepare("claim", "nic0", pod="trainer", configs=(renamed,))
        await agent.start(build_sandbox("trainer", pod.path))
        pod.run("ip link property del dev net1 altname enp7s0")
        for name in names:
            pod.run(f"ip link property add dev net1 altname {name}")
        await agent.unprepare("claim")
    assert node.host.links() == ["nic0", "up0"]
    assert node.host.run("ip link show nic0 | grep altname") == before


@pytest.mark.skipif(bool(_NO_VXLAN), reason=_NO_VXLAN)
@pytest.mark.parametrize("forged", ["vxlan id 6 dstport 4790", "veth peer name end0"])
async def test_a_link_that_a_pod_makes_in_place_of_its_interface_is_not_the_nodes_afterwards(
    node: TestNode, forged: str
) -> None:
    """With CAP_NET_ADMIN, a pod could get what the node sends by the routes of a virtual interface that it had."""
    node.host.run("ip link add vx0 type vxlan id 5 dstport 4789; ip addr add 10.9.0.1/24 dev vx0; ip link set vx0 up")
    agent = build_agent(node)
    pod = node.begin_pod("trainer")
    async with serve(agent):
        await agent.prepare("claim", "vx0", pod="trainer")
        await agent.start(build_sandbox("trainer", pod.path))
        pod.run(
            f"""mark=$(ip link show vx0 | grep -o 'pydra[.].*'); ip link del vx0
            ip link add vx0 type {forged}; ip link property add dev vx0 altname $mark"""
        )
        await agent.unprepare("claim")
        assert node.host.links() == ["nic0", "up0"]


async def test_no_file_stays_open_after_pods_have_come_and_gone(node: TestNode) -> None:
    """Not so in DRANET #180. An open namespace would not end."""

    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    counts, held = [], 0
    agent = build_agent(node)
    async with serve(agent):
        for number in range(3):
            pod = node.begin_pod(f"trainer-{number}")
            sandbox = build_sandbox("trainer", pod.path, number=number)
            await agent.prepare("claim", "nic0", pod="trainer")
            held = -count()
            await agent.start(sandbox)
            await agent.runtime.stop_pod(sandbox)
            held += count()
            await agent.unprepare("claim")
            counts.append(count())
    assert (held, counts[1]) == (0, counts[2])


async def test_events_that_the_kernel_dropped_are_a_reason_to_look_again(node: TestNode) -> None:
    namespace = OpenNamespace(node.host.path)
    events = LinkEvents(namespace, buffer=1)
    for _ in range(2):
        node.host.run(
            "for one in 1 2 3 4 5 6 7 8; do ip link set nic0 mtu $((1400 + one)); done; ip link set nic0 mtu 1400"
        )
        await events.wait()
    events.close()
    namespace.close()


async def test_names_and_aliases_that_are_not_utf_8_hide_no_other_interface(node: TestNode) -> None:
    node.host.run("ip link set nic0 alias $(printf 'B\\374'); ip link add $(printf 'b\\374') type veth peer name nic1")
    async with serve(agent := build_agent(node)):
        found = {one.name: one.attributes.get("alias") for one in (await agent.backend.discover()).devices}
        assert found == {"nic0": "B\N{REPLACEMENT CHARACTER}", "nic1": None}


async def test_changes_of_the_nodes_network_are_noticed_without_polling(node: TestNode) -> None:
    agent = build_agent(node)
    async with serve(agent):
        await agent.backend.discover()
        node.host.run("ip addr add 10.9.0.1/24 dev nic0")
        await agent.backend.wait_changed()
        (device,) = (await agent.backend.discover()).devices
        assert device.attributes["ipv4"] == "10.0.0.1/24,10.9.0.1/24"


async def test_an_interface_in_a_pod_is_still_published(node: TestNode) -> None:
    agent = build_agent(node)
    pod = node.begin_pod("trainer")
    async with serve(agent):
        await agent.prepare("claim", "nic0", pod="trainer")
        await agent.start(build_sandbox("trainer", pod.path))
        (device,) = (await agent.backend.discover()).devices
        assert (device.name, device.attributes["ifName"], device.attributes["ipv4"]) == ("nic0", "nic0", "10.0.0.1/24")
