"""An object of the API server that strict JSON refuses costs at most itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.behaviour.node import Agent, Node, run_node
from tests.behaviour.relay import NOT_UTF8
from tests.behaviour.waiting import wait_for

GRACE = 130


@pytest.fixture(scope="module")
def relayed() -> Iterator[tuple[Node, Agent]]:
    """A node whose agent gets what the API server says with the unreadable bytes in it."""
    with run_node(has_clocks=True) as node:
        node.board.set_devices("d0", "d1")
        agent = node.serve("--sweep-period", "0.1", kubeconfig=node.start_relay())
        yield node, agent
        assert not agent.has_ended()


def test_a_claim_that_cannot_be_read_keeps_no_other_from_being_unprepared_when_it_is_gone(
    relayed: tuple[Node, Agent],
) -> None:
    node, agent = relayed
    gone, odd = node.api.create_claim("d0"), node.api.create_claim("d1")
    node.kubelet.prepare(gone, odd)
    node.api.annotate(odd, NOT_UTF8)
    node.api.delete_claim(gone)
    node.wait_lookups_of(gone, 3, unless=agent.has_ended)
    node.advance_clock(GRACE)
    node.wait_lookups_of(odd, 10, unless=agent.has_ended)
    assert not agent.has_ended()
    assert node.is_clean(gone)
    assert node.board.steps(odd) == ["prepare", "prepared"]
    node.kubelet.release(odd)


def test_a_claim_with_an_annotation_that_cannot_be_read_is_prepared_as_others_are(
    relayed: tuple[Node, Agent],
) -> None:
    node, _ = relayed
    odd, other = node.api.create_claim("d0"), node.api.create_claim("d1")
    node.api.annotate(odd, NOT_UTF8)
    answers = node.kubelet.prepare(odd, other)
    assert [answers[one.uid].error for one in (odd, other)] == ["", ""]
    node.kubelet.release(odd, other)


def test_a_slice_that_somebody_made_unreadable_does_not_end_the_watch_of_slices(
    relayed: tuple[Node, Agent],
) -> None:
    node, agent = relayed
    node.board.set_devices("d0", "d1")
    wait_for(lambda: set(node.api.devices()) == {"d0", "d1"}, "the slice is published")
    (published,) = node.api.slices()
    published["metadata"]["annotations"] = {"note": NOT_UTF8}
    lists = len(node.agent_calls("list", "resourceslices"))
    node.api.replace_slice(published)
    node.board.set_devices("d0", "d1", "d2")

    def is_decided() -> bool:
        given_up = len(node.agent_calls("list", "resourceslices")) >= lists + 3
        return agent.has_ended() or given_up or set(node.api.devices()) == {"d0", "d1", "d2"}

    wait_for(is_decided, "the new device is published, or the watch fails again and again")
    assert not agent.has_ended()
    assert set(node.api.devices()) == {"d0", "d1", "d2"}


def test_a_gateways_page_in_place_of_an_answer_is_waited_out(node: Node) -> None:
    node.board.set_devices("d0")
    for verb in ("list", "watch"):
        node.api_fault(verb=verb, resource="resourceslices", status=502, body=f"<html>{NOT_UTF8}</html>")
    agent = node.start(kubeconfig=node.start_relay())

    def refused() -> set[str]:
        return {one.verb for one in node.agent_calls(resource="resourceslices") if one.status == 502}

    wait_for(lambda: refused() == {"list", "watch"}, "the page is the answer to both")
    node.board.set_devices("d0", "d1")
    wait_for(lambda: agent.has_ended() or set(node.api.devices()) == {"d0", "d1"}, "the devices are published")
    assert not agent.has_ended()
