"""What a claim sets of the interface itself, in the kernel's own namespaces: ethtool, eBPF programs, VRFs."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from pyroute2.netlink.exceptions import NetlinkDumpInterrupted

from bpf_programs import attach_programs
from namespaces import TestNamespace, TestNode, find_problem, make_node
from net_agent import NetAgent, build_sandbox, build_settings
from pydra import TerminalError, UndoLater
from pydra_net.claim_config import NetworkConfig
from pydra_net.kernel import KernelRefused, Namespace
from pydra_net.netlink.kernel import NetlinkKernel
from pydra_net.network_change_types import DetachPrograms, Operation, SetEthtool, SetFunction, SetLink, SetSysctls
from pydra_net.network_types import Ethtool, Programs, VirtualFunctionState

_PROBLEM = find_problem()
pytestmark = pytest.mark.skipif(bool(_PROBLEM), reason=_PROBLEM)

KERNEL = NetlinkKernel(())


@pytest.fixture
def node() -> Iterator[TestNode]:
    with make_node() as node:
        yield node


@asynccontextmanager
async def serve(node: TestNode, kernel: NetlinkKernel | None = None) -> AsyncIterator[NetAgent]:
    settings = build_settings(node)
    agent = NetAgent(settings, kernel)
    async with agent.runtime.serve(settings.nri_socket), agent.run():
        yield agent


def config(**fields: Any) -> tuple[NetworkConfig, ...]:
    return (msgspec.convert(fields, NetworkConfig),)


def read_features(where: TestNamespace, *names: str) -> list[bool]:
    opened = KERNEL.open(where.path)
    link = KERNEL.read_links(opened).find_name("nic0")
    assert link is not None
    features = KERNEL.read_ethtool(opened, link.index).features
    opened.close()
    return [features[name].enabled for name in names]


async def test_features_of_ethtool_are_so_in_the_pod_and_put_back(node: TestNode) -> None:
    names = ("tx-tcp-segmentation", "tx-tcp6-segmentation", "rx-gro", "tx-nocache-copy")
    before = read_features(node.host, *names)
    pod = node.begin_pod("trainer")
    async with serve(node) as agent:
        wanted = config(ethtool={"features": {"tso": False, "gro": True, "tx-nocache-copy": True}})
        await agent.prepare("claim", "nic0", pod="trainer", configs=wanted)
        await agent.start(build_sandbox("trainer", pod.path))
        assert (before, read_features(pod, *names)) == ([True, True, False, False], [False, False, True, True])
        await agent.unprepare("claim")
    assert read_features(node.host, *names) == before


@pytest.mark.parametrize(
    ("ethtool", "message"),
    [
        ({"features": {"warp": True}}, 'ethtool.features: nic0 has no "warp"; run: ethtool -k nic0'),
        ({"features": {"lro": True}}, 'ethtool.features: "lro" of nic0 cannot be turned on'),
        ({"privateFlags": {"legacy-rx": True}}, 'ethtool.privateFlags: nic0 has no "legacy-rx"; it has: none'),
    ],
)
async def test_what_the_hardware_does_not_have_is_refused_before_the_pod_starts(
    ethtool: dict[str, Any], message: str, node: TestNode
) -> None:
    async with serve(node) as agent:
        with pytest.raises(TerminalError, match=message):
            await agent.prepare("claim", "nic0", configs=config(ethtool=ethtool))


async def test_sysctls_of_ipv6_are_set_in_the_pod_also_where_proc_is_read_only(node: TestNode) -> None:
    """As it is in a container that is not privileged."""
    pod = node.begin_pod("trainer")
    names = ("accept_ra", "dad_transmits", "forwarding")
    async with serve(node) as agent:
        wanted = {"addresses": ["fd01::5/64"], "acceptRA": 2, "dadTransmits": 0, "forwarding": True}
        await agent.prepare("claim", "nic0", pod="trainer", configs=config(interface=wanted))
        await agent.start(build_sandbox("trainer", pod.path))
        assert pod.run(f"cat {' '.join(f'/proc/sys/net/ipv6/conf/nic0/{one}' for one in names)}").split() == list("201")
        await agent.unprepare("claim")
    code = 'from pydra_net.netlink.sysctls import set_sysctl; set_sysctl("net/ipv6/conf/lo/accept_ra", 2)'
    (script := node.pods.parent / "script").write_text(
        "mount --bind /proc/sys /proc/sys; mount -o remount,ro,bind /proc/sys\n"
        "! echo 2 >/proc/sys/net/ipv6/conf/lo/accept_ra\n"
        f"{sys.executable} -c '{code}'\n"
    )
    pod.run(f"unshare --mount sh -e {script}")
    assert pod.run("cat /proc/sys/net/ipv6/conf/lo/accept_ra") == "2\n"


def test_a_link_that_has_just_gone_is_no_failure_of_what_is_read_or_set(node: TestNode) -> None:
    """As while one claim is prepared, and the interface of another is moved."""
    host = KERNEL.open(node.host.path)
    gone = 99999
    assert KERNEL.read_link(host, gone) is None
    assert KERNEL.read_programs(host, [gone]) == {}
    assert KERNEL.read_ethtool(host, gone) == Ethtool()
    assert KERNEL.read_function(host, gone, 0) is None
    operations = (
        *(SetSysctls(index=gone, values={"ipv6/conf/accept_ra": 1}), SetEthtool(index=gone, features={"rx-gro": True})),
        *(
            DetachPrograms(index=gone),
            SetFunction(index=gone, number=0, state=VirtualFunctionState(trust=True)),
            SetLink(index=gone, up=True),
        ),
    )
    assert len(KERNEL.apply(host, operations)) == len(operations)
    host.close()


def test_a_sysctl_that_is_refused_keeps_no_other_from_being_set(node: TestNode) -> None:
    host = KERNEL.open(node.host.path)
    link = KERNEL.read_links(host).find_name("nic0")
    assert link is not None
    values = {"ipv4/conf/no_such": 1, "ipv4/conf/rp_filter": 2}
    assert [str(one) for one in KERNEL.apply(host, (SetSysctls(index=link.index, values=values),))] == [
        "set ipv4/conf/no_such 1: No such file or directory"
    ]
    assert node.host.run("cat /proc/sys/net/ipv4/conf/nic0/rp_filter") == "2\n"
    host.close()


def test_a_kernel_that_is_always_interrupted_is_a_reason_to_try_again(node: TestNode) -> None:
    host = KERNEL.open(node.host.path)

    class Interrupted(tuple[int, ...]):
        __slots__ = ()

        def __iter__(self) -> Iterator[int]:
            raise NetlinkDumpInterrupted

    says = f"did not list the interfaces of {node.host.path}: dump interrupted; try"
    with pytest.raises(KernelRefused, match=says) as refused:
        KERNEL.read_programs(host, Interrupted())
    assert refused.value.passes
    host.close()


async def test_ebpf_programs_are_told_and_detached_in_the_pod(node: TestNode, caplog: pytest.LogCaptureFixture) -> None:
    host = KERNEL.open(node.host.path)
    index = next(link.index for link in KERNEL.read_links(host).links if link.name == "nic0")
    try:
        links = host.run(lambda: attach_programs(index))
    except OSError as error:
        host.close()
        pytest.skip(f"this kernel has no tcx: {error}")
    pod = node.begin_pod("trainer")
    async with serve(node) as agent:
        (device,) = [one for one in (await agent.backend.discover()).devices if one.name == "nic0"]
        assert device.attributes["ebpf"] is True
        assert device.attributes["tcxProgramNames"] == "handle_ingress,by_link"
        await agent.prepare("claim", "nic0", pod="trainer", configs=config(interface={"disableEbpfPrograms": True}))
        (device,) = [one for one in (await agent.backend.discover()).devices if one.name == "nic0"]
        assert device.attributes["tcxProgramNames"] == "handle_ingress,by_link", "until the pod begins"
        await agent.start(build_sandbox("trainer", pod.path))
        inside = KERNEL.open(pod.path)
        link = KERNEL.read_links(inside).find_name("nic0")
        assert link is not None
        assert (link.has_xdp, KERNEL.read_programs(inside, [link.index]).get(link.index, Programs())) == (
            False,
            Programs(),
        )
        (device,) = [one for one in (await agent.backend.discover()).devices if one.name == "nic0"]
        assert "tcxProgramNames" not in device.attributes
        inside.close()
        await agent.unprepare("claim")
    assert (
        "nic0 (nic0) is back without the eBPF programs handle_ingress, by_link, that of XDP; attach them again"
        in caplog.text
    )
    host.close()
    for link in links:
        os.close(link)


async def test_ebpf_programs_that_a_pod_has_attached_end_with_its_claim(node: TestNode) -> None:
    host = KERNEL.open(node.host.path)
    pod = node.begin_pod("trainer")
    async with serve(node) as agent:
        await agent.prepare("claim", "nic0", pod="trainer")
        await agent.start(build_sandbox("trainer", pod.path))
        inside = KERNEL.open(pod.path)
        (index,) = [link.index for link in KERNEL.read_links(inside).links if link.name == "nic0"]
        try:
            links = inside.run(lambda: attach_programs(index))
        except OSError as error:
            pytest.skip(f"this kernel has no tcx: {error}")
        finally:
            inside.close()
        await agent.unprepare("claim")
    link = KERNEL.read_links(host).find_name("nic0")
    assert link is not None
    assert (link.has_xdp, KERNEL.read_programs(host, [link.index])) == (False, {})
    host.close()
    for one in links:
        os.close(one)


async def test_an_interface_stays_in_its_pod_while_programs_of_the_pod_cannot_be_detached(node: TestNode) -> None:
    class ShortOfMemory(NetlinkKernel):
        fails: str = ""

        def read_programs(self, where: Namespace, indexes: Sequence[int]) -> Mapping[int, Programs]:
            if self.fails == "read":
                raise KernelRefused(os.strerror(errno.ENOMEM), errno.ENOMEM)
            return super().read_programs(where, indexes)

        def apply(self, where: Namespace, operations: Sequence[Operation]) -> Sequence[KernelRefused]:
            if self.fails == "detach" and any(isinstance(one, DetachPrograms) for one in operations):
                return [KernelRefused(os.strerror(errno.ENOMEM), errno.ENOMEM)]
            return super().apply(where, operations)

    pod = node.begin_pod("trainer")
    kernel = ShortOfMemory([str(node.pods)])
    async with serve(node, kernel) as agent:
        await agent.prepare("claim", "nic0", pod="trainer")
        await agent.start(build_sandbox("trainer", pod.path))
        inside = KERNEL.open(pod.path)
        (index,) = [link.index for link in KERNEL.read_links(inside).links if link.name == "nic0"]
        try:
            links = inside.run(lambda: attach_programs(index))
        except OSError as error:
            pytest.skip(f"this kernel has no tcx: {error}")
        finally:
            inside.close()
        for kernel.fails, says in (("read", "are not known"), ("detach", "has programs of its pod")):
            with pytest.raises(UndoLater, match=f"nic0 .nic0. {says}: Cannot allocate memory"):
                await agent.unprepare("claim")
            assert pod.links() == ["nic0"]
        kernel.fails = ""
        await agent.unprepare("claim")
    host = KERNEL.open(node.host.path)
    link = KERNEL.read_links(host).find_name("nic0")
    assert link is not None
    assert (link.has_xdp, KERNEL.read_programs(host, [link.index])) == (False, {})
    host.close()
    for one in links:
        os.close(one)


async def test_interfaces_are_in_a_vrf_of_the_pod_with_their_routes(node: TestNode) -> None:
    if problem := find_problem("vrf"):
        pytest.skip(problem)
    before = node.host.describe("nic0")
    pod = node.begin_pod("trainer")
    async with serve(node) as agent:
        wanted = config(
            interface={"name": "net1", "addresses": ["10.1.0.5/24", "fd01::5/64"], "vrf": {"name": "blue"}},
            routes=[{"destination": "10.8.0.0/16", "gateway": "10.1.0.1"}],
        )
        await agent.prepare("claim", "nic0", pod="trainer", configs=wanted)
        await agent.start(build_sandbox("trainer", pod.path))
        assert "master blue" in pod.run("ip link show net1")
        routes = pod.run("ip route show vrf blue; ip -6 route show vrf blue")
        assert "10.8.0.0/16 via 10.1.0.1 dev net1" in routes
        assert "fd01::/64 dev net1" in routes
        assert not pod.run("ip route")
        await agent.unprepare("claim")
    assert node.host.describe("nic0") == before


def test_a_link_whose_message_has_more_than_64_kib_is_read_whole_and_listed(node: TestNode) -> None:
    node.host.run("""
        for tens in $(seq 70); do
            names=$(for one in 1 2 3 4 5 6 7; do printf 'altname name-%0122d ' $tens$one; done)
            ip link property add dev nic0 $names
        done""")
    where = KERNEL.open(node.host.path)
    try:
        (listed,) = (one for one in KERNEL.read_links(where).links if one.name == "nic0")
        read = KERNEL.read_link(where, listed.index)
    finally:
        where.close()
    assert len(listed.alternative_names) == 490
    assert read is not None
    assert read.alternative_names == listed.alternative_names


def test_a_route_by_as_many_links_as_the_kernel_takes_hides_no_other(node: TestNode) -> None:
    node.host.run("""
        ip addr add 10.9.0.1/16 dev nic0
        ip route add 10.10.0.0/16 $(for one in $(seq 235); do printf 'nexthop via 10.9.1.%s dev nic0 ' $one; done)""")
    where = KERNEL.open(node.host.path)
    try:
        reading = KERNEL.read(where)
    finally:
        where.close()
    found = {one.destination: one.not_recorded for routes in reading.routes.values() for one in routes}
    assert (found["10.10.0.0/16"], found["10.9.0.0/16"]) == ("other links", "")
