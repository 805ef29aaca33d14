from __future__ import annotations

import logging
from collections.abc import Sequence

import anyio
import pytest

from pydra.checkpoint.record import Stage
from pydra.checkpoint.scan import RecordSetAside, RecordTooNew
from pydra.claims.model import Claim, PreparedDevice
from pydra.claims.outcome import ClaimRef, ContainerDevice, PodRef
from pydra.claims.outside import Limits
from pydra.claims.preparer import Tidied
from pydra.claims.reports import ClaimFailed, ClaimPrepared, ClaimUnprepared, Operation, OperationStarted
from pydra.errors import (
    BackendTimeout,
    CheckpointError,
    ClaimError,
    DeviceInUse,
    HostPathMissing,
    InternalError,
    NotAllocated,
    NotFound,
    Replaced,
    TerminalError,
    Unavailable,
)
from pydra.observe.context import log_fields
from tests.integration.claims.fakes import DRIVER, FakeApi, FakeNode, claim_object, ref, running_agent


class Gate:
    """A step that notes what passes, and holds back what is named."""

    def __init__(self, *held: str) -> None:
        self.passed: list[tuple[str, str]] = []
        self.held = set(held)
        self.reached = anyio.Event()
        self.opened = anyio.Event()

    async def __call__(self, name: str, uid: str) -> None:
        if name in self.held:
            self.reached.set()
            await self.opened.wait()
        self.passed.append((name, uid))

    def names(self, uid: str) -> list[str]:
        return [name for name, of in self.passed if of == uid]


class Failing:
    """A step that raises at the names it has an error for."""

    def __init__(self, **errors: Exception) -> None:
        self.errors = {name.replace("_", " "): error for name, error in errors.items()}
        self.passed: list[str] = []

    async def __call__(self, name: str, uid: str) -> None:
        if name in self.errors:
            raise self.errors[name]
        self.passed.append(name)


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


async def test_of_two_claims_at_once_for_one_device_one_gets_it() -> None:
    api = FakeApi()
    for uid in "abcd":
        api.allocate(uid, "gpu-0")
    async with running_agent(FakeNode(), api) as agent:
        outcomes = await agent.preparer.prepare([ref(uid) for uid in "abcd"])
    assert sorted(type(outcome).__name__ for outcome in outcomes.values()) == [*["DeviceInUse"] * 3, "tuple"]


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


async def test_a_retried_call_joins_the_one_that_the_kubelet_gave_up_on() -> None:
    gate, api = Gate("begin prepare"), FakeApi()
    api.allocate("a", "gpu-0")
    async with running_agent(FakeNode(step=gate), api) as agent:
        with anyio.move_on_after(0.01) as gave_up:
            await agent.preparer.prepare([ref("a")])
        assert gave_up.cancelled_caught
        outcomes: list[object] = []

        async def retry() -> None:
            outcomes.append((await agent.preparer.prepare([ref("a")]))["a"])

        async with anyio.create_task_group() as retries:
            retries.start_soon(retry)
            retries.start_soon(retry)
            await anyio.wait_all_tasks_blocked()
            gate.opened.set()
    assert [type(outcome) for outcome in outcomes] == [tuple, tuple]
    assert gate.names("a").count("begin prepare") == 1
    assert api.reads == 1


async def test_unprepare_waits_for_the_prepare_in_flight() -> None:
    gate, api = Gate("configure device"), FakeApi()
    api.allocate("a", "gpu-0")
    node = FakeNode(step=gate)
    async with running_agent(node, api) as agent, anyio.create_task_group() as calls:
        calls.start_soon(agent.preparer.prepare, [ref("a")])
        await gate.reached.wait()
        calls.start_soon(agent.preparer.unprepare, [ref("a")])
        await anyio.wait_all_tasks_blocked()
        assert "begin unprepare" not in gate.names("a")
        gate.opened.set()
    assert gate.names("a").index("write completed") < gate.names("a").index("begin unprepare")
    assert node.is_empty()


async def test_prepare_after_unprepare_in_flight_prepares_anew() -> None:
    api, node = FakeApi(), FakeNode()
    api.allocate("a", "gpu-0")
    async with running_agent(node, api) as agent:
        await agent.preparer.prepare([ref("a")])
        gate = Gate("begin unprepare")
        node.step = gate
        async with anyio.create_task_group() as calls:
            calls.start_soon(agent.preparer.unprepare, [ref("a")])
            await gate.reached.wait()
            calls.start_soon(agent.preparer.prepare, [ref("a")])
            await anyio.wait_all_tasks_blocked()
            assert "begin prepare" not in gate.names("a")
            gate.opened.set()
        await agent.preparer.wait_idle()
    assert node.records["a"].stage is Stage.COMPLETED
    assert node.hardware["a"]


