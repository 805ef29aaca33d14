"""Parses AdmissionReview requests and validates the opaque configs in them.

Each opaque config of the object is validated against the config types of its driver. Configs of unknown drivers,
other resources and objects of another shape are allowed. So are updates that cannot add a config, and what was stored
before: a config that the old object also has is not validated again, so classes of an older release can be updated.

Sources: k8s.io/api/admission/v1/types.go (fields that decide nothing here, such as userInfo and options, are not read);
k8s.io/api/resource/{v1,v1beta2,v1beta1}/types.go, which differ in requests and devices only; for what may change,
ValidateResourceClaimUpdate and its neighbours in k8s.io/kubernetes/pkg/apis/resource/validation.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

import msgspec

from pydra.admission.config_types import KnownBackend
from pydra.backends.claim_config import find_config_problems, take_first
from pydra.backends.type_mismatches import show
from pydra.json_encodable import find_json_problems

GROUP = "resource.k8s.io"
VERSIONS = ("v1", "v1beta1", "v1beta2")
PLACES: Mapping[str, tuple[str, ...]] = {
    "deviceclasses": ("spec", "config"),
    "resourceclaims": ("spec", "devices", "config"),
    "resourceclaimtemplates": ("spec", "spec", "devices", "config"),
}
"""The path to the list of configs, by resource."""

OPERATIONS: Mapping[str, tuple[str, ...]] = {
    "deviceclasses": ("CREATE", "UPDATE"),
    "resourceclaims": ("CREATE",),
    "resourceclaimtemplates": ("CREATE",),
}
"""The writes that can add a config. Claims and templates cannot change theirs, and updates of a claim must not be
blocked: the scheduler adds a finalizer before it allocates, which is removed when the claim is deleted.
"""

MOST_CONFIGS = 32
"""The API's limit for one object; further configs are not validated."""

MOST_PARAMETERS = 10 * 1024
"""The API's limit for a config's parameters, in bytes."""


def build_rules() -> list[dict[str, list[str]]]:
    """Build `rules` of a webhook's configuration and `resourceRules` of a policy."""
    rules = []
    for operations in dict.fromkeys(OPERATIONS.values()):
        resources = [resource for resource, those in OPERATIONS.items() if those == operations]
        versions = {"apiGroups": [GROUP], "apiVersions": list(VERSIONS)}
        rules.append({**versions, "operations": list(operations), "resources": resources})
    return rules


class FoundConfig(msgspec.Struct, frozen=True, kw_only=True):
    """An opaque config: `path` leads to its parameters, as in `spec.devices.config[1].opaque.parameters`."""

    path: str
    driver: str
    parameters: Any


def find_configs(resource: str, found: Any) -> Iterator[FoundConfig]:
    """Yield every opaque config of an object of this resource (`resourceclaims`, ...), in order."""
    way = PLACES.get(resource, ())
    for step in way:
        found = found.get(step) if isinstance(found, Mapping) else None
    for index, entry in enumerate(found[:MOST_CONFIGS] if isinstance(found, list) else ()):
        opaque = entry.get("opaque") if isinstance(entry, Mapping) else None
        driver = opaque.get("driver") if isinstance(opaque, Mapping) else None
        if isinstance(opaque, Mapping) and isinstance(driver, str):
            path = f"{'.'.join(way)}[{index}].opaque.parameters"
            yield FoundConfig(path=path, driver=driver, parameters=opaque.get("parameters"))


API_VERSION = "admission.k8s.io/v1"
MAX_MESSAGE = 16 * 1024
"""Bytes of a refusal's text."""


class MalformedReview(ValueError):
    """The body is not an AdmissionReview v1 with a request; the message says what is wrong."""


class Resource(msgspec.Struct, frozen=True, rename="camel"):
    """The object's API resource."""

    group: str = ""
    version: str = ""
    resource: str = ""

    def __str__(self) -> str:
        return f"{self.resource}.{self.version}.{self.group}"


