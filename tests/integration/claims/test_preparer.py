"""What the kubelet gets for its calls, and in which order the node changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pydra.checkpoint.record import Stage
from pydra.claims.outcome import ClaimRef, ContainerDevice
from pydra.claims.outside import Limits
from pydra.claims.reports import ClaimPrepared, ClaimUnprepared, Operation, OperationStarted
from pydra.errors import (
    ClaimError,
    DeviceInUse,
    NotAllocated,
    NotFound,
    Replaced,
    Unavailable,
)
from tests.integration.claims.fakes import DRIVER, FakeApi, FakeNode, Gate, claim_object, ref, running_agent


async def test_a_claim_is_prepared_in_the_order_that_survives_a_crash() -> None:
    gate, api = Gate(), FakeApi()
    api.allocate("a", "gpu-0", "gpu-1")
    node = FakeNode(step=gate)
    async with running_agent(node, api) as agent:
        outcomes = await agent.preparer.prepare([ref("a")])
    assert outcomes["a"] == (
        ContainerDevice(requests=("r0",), pool="node-1", device="gpu-0", cdi_ids=(f"{DRIVER}/claim=a:r0:gpu-0",)),
        ContainerDevice(requests=("r1",), pool="node-1", device="gpu-1", cdi_ids=(f"{DRIVER}/claim=a:r1:gpu-1",)),
    )
    assert gate.names("a") == [
        "write started",
        "begin prepare",
        "configure device",
        "configure device",
        "write file",
        "write completed",
    ]
    assert node.records["a"].stage is Stage.COMPLETED
    started, prepared = agent.reports
    assert started == OperationStarted(driver=DRIVER, operation=Operation.PREPARE, ref=ref("a"))
    assert isinstance(prepared, ClaimPrepared)
    assert set(prepared.stages) == {"fetch", "record", "backend", "cdi"}
    assert not prepared.from_record


async def test_a_claim_is_unprepared_in_the_reverse_order_without_the_api_server() -> None:
    api, node = FakeApi(), FakeNode()
    api.allocate("a", "gpu-0")
    async with running_agent(node, api) as agent:
        await agent.preparer.prepare([ref("a")])
    gate, api.down = Gate(), True
    node.step = gate
    reads = api.reads
    async with running_agent(node, api) as agent:
        assert await agent.preparer.unprepare([ref("a")]) == {"a": None}
    assert gate.names("a") == ["write started", "remove file", "begin unprepare", "unprepared", "remove record"]
    assert node.is_empty()
    assert api.reads == reads
    assert isinstance(agent.reports[-1], ClaimUnprepared)
    assert agent.reports[-1].from_record


async def test_unprepare_of_what_never_was_prepared_succeeds() -> None:
    async with running_agent(FakeNode(), FakeApi(down=True)) as agent:
        assert await agent.preparer.unprepare([ref("a"), ref("b")]) == {"a": None, "b": None}


async def test_a_repeated_prepare_gives_the_same_answer_without_the_backend() -> None:
    gate, api = Gate(), FakeApi()
    api.allocate("a", "gpu-0")
    node = FakeNode(step=gate)
    async with running_agent(node, api) as agent:
        first = await agent.preparer.prepare([ref("a")])
        gate.passed.clear()
        second = await agent.preparer.prepare([ref("a")])
    assert first == second
    assert gate.names("a") == ["ensure file"]
    assert isinstance(agent.reports[-1], ClaimPrepared)
    assert agent.reports[-1].from_record


async def test_a_cdi_file_that_somebody_removed_is_restored_by_a_repeated_prepare() -> None:
    api, node = FakeApi(), FakeNode()
    api.allocate("a", "gpu-0")
    async with running_agent(node, api) as agent:
        await agent.preparer.prepare([ref("a")])
        content = node.files.pop("a")
        await agent.preparer.prepare([ref("a")])
    assert node.files == {"a": content}


async def test_each_claim_of_a_call_has_an_outcome_of_its_own() -> None:
    api = FakeApi()
    api.allocate("good", "gpu-0")
    api.allocate("unallocated")
    api.claims["claim-replaced"] = claim_object("another", "gpu-1")
    hostile = ClaimRef(uid="../../x", namespace="ns", name="claim-hostile")
    refs = [ref("good"), ref("unallocated"), ref("replaced"), ref("absent"), hostile]
    async with running_agent(FakeNode(), api) as agent:
        outcomes = await agent.preparer.prepare(refs)
    assert {uid: type(outcome) for uid, outcome in outcomes.items()} == {
        "good": tuple,
        "unallocated": NotAllocated,
        "replaced": Replaced,
        "absent": NotFound,
        "../../x": ClaimError,
    }


async def test_a_hostile_uid_is_refused_by_unprepare_too() -> None:
    async with running_agent(FakeNode(), FakeApi()) as agent:
        outcomes = await agent.preparer.unprepare([ClaimRef(uid="../x", namespace="ns", name="n")])
    assert isinstance(outcomes["../x"], ClaimError)


async def test_an_api_server_that_is_down_fails_new_claims_and_not_the_prepared_ones() -> None:
    api, node = FakeApi(), FakeNode()
    api.allocate("old", "gpu-0")
    api.allocate("new", "gpu-1")
    async with running_agent(node, api) as agent:
        first = await agent.preparer.prepare([ref("old")])
    api.down = True
    async with running_agent(node, api) as agent:
        outcomes = await agent.preparer.prepare([ref("old"), ref("new")])
    assert outcomes["old"] == first["old"]
    assert isinstance(outcomes["new"], Unavailable)


async def test_an_api_server_that_hangs_is_given_up_on_sooner_where_a_record_can_answer() -> None:
    api, node = FakeApi(), FakeNode()
    api.allocate("old", "gpu-0")
    async with running_agent(node, api) as agent:
        await agent.preparer.prepare([ref("old")])
    api.silent = True
    limits = Limits(fetch=0.2, fetch_known=0.01)
    async with running_agent(node, api, limits=limits) as agent:
        outcomes = await agent.preparer.prepare([ref("old"), ref("new")])
    assert isinstance(outcomes["old"], tuple)
    assert isinstance(outcomes["new"], Unavailable)
    assert "did not return claim ns/claim-new within 0.2 s" in str(outcomes["new"])


async def test_a_device_that_another_claim_has_is_refused_until_it_is_unprepared() -> None:
    api, node = FakeApi(), FakeNode()
    api.allocate("a", "gpu-0")
    api.allocate("b", "gpu-0")
    async with running_agent(node, api) as agent:
        await agent.preparer.prepare([ref("a")])
    async with running_agent(node, api) as agent:
        refused = (await agent.preparer.prepare([ref("b")]))["b"]
        assert isinstance(refused, DeviceInUse)
        assert refused.holder == "ns/claim-a"
        await agent.preparer.unprepare([ref("a")])
        assert isinstance((await agent.preparer.prepare([ref("b")]))["b"], tuple)


@pytest.mark.parametrize("more", [{"admin": True}, {"share": "x"}], ids=["admin-access", "shares"])
async def test_claims_that_may_share_a_device_are_prepared_together(more: dict[str, object]) -> None:
    api = FakeApi()
    api.allocate("a", "gpu-0", **({"share": "y"} if "share" in more else {}))
    api.allocate("b", "gpu-0", **more)
    async with running_agent(FakeNode(), api) as agent:
        outcomes = await agent.preparer.prepare([ref("a"), ref("b")])
    assert all(isinstance(outcome, tuple) for outcome in outcomes.values())


async def test_what_another_instance_did_meanwhile_is_seen() -> None:
    api, node = FakeApi(), FakeNode()
    api.allocate("a", "gpu-0")
    api.allocate("b", "gpu-0")
    async with running_agent(node, api) as old, running_agent(node, api) as new:
        await old.preparer.prepare([ref("b")])
        assert (await old.preparer.unprepare([ref("b")]))["b"] is None
        await new.preparer.prepare([ref("a")])
        old.checkpoints.changed = {"a"}
        assert isinstance((await old.preparer.prepare([ref("b")]))["b"], DeviceInUse)
        await new.preparer.unprepare([ref("a")])
        old.checkpoints.changed = {"a"}
        assert isinstance((await old.preparer.prepare([ref("b")]))["b"], tuple)


async def test_a_re_allocated_claim_gives_back_its_old_devices_first() -> None:
    api, node = FakeApi(), FakeNode()
    api.allocate("a", "gpu-0")
    async with running_agent(node, api) as agent:
        await agent.preparer.prepare([ref("a")])
        api.allocate("a", "gpu-1")
        gate = Gate()
        node.step = gate
        outcome = (await agent.preparer.prepare([ref("a")]))["a"]
        api.allocate("b", "gpu-0")
        assert isinstance((await agent.preparer.prepare([ref("b")]))["b"], tuple)
    assert isinstance(outcome, tuple)
    assert [device.device for device in outcome] == ["gpu-1"]
    assert gate.names("a")[:6] == [
        "write started",
        "remove file",
        "begin unprepare",
        "unprepared",
        "write started",
        "begin prepare",
    ]


async def test_after_a_reboot_a_claim_is_prepared_again_and_nothing_of_the_old_boot_is_undone() -> None:
    api, node = FakeApi(), FakeNode()
    api.allocate("a", "gpu-0")
    async with running_agent(node, api) as agent:
        await agent.preparer.prepare([ref("a")])
    node.reboot()
    gate = Gate()
    node.step = gate
    async with running_agent(node, api) as agent:
        assert isinstance((await agent.preparer.prepare([ref("a")]))["a"], tuple)
    assert "begin unprepare" not in gate.names("a")
    assert "begin prepare" in gate.names("a")
    assert node.records["a"].boot_id == node.boot_id


async def test_an_operation_and_its_stages_are_spans_of_one_trace_that_names_the_claim() -> None:
    opened: list[tuple[int, str, str]] = []
    depth = 0

    @contextmanager
    def span(name: str, **attributes: str) -> Iterator[None]:
        nonlocal depth
        opened.append((depth, name, attributes.get("claim", "")))
        depth += 1
        try:
            yield
        finally:
            depth -= 1

    api, node = FakeApi(), FakeNode()
    api.allocate("a", "gpu-0")
    async with running_agent(node, api, span=span) as agent:
        await agent.preparer.prepare([ref("a")])
    assert opened[0] == (0, "prepare", "ns/claim-a")
    assert {(level, name) for level, name, _ in opened[1:]} == {(1, "fetch"), (1, "record"), (1, "backend"), (1, "cdi")}
