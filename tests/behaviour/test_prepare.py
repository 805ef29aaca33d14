"""What NodePrepareResources and NodeUnprepareResources answer, and what they leave on the node."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.behaviour.kubelet import Claim, Kubelet, parse_answers
from tests.behaviour.node import NODE, Agent, Node, run_node
from tests.behaviour.waiting import wait_for


def test_a_prepared_claim_has_its_devices_and_a_cdi_file_that_gives_each_its_edits(quiet: Node) -> None:
    one, two = quiet.board.device(), quiet.board.device()
    claim = quiet.api.create_claim(one, two)
    answered = quiet.kubelet.prepare_one(claim)
    assert [(found.requests, found.pool, found.device) for found in answered] == [
        (("r0",), NODE, one),
        (("r1",), NODE, two),
    ]
    for found in answered:
        assert any(f"BOARD_CLAIM={claim.name}" in edits.get("env", ()) for edits in quiet.cdi_edits(found))
    (file,) = quiet.cdi_files(claim)
    spec = json.loads(file.read_bytes())
    assert spec["kind"].startswith("board.example.com/")
    assert file.name.startswith("board.example.com-")
    assert len({device["name"] for device in spec["devices"]}) == 2
    assert quiet.board.holders(one) == quiet.board.holders(two) == {claim.uid}


def test_a_repeated_prepare_gives_the_same_answer_without_the_backend(quiet: Node) -> None:
    claim = quiet.api.create_claim(quiet.board.device())
    answered = quiet.kubelet.prepare_one(claim)
    assert quiet.kubelet.prepare_one(claim) == answered
    assert quiet.board.steps(claim) == ["prepare", "prepared"]


def test_a_cdi_file_that_somebody_removed_or_changed_is_restored_by_a_repeated_prepare(quiet: Node) -> None:
    claim = quiet.api.create_claim(quiet.board.device())
    quiet.kubelet.prepare_one(claim)
    (file,) = quiet.cdi_files(claim)
    written = file.read_bytes()
    file.unlink()
    quiet.kubelet.prepare_one(claim)
    assert file.read_bytes() == written
    file.write_bytes(b"{}")
    quiet.kubelet.prepare_one(claim)
    assert file.read_bytes() == written
    assert quiet.board.steps(claim) == ["prepare", "prepared"]


def test_an_unprepared_claim_leaves_nothing(quiet: Node) -> None:
    device = quiet.board.device()
    claim = quiet.api.create_claim(device)
    quiet.kubelet.prepare_one(claim)
    assert quiet.files_about(claim), "the claim is recorded somewhere"
    quiet.kubelet.release(claim)
    assert quiet.is_clean(claim)
    assert quiet.board.history(claim)[2]["states"] == [{"board": claim.uid}]
    assert quiet.kubelet.prepare_one(quiet.api.create_claim(device))


def test_unprepare_of_what_never_was_prepared_succeeds_without_the_backend(quiet: Node) -> None:
    known = quiet.api.create_claim(quiet.board.device())
    unknown = Claim(uid="00000000-0000-4000-8000-000000000000", name="unknown")
    quiet.kubelet.release(known, unknown)
    assert quiet.board.steps(known) == quiet.board.steps(unknown) == []


def test_each_claim_of_a_call_has_an_answer_of_its_own(quiet: Node) -> None:
    good, broken = (quiet.api.create_claim(quiet.board.device()) for _ in range(2))
    unallocated = quiet.api.create_claim(allocated=False)
    replaced = replace(quiet.api.create_claim(quiet.board.device()), uid="00000000-0000-4000-8000-000000000001")
    missing = Claim(uid="00000000-0000-4000-8000-000000000002", name="missing")
    quiet.board.order("prepare", broken.name, "raise")
    answers = quiet.kubelet.prepare(good, broken, unallocated, replaced, missing)
    assert set(answers) == {one.uid for one in (good, broken, unallocated, replaced, missing)}
    assert answers[good.uid].error == ""
    assert "the board is on fire" in answers[broken.uid].error
    assert "not allocated" in answers[unallocated.uid].error
    assert "was replaced" in answers[replaced.uid].error
    assert "missing" in answers[missing.uid].error
    assert all(quiet.is_clean(one) for one in (unallocated, replaced, missing))
    wait_for(lambda: quiet.is_clean(broken), "what was begun for the broken claim is undone")


def test_one_unprepare_that_fails_costs_no_other_claim_and_is_tried_again(quiet: Node) -> None:
    good, broken = (quiet.api.create_claim(quiet.board.device()) for _ in range(2))
    quiet.kubelet.prepare(good, broken)
    quiet.board.order("unprepare", broken.name, "raise")
    errors = quiet.kubelet.unprepare(good, broken)
    assert errors[good.uid] == ""
    assert "the board is on fire" in errors[broken.uid]
    assert quiet.is_clean(good)
    quiet.board.dismiss("unprepare", broken.name)
    quiet.kubelet.release(broken)
    assert quiet.is_clean(broken)


@pytest.mark.parametrize(
    "uid", ["../../etc", "a/b", "", ".hidden", "x" * 300], ids=["path", "slash", "empty", "dot", "long"]
)
def test_a_uid_that_no_claim_can_have_is_refused_by_both_calls(quiet: Node, uid: str) -> None:
    claim = Claim(uid=uid, name="claim")
    assert "uid" in quiet.kubelet.prepare(claim)[uid].error
    assert "uid" in quiet.kubelet.unprepare(claim)[uid]


def test_a_claim_for_devices_of_another_driver_is_refused_by_its_name(quiet: Node) -> None:
    claim = quiet.api.create_claim({"device": "x", "driver": "other.example.com"})
    refusal = quiet.kubelet.refusal(claim)
    assert "no device of driver board.example.com" in refusal
    assert "other.example.com" in refusal


def test_a_claim_that_also_has_another_drivers_device_is_prepared_for_ours_alone(quiet: Node) -> None:
    ours = quiet.board.device()
    claim = quiet.api.create_claim({"device": "x", "driver": "other.example.com"}, ours)
    assert [found.device for found in quiet.kubelet.prepare_one(claim)] == [ours]


def test_a_device_that_another_claim_holds_is_refused_until_that_is_unprepared(quiet: Node) -> None:
    device = quiet.board.device()
    holder, other = quiet.api.create_claim(device), quiet.api.create_claim(device)
    quiet.kubelet.prepare_one(holder)
    refusal = quiet.kubelet.refusal(other)
    assert device in refusal
    assert holder.name in refusal
    assert quiet.board.steps(other) == []
    quiet.kubelet.release(holder)
    quiet.kubelet.prepare_one(other)
    assert quiet.board.holders(device) == {other.uid}


def test_of_two_claims_at_once_for_one_device_one_gets_it(quiet: Node) -> None:
    device = quiet.board.device()
    claims = [quiet.api.create_claim(device) for _ in range(2)]
    answers = quiet.kubelet.prepare(*claims)
    assert sorted(bool(answers[one.uid].error) for one in claims) == [False, True]
    assert len(quiet.board.holders(device)) == 1


def test_claims_with_shares_of_one_device_are_prepared_side_by_side(quiet: Node) -> None:
    shares = ["3f2c1d52-4a2c-4f3e-9a55-000000000001", "3f2c1d52-4a2c-4f3e-9a55-000000000002"]
    claims = [quiet.api.create_claim({"device": "shared0", "shareID": share}) for share in shares]
    answered = [quiet.kubelet.prepare_one(claim) for claim in claims]
    assert [[found.share_id for found in one] for one in answered] == [[share] for share in shares]
    assert answered[0][0].cdi_ids != answered[1][0].cdi_ids
    assert quiet.board.holders("shared0") == {claim.uid for claim in claims}


def test_admin_access_is_granted_beside_the_claim_that_holds_the_device(quiet: Node) -> None:
    quiet.api.allow_admin_access()
    device = quiet.board.device()
    holder = quiet.api.create_claim(device)
    admin = quiet.api.create_claim({"device": device, "adminAccess": True})
    quiet.kubelet.prepare_one(holder)
    quiet.kubelet.prepare_one(admin)
    quiet.kubelet.release(admin)
    assert quiet.board.holders(device) == {holder.uid}


def test_a_claim_that_is_prepared_is_answered_while_the_api_server_is_silent(quiet: Node) -> None:
    known, fresh = (quiet.api.create_claim(quiet.board.device()) for _ in range(2))
    answered = quiet.kubelet.prepare_one(known)
    with quiet.api_silent():
        assert quiet.kubelet.prepare_one(known) == answered
        waiting = quiet.kubelet.start_prepare(fresh)
        quiet.kubelet.release(known)
        assert quiet.is_clean(known)
        assert not waiting.done(), "a claim that is not known waits for the API server"
    assert parse_answers(waiting.result())[fresh.uid].error == ""


def test_a_call_that_the_kubelet_gave_up_on_goes_on_and_its_retry_joins_it(quiet: Node) -> None:
    claim = quiet.api.create_claim(quiet.board.device())
    quiet.board.order("prepare", claim.name, "wait")
    abandoned = quiet.kubelet.start_prepare(claim)
    quiet.board.wait_reached("prepare", claim.name)
    abandoned.cancel()
    retried = quiet.kubelet.start_prepare(claim)
    quiet.board.dismiss("prepare", claim.name)
    assert parse_answers(retried.result())[claim.uid].error == ""
    assert quiet.board.steps(claim) == ["prepare", "prepared"]


def test_a_slow_claim_delays_no_other_claim_and_an_unprepare_waits_for_its_prepare(quiet: Node) -> None:
    slow, quick = (quiet.api.create_claim(quiet.board.device()) for _ in range(2))
    quiet.board.order("prepare", slow.name, "wait")
    preparing = quiet.kubelet.start_prepare(slow)
    quiet.board.wait_reached("prepare", slow.name)
    unpreparing = quiet.kubelet.start_unprepare(slow)
    quiet.kubelet.prepare_one(quick)
    assert not preparing.done()
    assert not unpreparing.done()
    quiet.board.dismiss("prepare", slow.name)
    unpreparing.result()
    assert quiet.board.steps(slow) == ["prepare", "prepared", "unprepare", "unprepared"]
    assert quiet.is_clean(slow)


def test_a_claim_that_was_allocated_again_gives_back_its_old_device_first(quiet: Node) -> None:
    old, new = quiet.board.device(), quiet.board.device()
    claim = quiet.api.create_claim(old)
    quiet.kubelet.prepare_one(claim)
    quiet.api.deallocate(claim)
    quiet.api.allocate(claim, new)
    assert [found.device for found in quiet.kubelet.prepare_one(claim)] == [new]
    assert quiet.board.holders(old) == set()
    assert quiet.board.holders(new) == {claim.uid}


def test_both_versions_of_the_kubelets_api_are_served(quiet: Node) -> None:
    claim = quiet.api.create_claim(quiet.board.device())
    answered = quiet.kubelet.prepare_one(claim)
    older = Kubelet(quiet.kubelet.registry, dra="k8s.io.kubelet.pkg.apis.dra.v1beta1")
    try:
        older.register()
        assert older.prepare_one(claim) == answered
        older.release(claim)
    finally:
        older.close()
    assert quiet.is_clean(claim)


def test_what_the_backend_prints_harms_no_call_and_is_logged(quiet: Node, quiet_agent: Agent) -> None:
    claim = quiet.api.create_claim(quiet.board.device())
    quiet.board.order("prepare", claim.name, "print")
    quiet.kubelet.prepare_one(claim)
    quiet_agent.wait_log("hello from native code")


def test_log_lines_about_a_claim_carry_its_name_uid_and_driver(quiet: Node, quiet_agent: Agent) -> None:
    claim = quiet.api.create_claim(quiet.board.device())
    quiet.kubelet.prepare_one(claim)
    lines = wait_for(lambda: [one for one in quiet_agent.lines() if one.get("uid") == claim.uid], "a line of the claim")
    assert lines[-1]["driver"] == "board.example.com"
    assert claim.name in lines[-1]["claim"]


def test_the_agent_writes_nothing_into_the_cdi_directory_but_whole_files_of_its_claims(quiet: Node) -> None:
    for name in os.listdir(quiet.cdi):
        assert name.startswith("board.example.com-")
        assert name.endswith(".json")
        json.loads((quiet.cdi / name).read_bytes())


def board_config(volts: object, **more: object) -> dict[str, object]:
    """A config of a claim as the allocation carries it."""
    parameters = {"apiVersion": "board.example.com/v1", "kind": "BoardConfig", "volts": volts, **more}
    return {"source": "FromClaim", "opaque": {"driver": "board.example.com", "parameters": parameters}}


def test_a_claims_config_reaches_the_backend_and_beats_that_of_the_class(quiet: Node) -> None:
    config = [{**board_config(3), "source": "FromClass"}, board_config(12)]
    claim = quiet.api.create_claim(quiet.board.device(), config=config)
    (device,) = quiet.kubelet.prepare_one(claim)
    assert any("BOARD_VOLTS=12" in edits.get("env", ()) for edits in quiet.cdi_edits(device))


def test_a_config_that_its_type_does_not_allow_is_refused_with_its_path(quiet: Node) -> None:
    claim = quiet.api.create_claim(quiet.board.device(), config=[board_config("high")])
    refusal = quiet.kubelet.refusal(claim)
    assert "volts" in refusal
    assert "FromClaim config 1" in refusal
    assert "prepare" not in quiet.board.steps(claim)


def test_a_claim_that_is_refused_before_the_backend_ran_is_not_unprepared(quiet: Node) -> None:
    claim = quiet.api.create_claim(quiet.board.device(), config=[board_config("high")])
    quiet.kubelet.refusal(claim)
    quiet.kubelet.refusal(claim)
    quiet.kubelet.release(claim)
    assert quiet.board.steps(claim) == []


def test_admin_access_that_is_refused_leaves_the_device_of_the_claim_that_holds_it_alone(quiet: Node) -> None:
    quiet.api.allow_admin_access()
    device = quiet.board.device()
    holder = quiet.api.create_claim(device)
    admin = quiet.api.create_claim({"device": device, "adminAccess": True}, config=[board_config("high")])
    quiet.kubelet.prepare_one(holder)
    quiet.kubelet.refusal(admin)
    quiet.kubelet.refusal(admin)
    assert quiet.board.steps(admin) == []


def test_a_device_that_the_driver_never_published_is_refused_without_the_backend(quiet: Node) -> None:
    claim = quiet.api.create_claim("unknown")
    assert "unknown" in quiet.kubelet.refusal(claim)
    assert quiet.board.steps(claim) == []


@pytest.fixture(scope="module")
def impatient() -> Iterator[Node]:
    """A node with an agent that asks for a claim for a second."""
    with run_node() as node:
        node.serve("--fetch-deadline", "1")
        yield node


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        pytest.param({"status": 500}, "500", id="500"),
        pytest.param({"status": 429, "retry_after": 1}, "429", id="429"),
        pytest.param({"status": 503, "body": "<html>no backend</html>"}, "503", id="HTML"),
    ],
)
def test_what_the_api_server_said_is_in_the_error_of_a_claim_that_could_not_be_read(
    impatient: Node, fault: dict[str, object], told: str
) -> None:
    claim = impatient.api.create_claim("d0")
    impatient.api_fault(verb="get", resource="resourceclaims", name=claim.name, times=None, **fault)
    assert told in impatient.kubelet.refusal(claim)
