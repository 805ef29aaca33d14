"""Nothing that was prepared is lost, and nothing leaks, whatever the agent or the backend is killed in."""

from __future__ import annotations

import grpc
import pytest

from tests.behaviour.kubelet import parse_answers
from tests.behaviour.node import Node
from tests.behaviour.waiting import wait_for

POINTS = [("prepare", "begin"), ("prepare", "effect"), ("unprepare", "begin"), ("unprepare", "effect")]


def kill_in(node: Node, call: str, at: str) -> None:
    """An agent is killed in this call for the claim `victim` on device d0, and the next one serves."""
    agent = node.serve()
    claim = node.api.create_claim("d0", name="victim")
    if call == "unprepare":
        node.kubelet.prepare_one(claim)
    node.board.order(call, "victim", "wait", at=at)
    start = node.kubelet.start_prepare if call == "prepare" else node.kubelet.start_unprepare
    in_flight = start(claim)
    node.board.wait_reached(call, "victim", at=at)
    agent.kill()
    with pytest.raises(grpc.RpcError):
        in_flight.result()
    node.board.end_processes()
    node.board.dismiss(call, "victim", at=at)
    node.serve()


@pytest.mark.parametrize(("call", "at"), POINTS)
def test_after_a_kill_in_a_call_the_claim_is_prepared_and_unprepared_by_the_next_agent(
    node: Node, call: str, at: str
) -> None:
    kill_in(node, call, at)
    claim = node.api.find_claim("victim")
    (device,) = node.kubelet.prepare_one(claim)
    assert node.cdi_edits(device)
    assert node.board.holders("d0") == {claim.uid}
    node.kubelet.release(claim)
    assert node.is_clean(claim)
    assert node.kubelet.prepare_one(node.api.create_claim("d0"))


@pytest.mark.parametrize(("call", "at"), POINTS)
def test_what_a_killed_agent_left_half_done_is_undone_without_a_word_from_the_kubelet(
    node: Node, call: str, at: str
) -> None:
    kill_in(node, call, at)
    claim = node.api.find_claim("victim")
    wait_for(lambda: node.is_clean(claim), "nothing is left of the claim")


def test_a_device_of_a_claim_that_was_only_begun_is_given_to_no_other_before_it_is_undone(node: Node) -> None:
    agent = node.serve()
    claim, other = node.api.create_claim("d0", name="victim"), node.api.create_claim("d0")
    node.board.order("prepare", "victim", "wait", at="effect")
    in_flight = node.kubelet.start_prepare(claim)
    node.board.wait_reached("prepare", "victim", at="effect")
    node.board.order("unprepare", "victim", "raise")
    agent.kill()
    with pytest.raises(grpc.RpcError):
        in_flight.result()
    node.board.end_processes()
    node.serve()
    assert "d0" in node.kubelet.refusal(other)
    node.board.dismiss("unprepare", "victim")
    node.board.dismiss("prepare", "victim", at="effect")
    node.kubelet.release(claim)
    node.kubelet.prepare_one(other)
    assert node.board.holders("d0") == {other.uid}


def test_a_kill_between_calls_loses_no_prepared_claim_and_touches_none(node: Node) -> None:
    agent = node.serve()
    claims = [node.api.create_claim(f"d{number}") for number in range(3)]
    answered = [node.kubelet.prepare_one(claim) for claim in claims]
    files = {path: path.read_bytes() for claim in claims for path in node.cdi_files(claim)}
    agent = node.restart(agent)
    with node.api_silent():
        assert [node.kubelet.prepare_one(claim) for claim in claims] == answered
    assert {path: path.read_bytes() for claim in claims for path in node.cdi_files(claim)} == files
    assert agent.stop() == 0
    node.serve()
    assert "d0" in node.kubelet.refusal(node.api.create_claim("d0"))
    node.kubelet.release(*claims)
    assert all(node.is_clean(claim) for claim in claims)
    assert all(node.board.steps(claim) == ["prepare", "prepared", "unprepare", "unprepared"] for claim in claims)


