"""AdmissionReviews on the wire: what is read, what is refused as no review, and what is answered."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pydra.admission.review import (
    MAX_MESSAGE,
    MalformedReview,
    Verdict,
    build_message,
    build_review,
    parse_review,
)
from tests.unit.admission.questions import ask, build_body, encode


def without(name: str) -> dict[str, Any]:
    body = build_body()
    del body["request"][name]
    return body


@pytest.mark.parametrize(
    ("body", "words"),
    [
        pytest.param(b"", "no AdmissionReview: Input data was truncated", id="empty"),
        pytest.param(b"hello", "no AdmissionReview: JSON is malformed", id="no json"),
        pytest.param(b"[]", "no AdmissionReview: Expected `object`, got `array`", id="a list"),
        pytest.param(b'"\xff"', "no AdmissionReview", id="no utf-8"),
        pytest.param(b"[" * 100_000, "no AdmissionReview", id="deeper than any object"),
        pytest.param(b'{"a":' * 100_000, "no AdmissionReview", id="deeper than any object, in a field unknown"),
        pytest.param(encode({"apiVersion": "v1", "kind": "Pod"}), "missing required field `request`", id="a pod"),
        pytest.param(encode(without("uid")), "missing required field `uid` - at `$.request`", id="no uid"),
        pytest.param(encode(without("operation")), "missing required field `operation`", id="no operation"),
        pytest.param(
            encode({**build_body(), "apiVersion": "admission.k8s.io/v1beta1"}),
            "the webhook's configuration must have admissionReviewVersions: [v1]",
            id="another version",
        ),
    ],
)
def test_what_is_no_review_is_refused_in_words(body: bytes, words: str) -> None:
    with pytest.raises(MalformedReview) as caught:
        parse_review(body)
    assert words in str(caught.value)


def test_what_the_review_has_beside_the_question_is_not_read() -> None:
    question = ask(operation="UPDATE", old=(), namespace="ns", requestSubResource="x", newField={"a": 1})
    assert (question.uid, question.operation, question.namespace) == (
        "705ab4f5-6393-11e8-b7cc-42010a800002",
        "UPDATE",
        "ns",
    )
    assert str(question.resource) == "resourceclaims.v1.resource.k8s.io"


def test_what_may_be_is_answered_without_a_word() -> None:
    answer = msgspec.json.decode(build_review(ask(), Verdict(result="allowed")))
    assert answer["response"] == {"uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "allowed": True}


def test_a_refusal_is_no_longer_than_anybody_reads_and_says_how_much_is_left_out() -> None:
    message = build_message(tuple(f"spec.devices.config[{index}]: {'é' * 400}" for index in range(40)))
    assert len(message.encode()) <= MAX_MESSAGE + 20
    assert message.endswith("; and 21 more")


def test_one_fault_that_is_longer_is_told_whole() -> None:
    assert build_message(("x" * 20_000,)) == "x" * 20_000
