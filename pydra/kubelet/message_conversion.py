"""Converts kubelet protobuf messages to and from pydra types.

v1beta1 of DRAPlugin differs from v1 in nothing but the share id, which it lacks, and v1alpha1 of DRAResourceHealth from
v1 in nothing but its name, so v1's generated classes serve both. Contract tests compare them with protobuf's codec.

An invalid name of a claim fails that claim, not the call.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec
from grpclib import GRPCError, Status

from pydra.claim import ClaimRef, PrepareOutcome, UnprepareOutcome, find_name_problem
from pydra.devices import DeviceHealth, HealthStatus
from pydra.errors import ClaimError, PydraError
from pydra.kubelet import pb
from pydra.kubelet.pb import Message
from pydra.message_text import cut_bytes

MAX_CLAIMS = 4096
"""Claims in one call. A pod has a few; the errors of so many still fit into one answer."""

MAX_ERROR_BYTES = 2048
ALL_ERRORS_BYTES = 2 * 1024 * 1024
"""Bytes for the errors of one call, out of the 4 MiB that the kubelet's gRPC client accepts."""

MAX_HEALTH_BYTES = 1024
"""Of one device's message in a health report."""

_HEALTH = {status: pb.HealthStatus[status.name] for status in HealthStatus}

_UNPRINTABLE = re.compile(r"[\s\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]+")
"""White space, control characters, marks that change the direction of text, and what is not valid in UTF-8."""

_UNREADABLE = (ValueError, EOFError, KeyError, TypeError, OverflowError, struct.error)
"""What betterproto2 raises for bytes that are not such a message; a string that is not UTF-8 is a ValueError."""

MessageT = TypeVar("MessageT", bound=Message)


class ClaimCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call's claims: each uid is either among `refs`, once, or in `refused`."""

    refs: tuple[ClaimRef, ...]
    refused: Mapping[str, ClaimError]


def parse_claims(request: bytes) -> ClaimCall:
    """Parse the claims of a NodePrepareResourcesRequest or NodeUnprepareResourcesRequest, of either version, in order.

    A claim that is listed twice alike is one claim; one uid with two names is refused.

    Raises:
        GRPCError: the bytes are not such a message, or it has more than MAX_CLAIMS claims.
    """
    claims = _parse(pb.NodePrepareResourcesRequest, request).claims  # NodeUnprepareResourcesRequest is the same
    if len(claims) > MAX_CLAIMS:
        text = f"{len(claims)} claims in one call; at most {MAX_CLAIMS} are accepted"
        raise GRPCError(Status.RESOURCE_EXHAUSTED, text)
    refs: dict[str, ClaimRef] = {}
    refused: dict[str, ClaimError] = {}
    for claim in claims:
        if not isinstance(claim, pb.Claim):
            raise _malformed("a claim is not a message")
        uid, namespace, name = claim.uid, claim.namespace, claim.name
        if not (isinstance(uid, str) and isinstance(namespace, str) and isinstance(name, str)):
            raise _malformed("a claim's name is not a string")
        if problem := find_name_problem(uid, namespace, name):
            refused[uid] = ClaimError(f"the kubelet sent a claim {problem}")
            continue
        ref = ClaimRef(uid=uid, namespace=namespace, name=name)
        if refs.setdefault(uid, ref) != ref:
            refused[uid] = ClaimError(f"the kubelet gives uid {uid} to two claims: {refs[uid]} and {ref}")
    for uid in refused:
        refs.pop(uid, None)
    return ClaimCall(refs=tuple(refs.values()), refused=refused)


