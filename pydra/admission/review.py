"""AdmissionReview v1 on the wire: bytes to a question, a verdict to bytes. Pure.

Source: k8s.io/api/admission/v1/types.go. Fields that decide nothing here (userInfo, options, ...) are not read.
"""

from __future__ import annotations

import json
from math import isfinite
from typing import Any

import msgspec

from pydra.backends.wording import show

API_VERSION = "admission.k8s.io/v1"
MAX_MESSAGE = 16 * 1024
"""Bytes of a refusal's text."""


class MalformedReview(ValueError):
    """The body is no AdmissionReview v1 with a request; says what is wrong with it."""


class Resource(msgspec.Struct, frozen=True, rename="camel"):
    """Which API the object is of."""

    group: str = ""
    version: str = ""
    resource: str = ""

    def __str__(self) -> str:
        return f"{self.resource}.{self.version}.{self.group}"


class Question(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Whether this write may happen. `object` is as it would be stored, `old_object` as it is."""

    uid: str
    resource: Resource
    operation: str
    sub_resource: str = ""
    namespace: str = ""
    name: str = ""
    object: Any = None
    old_object: Any = None


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The answer. `problems` is everything that is wrong; `result` is the word for metrics."""

    result: str
    problems: tuple[str, ...] = ()

    @property
    def allowed(self) -> bool:
        """Whether the write may happen."""
        return not self.problems


class _Review(msgspec.Struct, rename="camel"):
    api_version: str
    kind: str
    request: Question


_WIDE = 400
"""Digits of a number that nobody takes for one of 64 bits."""

_DECODER = msgspec.json.Decoder(_Review)


def parse_review(body: bytes) -> Question:
    """The question in the body. Raises MalformedReview."""
    try:
        review = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        review = _parse_leniently(body, error)
    if (review.api_version, review.kind) != (API_VERSION, "AdmissionReview"):
        raise MalformedReview(
            f"the body is of apiVersion {show(review.api_version)}, kind {show(review.kind)},"
            f" expected {API_VERSION} AdmissionReview: the webhook's configuration must have"
            " admissionReviewVersions: [v1]"
        )
    return review.request


def _parse_leniently(body: bytes, error: Exception) -> _Review:
    """What the API server takes and strict JSON does not: half characters, other bytes, numbers of any length.

    Such a thing may be in another driver's config, which is none of our business.
    """
    try:
        found = json.loads(body.decode(errors="replace"), parse_int=_parse_int, parse_float=_parse_float)
        return msgspec.convert(found, _Review)
    except (ValueError, RecursionError):
        raise MalformedReview(f"the body is no AdmissionReview: {error}") from error
    except msgspec.ValidationError as problem:
        raise MalformedReview(f"the body is no AdmissionReview: {problem}") from problem


def _parse_int(digits: str) -> int:
    return int(digits[:_WIDE])  # as wrong as all of them, of which Python refuses thousands


def _parse_float(digits: str) -> float | int:
    return number if isfinite(number := float(digits)) else 10**_WIDE


def build_review(question: Question, verdict: Verdict) -> bytes:
    """The answer to the question. A refusal is 422 Invalid: trying again does not help."""
    response: dict[str, Any] = {"uid": question.uid, "allowed": verdict.allowed}
    if not verdict.allowed:
        response["status"] = {
            "status": "Failure",
            "reason": "Invalid",
            "code": 422,
            "message": build_message(verdict.problems),
        }
    return msgspec.json.encode({"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response})


def build_message(problems: tuple[str, ...]) -> str:
    """All problems in one line; what is longer than `MAX_MESSAGE` says how many more there are."""
    said: list[str] = []
    size = 0
    for problem in (one.encode(errors="replace").decode() for one in problems):
        size += len(problem.encode()) + 2
        if size > MAX_MESSAGE and said:
            return "; ".join([*said, f"and {len(problems) - len(said)} more"])
        said.append(problem)
    return "; ".join(said)
