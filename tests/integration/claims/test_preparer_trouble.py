"""Whatever fails: what the kubelet hears, what is undone, what stays for the next attempt."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from pydra.checkpoint.record import Stage
from pydra.checkpoint.scan import RecordSetAside, RecordTooNew
from pydra.claim import PreparedDevice
from pydra.claims.outcome import PodRef
from pydra.claims.preparer import Tidied
from pydra.claims.reports import ClaimFailed, Operation
from pydra.errors import (
    BackendError,
    CheckpointError,
    ClaimError,
    DeviceInUse,
    HostPathMissing,
    InternalError,
    TerminalError,
    Unavailable,
)
from pydra.observability.logging import log_fields
from tests.integration.claims.fakes import DRIVER, Failing, FakeApi, FakeNode, ref, running_agent


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
        node.step = Failing(write_started=CheckpointError("disk full", disk_full=True))
        assert await agent.preparer.unprepare([ref("a")]) == {"a": None}
    assert node.is_empty()


async def test_a_disk_that_takes_no_change_keeps_the_devices_with_the_record_that_says_so() -> None:
    api, node = FakeApi(), FakeNode()
    api.allocate("a", "gpu-0")
    async with running_agent(node, api) as agent:
        await agent.preparer.prepare([ref("a")])
        read_only = CheckpointError("read-only file system")
        node.step = Failing(write_started=read_only, remove_record=read_only)
        assert await agent.preparer.unprepare([ref("a")]) == {"a": read_only}
        assert isinstance((await agent.preparer.prepare([ref("a")]))["a"], tuple), "answered from its record"
        assert set(node.hardware) == set(node.files) == {"a"}, "and rightly so"


async def test_a_completed_record_whose_write_failed_is_set_back_before_anything_is_undone() -> None:
    api, node = FakeApi(), FakeNode()
    api.allocate("a", "gpu-0")

    async def die_while_syncing(name: str, uid: str) -> None:
        if name == "write completed":
            node.records[uid] = replace(node.records[uid], stage=Stage.COMPLETED)
            node.step = Failing(write_started=CheckpointError("read-only"), remove_record=CheckpointError("read-only"))
            raise CheckpointError("input/output error")

    node.step = die_while_syncing
    async with running_agent(node, api) as agent:
        assert isinstance((await agent.preparer.prepare([ref("a")]))["a"], CheckpointError)
        await agent.preparer.wait_idle()
    assert node.records["a"].stage is Stage.COMPLETED, "the next instance will answer from it"
    assert set(node.hardware) == {"a"}


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


async def test_a_lost_record_that_was_written_anew_is_no_trouble_any_more() -> None:
    api = FakeApi()
    api.allocate("a", "gpu-0")
    node = FakeNode(troubles={"a": RecordSetAside(uid="a", path="/p/corrupt/a.json", why="damaged")})
    async with running_agent(node, api) as agent:
        await agent.preparer.prepare([ref("a")])
        api.down = True
        assert await agent.preparer.unprepare([ref("a")]) == {"a": None}
        assert await agent.preparer.unprepare([ref("a")]) == {"a": None}


async def test_a_claim_whose_record_was_lost_waits_for_the_api_server() -> None:
    node = FakeNode(troubles={"a": RecordSetAside(uid="a", path="/p/corrupt/a.json", why="damaged")})
    async with running_agent(node, FakeApi(down=True)) as agent:
        assert isinstance((await agent.preparer.unprepare([ref("a")]))["a"], Unavailable)


async def test_what_the_backend_said_in_detail_goes_to_the_log_only(caplog: pytest.LogCaptureFixture) -> None:
    api = FakeApi()
    api.allocate("a", "gpu-0")
    broken = BackendError("sim", "no such mode", details="Traceback: line 7")
    async with running_agent(FakeNode(step=Failing(begin_prepare=broken)), api) as agent:
        outcome = (await agent.preparer.prepare([ref("a")]))["a"]
        await agent.preparer.wait_idle()
    assert str(outcome) == "backend sim: no such mode"
    said = [record for record in caplog.records if "no such mode" in record.getMessage()]
    assert [vars(record)["fields"]["details"] for record in said] == ["Traceback: line 7"]


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