def build_prepare_response(outcomes: Mapping[str, PrepareOutcome], *, share_ids: bool) -> bytes:
    """Build a NodePrepareResourcesResponse; v1beta1 has no share ids."""
    claims = {}
    for uid, outcome in outcomes.items():
        if isinstance(outcome, PydraError):
            claims[uid] = pb.NodePrepareResourceResponse(error=describe(outcome, error_limit(len(outcomes))))
            continue
        devices = [
            pb.Device(
                request_names=list(device.requests),
                pool_name=device.pool,
                device_name=device.device,
                cdi_device_ids=list(device.cdi_ids),
                share_id=device.share_id if share_ids else None,
            )
            for device in outcome
        ]
        claims[uid] = pb.NodePrepareResourceResponse(devices=devices)
    return bytes(pb.NodePrepareResourcesResponse(claims=claims))


def build_unprepare_response(outcomes: Mapping[str, UnprepareOutcome]) -> bytes:
    """Build a NodeUnprepareResourcesResponse, for v1 and v1beta1."""
    claims = {
        uid: pb.NodeUnprepareResourceResponse(
            error="" if outcome is None else describe(outcome, error_limit(len(outcomes)))
        )
        for uid, outcome in outcomes.items()
    }
    return bytes(pb.NodeUnprepareResourcesResponse(claims=claims))


def build_plugin_info(*, driver: str, endpoint: str, versions: Sequence[str]) -> bytes:
    """Build a PluginInfo: the DRA driver, the socket of its services, and their versions."""
    info = pb.PluginInfo
    return bytes(info(type="DRAPlugin", name=driver, endpoint=endpoint, supported_versions=list(versions)))


def parse_registration_status(request: bytes) -> tuple[bool, str]:
    """Parse a RegistrationStatus: whether the kubelet registered the plugin, and its error.

    Raises:
        GRPCError: the bytes are not such a message.
    """
    status = _parse(pb.RegistrationStatus, request)
    return bool(status.plugin_registered), str(status.error)


def build_health_report(devices: Sequence[DeviceHealth], *, updated: int, lease: int) -> bytes:
    """Build a NodeWatchResourcesResponse, for v1 and v1alpha1.

    `updated` is when this was known, in seconds since 1970, or 0; the kubelet believes it for `lease` seconds.
    """
    limit = min(MAX_HEALTH_BYTES, error_limit(len(devices)))
    return bytes(
        pb.NodeWatchResourcesResponse(
            devices=[
                pb.DeviceHealth(
                    device=pb.DeviceIdentifier(pool_name=device.pool, device_name=device.device),
                    health=_HEALTH[device.status],
                    last_updated_time=updated,
                    health_check_timeout_seconds=lease,
                    message=one_line(device.message, limit),
                )
                for device in devices
            ]
        )
    )


def parse_health_check(request: bytes) -> str:
    """Return the service of a HealthCheckRequest; "" is the server as a whole.

    Raises:
        GRPCError: the bytes are not such a message.
    """
    return str(_parse(pb.HealthCheckRequest, request).service)


def build_health_check(status: pb.HealthCheckResponseServingStatus) -> bytes:
    """Build a HealthCheckResponse."""
    return bytes(pb.HealthCheckResponse(status=status))


def _parse(kind: type[MessageT], data: bytes) -> MessageT:
    try:
        return kind.parse(data)
    except _UNREADABLE as error:
        raise _malformed(f"{type(error).__name__}: {error}") from error


def _malformed(problem: str) -> GRPCError:
    return GRPCError(Status.INVALID_ARGUMENT, f"the request is not a valid message: {problem}")


# Errors as text


def error_limit(count: int) -> int:
    """Return how many bytes each of `count` texts may have so that all fit into one message."""
    return min(MAX_ERROR_BYTES, ALL_ERRORS_BYTES // max(1, count))


def describe(error: PydraError, limit: int = MAX_ERROR_BYTES) -> str:
    """Return the error as one line of at most `limit` bytes; never empty, since an empty error means success."""
    return one_line(str(error), limit) or type(error).__name__


def one_line(text: str, limit: int) -> str:
    """Return the text without line breaks and control characters, cut to `limit` bytes of UTF-8."""
    return cut_bytes(_UNPRINTABLE.sub(" ", text).strip(), limit)