class Question(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A write to be reviewed. `object` is as it would be stored, `old_object` as it is stored."""

    uid: str
    resource: Resource
    operation: str
    sub_resource: str = ""
    namespace: str = ""
    name: str = ""
    object: Any = None
    old_object: Any = None


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The answer. `problems` lists everything that is wrong; `result` is the label for metrics."""

    result: str
    problems: tuple[str, ...] = ()

    @property
    def allowed(self) -> bool:
        """Whether the write is allowed."""
        return not self.problems


class _Review(msgspec.Struct, rename="camel"):
    api_version: str
    kind: str
    request: Question


_WIDE = 400
"""Digits of a number that is certainly too large for 64 bits."""

_DECODER = msgspec.json.Decoder(_Review)


def parse_review(body: bytes) -> Question:
    """Parse the request in the body. Raises MalformedReview."""
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
    """Parse what the API server accepts and strict JSON does not: unpaired surrogates, invalid UTF-8, long numbers.

    They may be in the config of another driver, which is validated elsewhere.
    """
    try:
        found = json.loads(body.decode(errors="replace"), parse_int=_parse_int, parse_float=_parse_float)
        return msgspec.convert(found, _Review)
    except (ValueError, RecursionError):
        raise MalformedReview(f"the body is not an AdmissionReview: {error}") from error
    except msgspec.ValidationError as problem:
        raise MalformedReview(f"the body is not an AdmissionReview: {problem}") from problem


def _parse_int(digits: str) -> int:
    return int(digits[:_WIDE])  # too large in any case; Python refuses thousands of digits


def _parse_float(digits: str) -> float | int:
    return number if isfinite(number := float(digits)) else 10**_WIDE


def build_review(question: Question, decision: Decision) -> bytes:
    """Build the response. A refusal is 422 Invalid: trying again does not help."""
    response: dict[str, Any] = {"uid": question.uid, "allowed": decision.allowed}
    if not decision.allowed:
        response["status"] = {
            "status": "Failure",
            "reason": "Invalid",
            "code": 422,
            "message": build_message(decision.problems),
        }
    return msgspec.json.encode({"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response})


def build_message(problems: tuple[str, ...]) -> str:
    """Join all problems in one line; beyond `MAX_MESSAGE`, only the number of the others is given."""
    said: list[str] = []
    size = 0
    for problem in (one.encode(errors="replace").decode() for one in problems):
        size += len(problem.encode()) + 2
        if size > MAX_MESSAGE and said:
            return "; ".join([*said, f"and {len(problems) - len(said)} more"])
        said.append(problem)
    return "; ".join(said)


ALLOWED, DENIED, NOT_OURS = "allowed", "denied", "not_ours"
RESULTS = (ALLOWED, DENIED, NOT_OURS)
Drivers = Mapping[str, KnownBackend]
"""Backends by the name of their driver in the API."""


def review_object(question: Question, drivers: Drivers) -> Decision:
    """Validate all configs of known drivers; each problem has the path to the field in the object."""
    resource = question.resource
    ours = resource.group == GROUP and resource.version in VERSIONS
    operations = OPERATIONS.get(resource.resource, ()) if ours else ()
    # API servers always name the operation. A review without one is checked like a creation.
    if question.sub_resource or not operations or (question.operation and question.operation not in operations):
        return Decision(result=NOT_OURS)
    problems = take_first(_problems(question, drivers))
    return Decision(result=DENIED if problems else ALLOWED, problems=problems)


def _problems(question: Question, drivers: Drivers) -> Iterator[str]:
    old = question.old_object if question.operation == "UPDATE" else None
    stored = {_identity(one) for one in find_configs(question.resource.resource, old)}
    for config in find_configs(question.resource.resource, question.object):
        backend = drivers.get(config.driver)
        if backend is not None and _identity(config) not in stored:
            yield from (f"{config.path}{problem}" for problem in _find_problems(config.parameters, backend))


def _find_problems(parameters: Any, backend: KnownBackend) -> Iterator[str]:
    try:
        msgspec.msgpack.encode(parameters)  # as on the node
        size = len(msgspec.json.encode(parameters))
    except (UnicodeError, OverflowError):
        yield from (problem.removeprefix("$") for problem in find_json_problems(parameters, "$"))
        return
    if size > MOST_PARAMETERS:
        yield f": found {size} bytes, allowed are {MOST_PARAMETERS}"
        return
    yield from (problem.removeprefix("$") for problem in find_config_problems(parameters, backend.types, backend.check))


def _identity(config: FoundConfig) -> str:
    return json.dumps((config.driver, config.parameters), sort_keys=True)  # as text: to Python, 1 is True
