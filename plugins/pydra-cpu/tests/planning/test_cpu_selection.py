"""Which CPUs claims get."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpu_machines import build, read
from pydra import AllocatedDevice, Claim, ClaimError, HeldClaim, UnknownDevice
from pydra_cpu.claim_config import CpuConfig
from pydra_cpu.claim_plan import Share, Shares, plan_claim
from pydra_cpu.cpu_list import parse_cpu_list
from pydra_cpu.hardware_types import Topology, by_cache, by_core, by_node, group
from pydra_cpu.settings import GroupBy, Settings
from pydra_cpu.simulation.machine import Machine

SERVER = Machine(sockets=2, nodes=1, caches=2, cores=4, threads=2)
"""CPUs 0 to 15 are the first threads of the cores, 16 to 31 the second; 8 CPUs share a cache, 16 a NUMA node."""
MACHINE = Settings(group_by=GroupBy.MACHINE)


@pytest.fixture(scope="module")
def topology(tmp_path_factory: pytest.TempPathFactory) -> Topology:
    return build(SERVER, tmp_path_factory.mktemp("machine"))


def ask(count: object, device: str = "cpudevmachine", *configs: Any, share: str = "s") -> AllocatedDevice:
    capacity = {"dra.cpu/cpu": str(count)}
    return AllocatedDevice(
        request="r", pool="node", device=device, share_id=share, consumed_capacity=capacity, configs=configs
    )


def claim(uid: str, *devices: AllocatedDevice) -> Claim:
    return Claim(uid=uid, namespace="ns", name=f"claim-{uid}", devices=devices)


def hold(one: Claim, shares: Shares) -> HeldClaim:
    plan = [{"taken": share.taken, "cpus": share.cpus, "memory": share.memory} if share else None for share in shares]
    return HeldClaim(
        claim=Claim(uid=one.uid, namespace=one.namespace, name=one.name, devices=one.devices, plan=plan), completed=True
    )


class Node:
    """Claims on one machine, one after the other."""

    def __init__(self, topology: Topology, settings: Settings = MACHINE) -> None:
        self.topology = topology
        self.settings = settings
        self.held: dict[str, HeldClaim] = {}

    def give(self, uid: str, *devices: AllocatedDevice) -> list[Share]:
        one = claim(uid, *devices)
        shares = plan_claim(one, tuple(self.held.values()), self.topology, self.settings)
        self.held[uid] = hold(one, shares)
        return [share for share in shares if share is not None]

    def cpus(self, uid: str, *devices: AllocatedDevice) -> str:
        return self.give(uid, *devices)[0].cpus


def test_a_claim_gets_a_whole_numa_node_a_whole_cache_whole_cores_if_it_asks_for_so_many(topology: Topology) -> None:
    node = Node(topology)
    assert node.cpus("node", ask(16)) == "0-7,16-23"
    assert node.cpus("cache", ask(8)) == "8-11,24-27"
    assert node.cpus("core", ask(2)) == "12,28"
    assert node.cpus("thread", ask(1)) == "13"
    assert node.cpus("next", ask(1)) == "29", "the core that is used already"
    assert node.cpus("two", ask(2)) == "14,30"


def test_small_claims_leave_whole_groups_to_large_ones(topology: Topology) -> None:
    node = Node(topology)
    node.give("a", ask(2))
    node.give("b", ask(6))
    assert node.cpus("whole", ask(16)) == "8-15,24-31", "both small ones are in the cache of the first"


def test_a_claim_for_more_than_a_group_has_gets_the_rest_from_as_few_as_possible(topology: Topology) -> None:
    chosen = parse_cpu_list(Node(topology).cpus("big", ask(20)))
    assert len(group([cpu for cpu in topology.cpus if cpu.id in chosen], by_node)) == 2
    assert len(group([cpu for cpu in topology.cpus if cpu.id in chosen], by_cache)) == 3


def test_memory_comes_from_the_numa_nodes_of_the_cpus_unless_the_claim_wants_all(topology: Topology) -> None:
    node = Node(topology)
    assert node.give("near", ask(16))[0].memory == "0"
    assert node.give("second", ask(2))[0].memory == "1"
    assert node.give("any", ask(2, "cpudevmachine", CpuConfig(memory="any")))[0].memory == ""


def test_a_node_without_memory_takes_it_from_the_nearest(tmp_path: Path) -> None:
    SERVER.write(tmp_path)
    (tmp_path / "sys/devices/system/node/node0/meminfo").write_text("Node 0 MemTotal: 0 kB")
    assert Node(read(tmp_path)).give("a", ask(2))[0].memory == "1"


def test_whole_cores_are_not_shared_with_another_claim(topology: Topology) -> None:
    node = Node(topology)
    node.give("thread", ask(1))
    (share,) = node.give("whole", ask(4, "cpudevmachine", CpuConfig(cores="whole")))
    assert share.taken == share.cpus == "1-2,17-18"


def test_a_claim_for_single_cpus_of_cores_leaves_their_siblings_idle(topology: Topology) -> None:
    (share,) = Node(topology).give("single", ask(4, "cpudevmachine", CpuConfig(cores="single")))
    assert (share.taken, share.cpus) == ("0-1,16-17", "0-1")


def test_a_spread_claim_gets_as_many_cpus_of_each_group(topology: Topology) -> None:
    chosen = parse_cpu_list(Node(topology).cpus("even", ask(20, "cpudevmachine", CpuConfig(spread="numaNode"))))
    groups = group([cpu for cpu in topology.cpus if cpu.id in chosen], by_node)
    assert {name: len(cpus) for name, cpus in groups.items()} == {0: 10, 1: 10}


def test_a_claim_gets_exactly_the_cpus_that_it_names(topology: Topology) -> None:
    assert Node(topology).cpus("exact", ask(4, "cpudevmachine", CpuConfig(cpuset="2-5"))) == "2-5"


def test_two_devices_of_a_claim_never_have_a_cpu_in_common(topology: Topology) -> None:
    node = Node(topology, Settings())
    shares = node.give("pair", ask(8, "cpudevnuma000", share="a"), ask(8, "cpudevnuma000", share="b"))
    assert parse_cpu_list(shares[0].taken).isdisjoint(parse_cpu_list(shares[1].taken))


REFUSED: Mapping[str, tuple[AllocatedDevice, type[Exception], str]] = {
    "too many": (ask(33), ClaimError, r"cannot give CPUs: asked for 33, free are 31 \(1-31\), of which 31 can be used"),
    "fraction": (ask("1500m"), ClaimError, "asks for 1500m CPUs .* must be a whole number"),
    "none": (ask(0), ClaimError, "must be a whole number, from 1"),
    "half a core": (
        ask(3, "cpudevmachine", CpuConfig(cores="whole")),
        ClaimError,
        "CPUs with cores: whole: found 3, allowed: a multiple of the CPUs of a core$",
    ),
    "half a core each": (
        ask(6, "cpudevmachine", CpuConfig(cores="whole", spread="numaNode")),
        ClaimError,
        "CPUs with cores: whole, spread: numaNode: found 6, allowed: .* for each numaNode",
    ),
    "another number": (ask(2, "cpudevmachine", CpuConfig(cpuset="2-5")), ClaimError, "CPUs: found 4, the claim asks"),
    "taken": (ask(2, "cpudevmachine", CpuConfig(cpuset="0-1")), ClaimError, "claim ns/claim-first has CPU 0"),
    "off-line": (ask(1, "cpudevmachine", CpuConfig(cpuset="99")), ClaimError, "CPU 99 is reserved, off-line or not"),
    "unknown": (ask(1, "cpudevnuma009"), UnknownDevice, "no CPU that is online"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_given_is_refused_with_the_reason(topology: Topology, what: str) -> None:
    node = Node(topology)
    node.give("first", ask(1))
    device, kind, words = REFUSED[what]
    with pytest.raises(kind, match=words):
        node.give("refused", device)


def test_nothing_is_given_while_the_cpus_of_another_claim_are_not_known(topology: Topology) -> None:
    node = Node(topology)
    unreadable = Claim(uid="lost", namespace="", name="", devices=())
    node.held["lost"] = HeldClaim(claim=unreadable, completed=True)
    with pytest.raises(ClaimError, match="CPUs of claim with uid lost are not known"):
        node.give("next", ask(1))


def test_admin_access_gives_no_cpus(topology: Topology) -> None:
    device = AllocatedDevice(request="r", pool="node", device="cpudevmachine", admin_access=True)
    assert plan_claim(claim("admin", device), (), topology, MACHINE) == (None,)


CONFIGS = st.sampled_from([CpuConfig(), CpuConfig(cores="whole"), CpuConfig(cores="single"), CpuConfig(spread="cache")])
EVENTS = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 20), CONFIGS), max_size=30)


@given(EVENTS)
def test_claims_that_come_and_go_in_any_order_have_exactly_their_cpus_and_never_one_twice(
    topology: Topology, events: list[tuple[int, int, CpuConfig]]
) -> None:
    node = Node(topology)
    asked: dict[str, tuple[int, CpuConfig]] = {}
    for number, count, config in events:
        uid = str(number)
        if node.held.pop(uid, None) is not None:
            del asked[uid]
            continue
        try:
            (share,) = node.give(uid, ask(count, "cpudevmachine", config))
        except ClaimError:
            free = len(topology.cpus) - sum(one for one, _ in asked.values())
            assert config != CpuConfig() or count > free, "a claim for any CPUs gets what is free"
            continue
        asked[uid] = count, config
        taken, given_cpus = parse_cpu_list(share.taken), parse_cpu_list(share.cpus)
        assert len(taken) == count
        cores = group([cpu for cpu in topology.cpus if cpu.id in taken], by_core)
        if config.cores != "any":
            assert all(len(cpus) == SERVER.threads for cpus in cores.values())
        assert len(given_cpus) == (len(cores) if config.cores == "single" else count)
    everything = [cpu for one in node.held.values() for cpu in taken_of(one)]
    assert len(everything) == len(set(everything))


def taken_of(one: HeldClaim) -> Iterator[int]:
    for share in one.plan:
        yield from parse_cpu_list(share["taken"])
