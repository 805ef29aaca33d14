"""Between the kubelet's messages and pydra's values. Pure: no waiting, no I/O.

The kubelet is trusted to be root, not to be right: what it names ends up in file names, CDI ids and URLs, so every
claim's name is checked here, and a bad one costs that claim, never the call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from pydra.claims.outcome import ClaimRef, ContainerDevice, PrepareOutcome, UnprepareOutcome
from pydra.errors import ClaimError, PydraError
from pydra.kubelet.pb import dra_v1, dra_v1beta1
from pydra.limits import LABEL, SUBDOMAIN

MAX_CLAIMS = 4096
"""Claims in one call. A pod has a handful; the errors of as many as this still fit into one answer."""

MAX_ERROR_BYTES = 2048
ALL_ERRORS_BYTES = 2 * 1024 * 1024
"""What the errors of one call may take of the 4 MiB that the kubelet's gRPC client accepts."""

_UID = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_UNPRINTABLE = re.compile(r"[\s\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]+")
"""White space, control characters, marks that change the direction of text, and what is no UTF-8."""

_RULES = (
    ("uid", _UID, 128, "letters, digits, '.', '-' and '_', a letter or digit at both ends"),
    ("namespace", LABEL, 63, "a DNS label"),
    ("name", SUBDOMAIN, 253, "a DNS subdomain"),
)


class ClaimCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call's claims: each uid is either among `refs`, once, or in `refused`."""

    refs: tuple[ClaimRef, ...]
    refused: Mapping[str, ClaimError]


def parse_claims(claims: Sequence[object]) -> ClaimCall:
    """The claims of a request, in its order, in either version's message.

    A claim that is named twice alike is one claim; one uid under two names is refused.

    Raises:
        ClaimError: more than MAX_CLAIMS claims.
    """
    if len(claims) > MAX_CLAIMS:
        raise ClaimError(f"{len(claims)} claims in one call, at most {MAX_CLAIMS} are served")
    refs: dict[str, ClaimRef] = {}
    refused: dict[str, ClaimError] = {}
    for claim in claims:
        values = {field: getattr(claim, field, None) for field, *_ in _RULES}
        uid = values["uid"] if isinstance(values["uid"], str) else ""
        if problem := _problem(values):
            refused[uid] = ClaimError(problem)
            continue
        ref = ClaimRef(**values)  # type: ignore[arg-type]  # _problem has seen that all are strings
        if refs.setdefault(uid, ref) != ref:
            refused[uid] = ClaimError(f"the kubelet gives uid {uid} to two claims: {refs[uid]} and {ref}")
    return ClaimCall(refs=tuple(ref for uid, ref in refs.items() if uid not in refused), refused=refused)


def _problem(values: Mapping[str, object]) -> str:
    for field, pattern, limit, rule in _RULES:
        value = values[field]
        if not isinstance(value, str) or not value:
            return f"the kubelet names a claim without {field}"
        if len(value) > limit or not pattern.fullmatch(value):
            found = f"the kubelet names a claim whose {field} is {value[:limit]!r}"
            return f"{found}; it must be {rule}, at most {limit} bytes"
    return ""


def build_prepare_v1(outcomes: Mapping[str, PrepareOutcome]) -> dra_v1.NodePrepareResourcesResponse:
    """The answer to NodePrepareResources, v1."""
    limit = error_limit(len(outcomes))
    answer = dra_v1.NodePrepareResourceResponse
    return dra_v1.NodePrepareResourcesResponse(
        claims={
            uid: answer(error=describe(outcome, limit))
            if isinstance(outcome, PydraError)
            else answer(devices=[_device_v1(device) for device in outcome])
            for uid, outcome in outcomes.items()
        }
    )


def build_prepare_v1beta1(outcomes: Mapping[str, PrepareOutcome]) -> dra_v1beta1.NodePrepareResourcesResponse:
    """The answer to NodePrepareResources, v1beta1, which knows no share ids."""
    limit = error_limit(len(outcomes))
    answer = dra_v1beta1.NodePrepareResourceResponse
    return dra_v1beta1.NodePrepareResourcesResponse(
        claims={
            uid: answer(error=describe(outcome, limit))
            if isinstance(outcome, PydraError)
            else answer(devices=[_device_v1beta1(device) for device in outcome])
            for uid, outcome in outcomes.items()
        }
    )


def build_unprepare_v1(outcomes: Mapping[str, UnprepareOutcome]) -> dra_v1.NodeUnprepareResourcesResponse:
    """The answer to NodeUnprepareResources, v1."""
    answer = dra_v1.NodeUnprepareResourceResponse
    return dra_v1.NodeUnprepareResourcesResponse(
        claims={uid: answer(error=error) for uid, error in _unprepare_errors(outcomes).items()}
    )


def build_unprepare_v1beta1(outcomes: Mapping[str, UnprepareOutcome]) -> dra_v1beta1.NodeUnprepareResourcesResponse:
    """The answer to NodeUnprepareResources, v1beta1."""
    answer = dra_v1beta1.NodeUnprepareResourceResponse
    return dra_v1beta1.NodeUnprepareResourcesResponse(
        claims={uid: answer(error=error) for uid, error in _unprepare_errors(outcomes).items()}
    )


def _unprepare_errors(outcomes: Mapping[str, UnprepareOutcome]) -> dict[str, str]:
    limit = error_limit(len(outcomes))
    return {uid: "" if outcome is None else describe(outcome, limit) for uid, outcome in outcomes.items()}


def _device_v1(device: ContainerDevice) -> dra_v1.Device:
    return dra_v1.Device(
        request_names=list(device.requests),
        pool_name=device.pool,
        device_name=device.device,
        cdi_device_ids=list(device.cdi_ids),
        share_id=device.share_id,
    )


def _device_v1beta1(device: ContainerDevice) -> dra_v1beta1.Device:
    return dra_v1beta1.Device(
        request_names=list(device.requests),
        pool_name=device.pool,
        device_name=device.device,
        cdi_device_ids=list(device.cdi_ids),
    )


def error_limit(count: int) -> int:
    """How many bytes each of `count` texts may have, so that all of them fit into one message."""
    return min(MAX_ERROR_BYTES, ALL_ERRORS_BYTES // max(1, count))


def describe(error: BaseException, limit: int = MAX_ERROR_BYTES) -> str:
    """The error as one line of at most `limit` bytes; never empty, for an empty error would mean success.

    Of a group of errors, which a task group makes even of a single one, the parts are told.
    """
    return one_line("; ".join(_texts(error, limit)), limit)


def _texts(error: BaseException, limit: int) -> list[str]:
    if isinstance(error, BaseExceptionGroup):
        return [text for part in error.exceptions for text in _texts(part, limit)]
    return [one_line(str(error), limit) or type(error).__name__]


def one_line(text: str, limit: int) -> str:
    """The text without line breaks and control characters, cut to `limit` bytes of UTF-8."""
    line = _UNPRINTABLE.sub(" ", text[: 2 * limit]).strip()
    encoded = line.encode()
    if len(encoded) <= limit and len(text) <= 2 * limit:
        return line
    return encoded[: limit - 3].decode(errors="ignore") + "..."
