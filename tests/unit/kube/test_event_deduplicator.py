"""Events: what is written, how often, and how long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydra.kube.event_recorder import (
    DIFFERENT,
    REMEMBERED,
    Create,
    EventDeduplicator,
    EventRequest,
    Repetition,
    Subject,
    shorten,
)
from pydra.message_text import escape

CLAIM = Subject(api_version="resource.k8s.io/v1", kind="ResourceClaim", name="gpu", namespace="team", uid="u-1")


def request(note: str = "no such device", uid: str = "u-1") -> EventRequest:
    subject = Subject(api_version=CLAIM.api_version, kind=CLAIM.kind, name="gpu", namespace="team", uid=uid)
    return EventRequest(subject=subject, reason="UnknownDevice", note=note, action="Prepare")


def deduplicator() -> EventDeduplicator:
    return EventDeduplicator(controller="pydra-agent", instance="pydra-agent-node-1")


def decide(events: EventDeduplicator, what: EventRequest, now: float) -> Create | Repetition | None:
    return events.decide(what, now=now, stamp=f"at-{now:g}", suffix=f"{now:g}")


def test_the_first_word_about_a_claim_is_a_new_event_in_its_namespace() -> None:
    write = decide(deduplicator(), request(), 0)
    assert write == Create(
        "team",
        {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": "gpu.0", "namespace": "team"},
            "eventTime": "at-0",
            "reportingController": "pydra-agent",
            "reportingInstance": "pydra-agent-node-1",
            "action": "Prepare",
            "reason": "UnknownDevice",
            "regarding": {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "name": "gpu",
                "namespace": "team",
                "uid": "u-1",
            },
            "note": "no such device",
            "type": "Warning",
        },
    )


def test_an_event_about_a_long_name_still_has_a_name_that_the_api_takes() -> None:
    for name in ("a" * 199 + "-" + "b" * 50, "a" * 199 + "." + "b" * 50):
        subject = Subject(api_version="v1", kind="Node", name=name)
        write = decide(deduplicator(), EventRequest(subject=subject, reason="R", note="n", action="A"), 0)
        assert isinstance(write, Create)
        assert write.body["metadata"]["name"] == "a" * 199 + ".0"


def test_the_same_word_again_is_counted_in_the_event_that_exists() -> None:
    events = deduplicator()
    decide(events, request(), 0)
    assert decide(events, request(), 5) is None
    assert decide(events, request(), 20) == Repetition(
        "team", "gpu.0", {"series": {"count": 3, "lastObservedTime": "at-20"}}
    )


def test_another_word_or_another_claim_is_a_new_event() -> None:
    events = deduplicator()
    decide(events, request(), 0)
    assert isinstance(decide(events, request("another trouble"), 1), Create)
    assert isinstance(decide(events, request(uid="u-2"), 1), Create)


def test_notes_that_differ_each_time_are_limited_for_each_object_and_reason() -> None:
    events = deduplicator()
    written = [decide(events, request(f"trouble {number}"), number) for number in range(100)]
    assert sum(isinstance(one, Create) for one in written) == DIFFERENT
    assert isinstance(decide(events, request("trouble", uid="u-2"), 100), Create)
    assert isinstance(decide(events, request("later trouble"), 1000), Create)


def test_a_word_is_said_again_after_its_series_has_grown_old() -> None:
    events = deduplicator()
    decide(events, request(), 0)
    assert isinstance(decide(events, request(), 1000), Create)


def test_an_event_about_a_node_goes_to_the_default_namespace() -> None:
    node = Subject(api_version="v1", kind="Node", name="node-1")
    write = decide(deduplicator(), EventRequest(subject=node, reason="BackendContract", note="x", action="Start"), 0)
    assert isinstance(write, Create)
    assert write.namespace == "default"
    assert "namespace" not in write.body["regarding"]


def test_what_is_remembered_does_not_grow_without_bound() -> None:
    events = deduplicator()
    for number in range(REMEMBERED + 1):
        decide(events, request(uid=f"u-{number}"), 0)
    assert isinstance(decide(events, request(uid="u-0"), 20), Create)
    assert isinstance(decide(events, request(uid=f"u-{REMEMBERED}"), 20), Repetition)


@given(st.text(max_size=60), st.integers(min_value=4, max_value=40))
def test_a_shortened_note_fits_and_is_still_text(text: str, limit: int) -> None:
    short, whole = shorten(text, limit), escape(text)
    assert len(short.encode()) <= limit
    assert short == whole or (short.endswith("...") and whole.startswith(short[:-3]))


@pytest.mark.parametrize(
    ("text", "short"),
    [("abcdef", "abcdef"), ("abcdefg", "abc..."), ("äääääää", "ä..."), ("\x1b[", "\\x1b["), ("a\nb", "a\\nb")],
)
def test_a_long_note_ends_in_three_dots(text: str, short: str) -> None:
    assert shorten(text, 6) == short