async def test_claims_that_share_no_device_are_prepared_side_by_side() -> None:
    gate, api = Gate("configure device"), FakeApi()
    uids = [f"c{n}" for n in range(16)]
    for uid in uids:
        api.allocate(uid, f"gpu-{uid}")
    node = FakeNode(step=gate)
    async with running_agent(node, api) as agent, anyio.create_task_group() as calls:
        calls.start_soon(agent.preparer.prepare, [ref(uid) for uid in uids])
        await anyio.wait_all_tasks_blocked()
        assert [name for name, _ in gate.passed].count("begin prepare") == 16
        assert agent.lock.held == 16
        gate.opened.set()
    assert all(record.stage is Stage.COMPLETED for record in node.records.values())
    assert agent.checkpoints.refreshes == 16


@pytest.mark.parametrize("failing", ["begin_prepare", "configure_device", "write_file", "write_completed"])
async def test_whatever_fails_in_a_prepare_is_undone_and_a_retry_succeeds(failing: str) -> None:
    step, api = Failing(**{failing: ClaimError("no")}), FakeApi()
    api.allocate("a", "gpu-0")
    node = FakeNode(step=step)
    async with running_agent(node, api) as agent:
        assert isinstance((await agent.preparer.prepare([ref("a")]))["a"], ClaimError)
        await agent.preparer.wait_idle()
        assert node.is_empty()
        assert step.passed[-4:] == ["remove file", "begin unprepare", "unprepared", "remove record"]
        step.errors.clear()
        assert isinstance((await agent.preparer.prepare([ref("a")]))["a"], tuple)


async def test_nothing_is_done_when_the_record_cannot_be_written() -> None:
    step, api = Failing(write_started=CheckpointError("disk full")), FakeApi()
    api.allocate("a", "gpu-0")
    api.allocate("b", "gpu-0")
    node = FakeNode(step=step)
    async with running_agent(node, api) as agent:
        assert isinstance((await agent.preparer.prepare([ref("a")]))["a"], CheckpointError)
        assert step.passed == []
        step.errors.clear()
        assert isinstance((await agent.preparer.prepare([ref("b")]))["b"], tuple), "the device was never taken"


async def test_a_full_disk_does_not_keep_a_claim_from_being_unprepared() -> None:
    api, node = FakeApi(), FakeNode()
    api.allocate("a", "gpu-0")
    async with running_agent(node, api) as agent:
        await agent.preparer.prepare([ref("a")])
        node.step = Failing(write_started=CheckpointError("disk full"))
        assert await agent.preparer.unprepare([ref("a")]) == {"a": None}
    assert node.is_empty()


async def test_what_cannot_be_undone_keeps_its_device_until_it_is() -> None:
    step = Failing(configure_device=ClaimError("no"), begin_unprepare=ClaimError("stuck"))
    api, node = FakeApi(), FakeNode(step=step)
    api.allocate("a", "gpu-0")
    api.allocate("b", "gpu-0")
    async with running_agent(node, api) as agent:
        await agent.preparer.prepare([ref("a")])
        await agent.preparer.wait_idle()
        assert node.records["a"].stage is Stage.STARTED
        assert isinstance((await agent.preparer.prepare([ref("b")]))["b"], DeviceInUse)
        step.errors.clear()
        assert await agent.preparer.unprepare([ref("a")]) == {"a": None}
        assert isinstance((await agent.preparer.prepare([ref("b")]))["b"], tuple)


async def test_the_kubelet_is_answered_before_a_failed_prepare_is_undone() -> None:
    api = FakeApi()
    api.allocate("a", "gpu-0")
    gate = Gate("begin unprepare")

    async def step(name: str, uid: str) -> None:
        if name == "configure device":
            raise TerminalError("never")
        await gate(name, uid)

    async with running_agent(FakeNode(step=step), api) as agent:
        assert isinstance((await agent.preparer.prepare([ref("a")]))["a"], TerminalError)
        await gate.reached.wait()
        async with anyio.create_task_group() as calls:
            calls.start_soon(agent.preparer.prepare, [ref("a")])
            await anyio.wait_all_tasks_blocked()
            assert gate.names("a").count("begin prepare") == 1, "the retry waits for the undoing"
            gate.opened.set()
        assert gate.names("a").count("begin prepare") == 2


async def test_a_failure_is_reported_with_the_pods_that_wait() -> None:
    api = FakeApi()
    api.allocate("a", "gpu-0")
    async with running_agent(FakeNode(step=Failing(begin_prepare=TerminalError("never"))), api) as agent:
        await agent.preparer.prepare([ref("a")])
        await agent.preparer.wait_idle()
    failed = agent.reports[-1]
    assert isinstance(failed, ClaimFailed)
    assert (failed.operation, failed.ref, failed.terminal) == (Operation.PREPARE, ref("a"), True)
    assert failed.pods == (PodRef(uid="pod-uid-a", namespace="ns", name="pod-a"),)


