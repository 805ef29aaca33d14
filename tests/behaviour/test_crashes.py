"""Nothing that was prepared is lost, and nothing leaks, whatever the agent or the backend is killed in."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from tests.behaviour.kubelet import Claim, parse_answers
from tests.behaviour.node import Agent, Node, run_node
from tests.behaviour.waiting import wait_for

POINTS = [("prepare", "begin"), ("prepare", "effect"), ("unprepare", "begin"), ("unprepare", "effect")]
Left = dict[tuple[str, str], tuple[str, Claim]]
"""What an agent was killed in, a call and a point of it: the device and the claim."""


@pytest.fixture(scope="module")
def killed() -> Iterator[tuple[Node, Left, Left]]:
    """An agent was killed in calls at all points, two for each, and the next one serves."""
    with run_node() as node:
        agent = node.serve()
        asked, unasked = ({point: hold(node, *point) for point in POINTS} for _ in range(2))
        held = [(point, *one) for left in (asked, unasked) for point, one in left.items()]
        start = {"prepare": node.kubelet.start_prepare, "unprepare": node.kubelet.start_unprepare}
        in_flight = [start[call](claim) for (call, _), _, claim in held]
        for (call, at), _, claim in held:
            node.board.wait_reached(call, claim.name, at=at)
        agent.kill()
        for one in in_flight:
            with pytest.raises(grpc.RpcError):
                one.result()
        node.board.end_processes()
        for (call, at), _, claim in held:
            node.board.dismiss(call, claim.name, at=at)
        node.serve()
        yield node, asked, unasked


def hold(node: Node, call: str, at: str) -> tuple[str, Claim]:
    """A device and its claim, of which this call will wait at this point."""
    device = node.board.device()
    claim = node.api.create_claim(device)
    if call == "unprepare":
        node.kubelet.prepare_one(claim)
    node.board.order(call, claim.name, "wait", at=at)
    return device, claim


@pytest.mark.parametrize("point", POINTS, ids="-".join)
def test_after_a_kill_in_a_call_the_claim_is_prepared_and_unprepared_by_the_next_agent(
    killed: tuple[Node, Left, Left], point: tuple[str, str]
) -> None:
    node, asked, _ = killed
    name, claim = asked[point]
    (device,) = node.kubelet.prepare_one(claim)
    assert node.cdi_edits(device)
    assert node.board.holders(name) == {claim.uid}
    node.kubelet.release(claim)
    assert node.is_clean(claim)
    assert node.kubelet.prepare_one(node.api.create_claim(name))


@pytest.mark.parametrize("point", POINTS, ids="-".join)
def test_what_a_killed_agent_left_half_done_is_undone_without_a_word_from_the_kubelet(
    killed: tuple[Node, Left, Left], point: tuple[str, str]
) -> None:
    node, _, unasked = killed
    wait_for(lambda: node.is_clean(unasked[point][1]), "nothing is left of the claim")


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


def test_a_claim_that_kills_its_backend_is_found_and_refused_while_bystanders_are_prepared(
    quiet: Node, quiet_agent: Agent
) -> None:
    device = quiet.board.device()
    victim = quiet.api.create_claim(device)
    bystanders = [quiet.api.create_claim(quiet.board.device()) for _ in range(3)]
    quiet.board.order("prepare", victim.name, "segfault", at="effect")
    answers = quiet.kubelet.prepare(victim, *bystanders)
    assert "died of SIGSEGV" in answers[victim.uid].error
    assert [answers[one.uid].error for one in bystanders] == ["", "", ""]
    quiet.kubelet.refusal(victim)
    tries = quiet.board.steps(victim).count("prepare")
    for _ in range(2):
        assert "not tried again" in quiet.kubelet.refusal(victim)
    steps = quiet.board.steps(victim)
    assert steps.count("prepare") == tries, "a claim in quarantine is not prepared"
    quiet.kubelet.refusal(victim)
    assert quiet.board.steps(victim) == steps, "and not unprepared each time"
    wait_for(lambda: device in quiet.api.taints(), "its device is tainted")
    events = {event["reason"]: event["note"] for event in quiet.api.events(victim)}
    assert events.keys() == {"BackendDied", "ClaimQuarantined"}
    assert "died of SIGSEGV" in events["BackendDied"]
    assert "ended the process of backend board 2 times and is not tried again" in events["ClaimQuarantined"]
    wait_for(
        lambda: quiet_agent.metric('pydra_backend_crashes_total{backend="board",signal="SIGSEGV"}') >= 2,
        "the metric follows",
    )
    wait_for(lambda: quiet_agent.metric('pydra_backend_restarts_total{backend="board"}') >= 2, "restarts are counted")
    assert quiet_agent.get("/readyz")[0] == 200
    quiet.board.dismiss("prepare", victim.name, at="effect")
    quiet.kubelet.release(victim)
    assert quiet.is_clean(victim)
    wait_for(lambda: not quiet.api.taints(), "the taint goes when the claim is unprepared")
    quiet.kubelet.prepare_one(victim)


def test_calls_for_different_claims_in_random_order_leave_each_device_with_at_most_one_claim(quiet: Node) -> None:
    devices = [quiet.board.device() for _ in range(3)]
    claims = [quiet.api.create_claim(devices[number % 3]) for number in range(12)]
    for _ in range(3):
        calls = [quiet.kubelet.start_prepare(claim) for claim in claims]
        prepared = [
            claim
            for claim, call in zip(claims, calls, strict=True)
            if not parse_answers(call.result())[claim.uid].error
        ]
        assert len(prepared) == 3
        assert all(len(quiet.board.holders(device)) == 1 for device in devices)
        quiet.kubelet.release(*claims)
    assert all(quiet.is_clean(claim) for claim in claims)


@pytest.fixture(scope="module")
def hasty() -> Iterator[Node]:
    """A node with an agent that gives each call three seconds."""
    with run_node() as node:
        node.serve("--prepare-deadline", "3")
        yield node


def test_a_call_that_blocks_the_backend_ends_at_its_deadline_and_costs_its_claim_alone(hasty: Node) -> None:
    device = hasty.board.device()
    victim, bystander = hasty.api.create_claim(device), hasty.api.create_claim(hasty.board.device())
    hasty.board.order("prepare", victim.name, "hang", at="effect", times=1)
    call = hasty.kubelet.start_prepare(victim)
    hasty.board.wait_reached("prepare", victim.name, at="effect")
    wait_for(lambda: not hasty.kubelet.prepare(bystander)[bystander.uid].error, "another claim is prepared")
    assert parse_answers(call.result())[victim.uid].error
    wait_for(lambda: not hasty.kubelet.prepare(victim)[victim.uid].error, "the claim is prepared")
    assert hasty.board.holders(device) == {victim.uid}


def test_a_call_that_blocked_the_backend_is_reported_as_that_with_the_place(hasty: Node) -> None:
    claim = hasty.api.create_claim(hasty.board.device())
    hasty.board.order("prepare", claim.name, "hang", at="effect", times=1)
    refusal = hasty.kubelet.refusal(claim)
    assert "prepare timed out after" in refusal
    assert "carry_out" in refusal
    wait_for(lambda: {event["reason"] for event in hasty.api.events(claim)} == {"BackendTimeout"}, "an Event says so")


def test_a_call_that_is_slower_than_its_deadline_is_undone_and_tried_again(hasty: Node) -> None:
    claim = hasty.api.create_claim(hasty.board.device())
    hasty.board.order("prepare", claim.name, "wait", at="effect")
    assert "prepare timed out after" in hasty.kubelet.refusal(claim)
    wait_for(lambda: hasty.is_clean(claim), "what was begun is undone")
    hasty.board.dismiss("prepare", claim.name, at="effect")
    hasty.kubelet.prepare_one(claim)