@pytest.mark.parametrize(
    ("what", "told", "signal"), [("segfault", "died of SIGSEGV", "SIGSEGV"), ("exit", "exited with status 3", "exit")]
)
def test_a_claim_that_kills_its_backend_is_found_and_refused_while_bystanders_are_prepared(
    node: Node, what: str, told: str, signal: str
) -> None:
    agent = node.serve()
    victim = node.api.create_claim("d0", name="victim")
    bystanders = [node.api.create_claim(f"d{number}") for number in range(1, 4)]
    node.board.order("prepare", "victim", what, at="effect")
    answers = node.kubelet.prepare(victim, *bystanders)
    assert told in answers[victim.uid].error
    assert [answers[one.uid].error for one in bystanders] == ["", "", ""]
    node.kubelet.refusal(victim)
    tries = node.board.steps(victim).count("prepare")
    assert "not tried again" in node.kubelet.refusal(victim)
    assert node.board.steps(victim).count("prepare") == tries, "a claim in quarantine is not prepared"
    wait_for(lambda: "d0" in node.api.taints(), "its device is tainted")
    events = {event["reason"]: event["note"] for event in node.api.events(victim)}
    assert events.keys() == {"BackendDied", "ClaimQuarantined"}
    assert told in events["BackendDied"]
    assert "ended the process of backend board 2 times and is not tried again" in events["ClaimQuarantined"]
    assert agent.metric(f'pydra_backend_crashes_total{{backend="board",signal="{signal}"}}') >= 2
    assert agent.get("/readyz")[0] == 200
    node.board.dismiss("prepare", "victim", at="effect")
    node.kubelet.release(victim)
    assert node.is_clean(victim)
    wait_for(lambda: not node.api.taints(), "the taint goes when the claim is unprepared")
    node.kubelet.prepare_one(victim)


def test_a_call_that_blocks_the_backend_ends_at_its_deadline_and_costs_its_claim_alone(node: Node) -> None:
    node.serve("--prepare-deadline", "2")
    victim, bystander = node.api.create_claim("d0", name="victim"), node.api.create_claim("d1")
    node.board.order("prepare", "victim", "hang", at="effect", times=1)
    call = node.kubelet.start_prepare(victim)
    node.board.wait_reached("prepare", "victim", at="effect")
    wait_for(lambda: not node.kubelet.prepare(bystander)[bystander.uid].error, "another claim is prepared")
    assert parse_answers(call.result())[victim.uid].error
    node.kubelet.prepare_one(victim)
    assert node.board.holders("d0") == {victim.uid}


def test_a_call_that_is_slower_than_its_deadline_is_undone_and_tried_again(node: Node) -> None:
    node.serve("--prepare-deadline", "1")
    claim = node.api.create_claim("d0", name="victim")
    node.board.order("prepare", "victim", "wait", at="effect")
    assert "prepare timed out after" in node.kubelet.refusal(claim)
    wait_for(lambda: node.is_clean(claim), "what was begun is undone")
    node.board.dismiss("prepare", "victim", at="effect")
    node.kubelet.prepare_one(claim)


def test_a_backend_that_dies_while_nothing_is_called_is_started_again(node: Node) -> None:
    agent = node.serve()
    claim = node.api.create_claim("d0")
    node.board.end_processes()
    wait_for(lambda: agent.metric('pydra_backend_restarts_total{backend="board"}') >= 1, "the restart is counted")
    node.kubelet.prepare_one(claim)


def test_calls_for_different_claims_in_random_order_leave_each_device_with_at_most_one_claim(node: Node) -> None:
    node.serve()
    claims = [node.api.create_claim(f"d{number % 3}", name=f"claim-{number}") for number in range(12)]
    for _ in range(3):
        calls = [node.kubelet.start_prepare(claim) for claim in claims]
        prepared = [
            claim
            for claim, call in zip(claims, calls, strict=True)
            if not parse_answers(call.result())[claim.uid].error
        ]
        assert len(prepared) == 3
        assert all(len(node.board.holders(f"d{number}")) == 1 for number in range(3))
        node.kubelet.release(*claims)
    assert all(node.is_clean(claim) for claim in claims)


def test_a_claim_in_quarantine_is_refused_without_being_unprepared_each_time(node: Node) -> None:
    node.serve()
    claim = node.api.create_claim("d0", name="victim")
    node.board.order("prepare", "victim", "exit", at="effect")
    while "not tried again" not in node.kubelet.refusal(claim):
        pass
    node.kubelet.refusal(claim)
    steps = node.board.steps(claim)
    node.kubelet.refusal(claim)
    node.kubelet.refusal(claim)
    assert node.board.steps(claim) == steps


def test_a_call_that_blocked_the_backend_is_told_as_that_with_the_place(node: Node) -> None:
    node.serve("--prepare-deadline", "1")
    claim = node.api.create_claim("d0", name="victim")
    node.board.order("prepare", "victim", "hang", at="effect", times=1)
    refusal = node.kubelet.refusal(claim)
    assert "prepare timed out after" in refusal
    assert "carry_out" in refusal
    wait_for(lambda: {event["reason"] for event in node.api.events(claim)} == {"BackendTimeout"}, "an Event says so")