async def test_a_backend_that_does_not_answer_is_given_up_on() -> None:
    class Hanging:
        async def prepare(self, claim: Claim, /) -> Sequence[PreparedDevice]:
            await anyio.sleep_forever()
            raise AssertionError

        async def unprepare(self, claim: Claim, prepared: Sequence[PreparedDevice], /) -> None:
            await anyio.sleep_forever()

    api, node = FakeApi(), FakeNode()
    api.allocate("a", "gpu-0")
    limits = Limits(prepare=0.01, unprepare=0.01)
    async with running_agent(node, api, limits=limits, backend=Hanging()) as agent:
        prepared = (await agent.preparer.prepare([ref("a")]))["a"]
        unprepared = (await agent.preparer.unprepare([ref("a")]))["a"]
    assert isinstance(prepared, BackendTimeout)
    assert isinstance(unprepared, BackendTimeout)
    assert node.records["a"].stage is Stage.STARTED


async def test_a_bug_costs_only_its_claim_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async def step(name: str, uid: str) -> None:
        if uid == "a" and name == "configure device":
            raise ZeroDivisionError("a bug")

    api, node = FakeApi(), FakeNode(step=step)
    api.allocate("a", "gpu-0")
    api.allocate("b", "gpu-1")
    with caplog.at_level(logging.ERROR):
        async with running_agent(node, api) as agent:
            outcomes = await agent.preparer.prepare([ref("a"), ref("b")])
            assert isinstance(outcomes["a"], InternalError)
            assert "ZeroDivisionError: a bug" in str(outcomes["a"])
            assert isinstance(outcomes["b"], tuple)
            assert await agent.preparer.tidy("a") is Tidied.UNDONE
    assert caplog.records[0].exc_info is not None
    assert set(node.hardware) == {"b"}


async def test_a_device_node_that_the_host_lacks_fails_the_claim_and_undoes_it() -> None:
    async def read_present(prepared: Sequence[PreparedDevice]) -> tuple[PreparedDevice, ...]:
        raise HostPathMissing("the node has no device node /dev/gpu0")

    api, node = FakeApi(), FakeNode()
    api.allocate("a", "gpu-0")
    async with running_agent(node, api, read_present=read_present) as agent:
        assert isinstance((await agent.preparer.prepare([ref("a")]))["a"], HostPathMissing)
        await agent.preparer.wait_idle()
    assert node.is_empty()


async def test_calls_that_wait_when_the_agent_stops_are_told_so() -> None:
    gate, api = Gate("begin prepare"), FakeApi()
    api.allocate("a", "gpu-0")
    node = FakeNode(step=gate)
    outcomes: list[object] = []
    async with anyio.create_task_group() as kubelet, running_agent(node, api) as agent:

        async def call() -> None:
            outcomes.append((await agent.preparer.prepare([ref("a")]))["a"])

        kubelet.start_soon(call)
        await gate.reached.wait()
    assert isinstance(outcomes[0], Unavailable)
    assert "the agent is stopping" in str(outcomes[0])
    assert node.records["a"].stage is Stage.STARTED, "as after a crash: the successor undoes it"


async def test_a_record_of_a_newer_version_stops_unprepare_with_a_reason() -> None:
    node = FakeNode(troubles={"a": RecordTooNew(uid="a", path="/p/a.json", why="it has schema 9")})
    async with running_agent(node, FakeApi(down=True)) as agent:
        outcome = (await agent.preparer.unprepare([ref("a")]))["a"]
    assert isinstance(outcome, CheckpointError)
    assert "schema 9" in str(outcome)


async def test_a_claim_whose_record_was_lost_is_undone_with_what_the_api_server_says() -> None:
    api, node = FakeApi(), FakeNode()
    api.allocate("a", "gpu-0")
    async with running_agent(node, api) as agent:
        await agent.preparer.prepare([ref("a")])
    del node.records["a"]
    node.troubles["a"] = RecordSetAside(uid="a", path="/p/corrupt/a.json", why="damaged")
    async with running_agent(node, api) as agent:
        assert await agent.preparer.unprepare([ref("a")]) == {"a": None}
    assert node.is_empty()


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (lambda node: node.files.clear(), Tidied.FILE_RESTORED),
        (lambda node: node.files.update(a=b"{}"), Tidied.FILE_RESTORED),
        (lambda node: None, Tidied.NOTHING),
        (lambda node: node.records.clear(), Tidied.FILE_REMOVED),
        (lambda node: node.reboot(), Tidied.NOTHING),
    ],
    ids=["file-removed", "file-changed", "nothing-wrong", "record-removed", "rebooted"],
)
async def test_tidying_mends_what_disagrees(spoil: object, expected: Tidied) -> None:
    api, node = FakeApi(), FakeNode()
    api.allocate("a", "gpu-0")
    async with running_agent(node, api) as agent:
        await agent.preparer.prepare([ref("a")])
    assert callable(spoil)
    spoil(node)
    async with running_agent(node, api) as agent:
        assert await agent.preparer.tidy("a") is expected
    assert set(node.files) <= set(node.records)


async def test_log_lines_carry_the_claim(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[dict[str, str]] = []

    async def step(name: str, uid: str) -> None:
        seen.append(dict(log_fields()))

    api = FakeApi()
    api.allocate("a", "gpu-0")
    async with running_agent(FakeNode(step=step), api) as agent:
        await agent.preparer.prepare([ref("a")])
    assert seen[0] == {"driver": DRIVER, "claim": "ns/claim-a", "uid": "a"}
