"""The bytes of the kubelet's messages from and to pydra's values. Pure: no waiting, no I/O.

The messages are few, small and stable, and v1beta1 differs from v1 in one field, so they are read and written here
instead of by generated code, which took 118 Python calls for a prepare and 2 MiB. Contract tests compare every message
with protobuf's own codec.

The kubelet is trusted to be root, not to be right: what it names ends up in file names, CDI ids and URLs, so every
claim's name is checked here, and only here. A bad name costs its claim, never the call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import IntEnum

import msgspec

from pydra.claim import ClaimRef, ContainerDevice, PrepareOutcome, UnprepareOutcome
from pydra.devices import DeviceHealth, HealthStatus
from pydra.errors import ClaimError, PydraError
from pydra.kubelet.grpc_server import CallError, Status
from pydra.limits import LABEL, SUBDOMAIN

MAX_CLAIMS = 4096
"""Claims in one call. A pod has a handful; the errors of as many as this still fit into one answer."""

MAX_ERROR_BYTES = 2048
ALL_ERRORS_BYTES = 2 * 1024 * 1024
"""What the errors of one call may take of the 4 MiB that the kubelet's gRPC client accepts."""

MAX_HEALTH_BYTES = 1024
"""Of one device's message in a health report."""

_HEALTH = {HealthStatus.UNKNOWN: 0, HealthStatus.HEALTHY: 1, HealthStatus.UNHEALTHY: 2}

_UID = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_UNPRINTABLE = re.compile(r"[\s\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]+")
"""White space, control characters, marks that change the direction of text, and what is not valid in UTF-8."""


class ServingStatus(IntEnum):
    """What `grpc.health.v1.Health` says of a service."""

    SERVING = 1
    NOT_SERVING = 2
    SERVICE_UNKNOWN = 3


class ClaimCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call's claims: each uid is either among `refs`, once, or in `refused`."""

    refs: tuple[ClaimRef, ...]
    refused: Mapping[str, ClaimError]


def parse_claims(request: bytes) -> ClaimCall:
    """The claims of a NodePrepareResourcesRequest or NodeUnprepareResourcesRequest, in its order, in either version.

    A claim that is listed twice alike is one claim; one uid with two names is refused.

    Raises:
        CallError: the bytes are not such a message, or it has more than MAX_CLAIMS claims.
    """
    claims, _ = _read_fields(request)
    if len(claims) > MAX_CLAIMS:
        text = f"{len(claims)} claims in one call; at most {MAX_CLAIMS} are accepted"
        raise CallError(Status.RESOURCE_EXHAUSTED, text)
    refs: dict[str, ClaimRef] = {}
    refused: dict[str, ClaimError] = {}
    for number, claim in claims:
        if number != 1:
            continue  # a field of a later version
        fields, _ = _read_fields(claim)
        texts = dict(fields)
        namespace, uid, name = _text(texts, 1), _text(texts, 2), _text(texts, 3)
        if (
            len(uid) > 128
            or not _UID.fullmatch(uid)
            or len(namespace) > 63
            or not LABEL.fullmatch(namespace)
            or len(name) > 253
            or not SUBDOMAIN.fullmatch(name)
        ):
            refused[uid] = _bad_name(uid, namespace, name)
            continue
        ref = ClaimRef(uid=uid, namespace=namespace, name=name)
        if refs.setdefault(uid, ref) != ref:
            refused[uid] = ClaimError(f"the kubelet gives uid {uid} to two claims: {refs[uid]} and {ref}")
    for uid in refused:
        refs.pop(uid, None)
    return ClaimCall(refs=tuple(refs.values()), refused=refused)


def _bad_name(uid: str, namespace: str, name: str) -> ClaimError:
    """Says what is wrong with the first name that is not valid."""
    field, value, limit, rule = "name", name, 253, "a DNS subdomain"
    if len(uid) > 128 or not _UID.fullmatch(uid):
        field, value, limit = "uid", uid, 128
        rule = "letters, digits, '.', '-' and '_', with a letter or digit at both ends"
    elif len(namespace) > 63 or not LABEL.fullmatch(namespace):
        field, value, limit, rule = "namespace", namespace, 63, "a DNS label"
    if not value:
        return ClaimError(f"the kubelet sent a claim without {field}")
    found = f"the kubelet sent a claim whose {field} is {value[:limit]!r}"
    return ClaimError(f"{found}; it must be {rule}, of at most {limit} bytes")


def build_prepare_response(outcomes: Mapping[str, PrepareOutcome], *, share_ids: bool) -> bytes:
    """A NodePrepareResourcesResponse: v1 with share ids, v1beta1 without, which does not know them."""
    limit = error_limit(len(outcomes))
    response = bytearray()
    for uid, outcome in outcomes.items():
        answer = bytearray()
        if isinstance(outcome, PydraError):
            answer += _string(2, describe(outcome, limit))
        else:
            for device in outcome:
                answer += _field(1, _device(device, share_ids=share_ids))
        response += _entry(uid, answer)
    return bytes(response)


def build_unprepare_response(outcomes: Mapping[str, UnprepareOutcome]) -> bytes:
    """A NodeUnprepareResourcesResponse, of v1 and v1beta1 alike."""
    limit = error_limit(len(outcomes))
    response = bytearray()
    for uid, outcome in outcomes.items():
        response += _entry(uid, b"" if outcome is None else _string(1, describe(outcome, limit)))
    return bytes(response)


def _entry(uid: str, value: bytes | bytearray) -> bytes:
    """An entry of the map `claims`."""
    return _field(1, _field(1, uid.encode()) + _field(2, value))


def _device(device: ContainerDevice, *, share_ids: bool) -> bytes:
    fields = bytearray()
    for request in device.requests:
        fields += _field(1, request.encode())
    fields += _string(2, device.pool)
    fields += _string(3, device.device)
    for cdi_id in device.cdi_ids:
        fields += _field(4, cdi_id.encode())
    if share_ids and device.share_id is not None:
        fields += _field(5, device.share_id.encode())
    return bytes(fields)


def build_plugin_info(*, driver: str, endpoint: str, versions: Sequence[str]) -> bytes:
    """A PluginInfo: the DRA driver, the socket of its services, and the versions that they have."""
    identity = _string(1, "DRAPlugin") + _string(2, driver) + _string(3, endpoint)
    return identity + b"".join([_field(4, version.encode()) for version in versions])


def parse_registration_status(request: bytes) -> tuple[bool, str]:
    """Of a RegistrationStatus: whether the kubelet registered the plugin, and its error.

    Raises:
        CallError: the bytes are not such a message.
    """
    fields, numbers = _read_fields(request)
    return bool(numbers.get(1)), _text(dict(fields), 2)


def build_health_report(devices: Sequence[DeviceHealth], *, lease: int) -> bytes:
    """A NodeWatchResourcesResponse of DRAResourceHealth, v1 and v1alpha1 alike, valid for `lease` seconds."""
    limit = min(MAX_HEALTH_BYTES, error_limit(len(devices)))
    return b"".join(
        [
            _field(
                1,
                _field(1, _string(1, device.pool) + _string(2, device.device))
                + _number(2, _HEALTH[device.status])
                + _number(3, device.updated)
                + _number(4, lease)
                + _string(5, one_line(device.message, limit)),
            )
            for device in devices
        ]
    )


def parse_health_check(request: bytes) -> str:
    """The service of a HealthCheckRequest; "" is the server as a whole.

    Raises:
        CallError: the bytes are not such a message.
    """
    fields, _ = _read_fields(request)
    return _text(dict(fields), 1)


def build_health_check(status: ServingStatus) -> bytes:
    """A HealthCheckResponse."""
    return _number(1, status)


# The wire format of protobuf, with field numbers below 16.

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def _field(number: int, value: bytes | bytearray) -> bytes:
    size = len(value)
    if size < 0x80:
        return bytes((number << 3 | _BYTES, size)) + value
    return bytes((number << 3 | _BYTES,)) + _varint(size) + value


def _string(number: int, text: str) -> bytes:
    """A string field, which is absent when it is empty."""
    return _field(number, text.encode()) if text else b""


def _number(number: int, value: int) -> bytes:
    """An int64, bool or enum field, which is absent when it is 0."""
    return bytes((number << 3 | _VARINT,)) + _varint(value & 0xFFFF_FFFF_FFFF_FFFF) if value else b""


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _text(fields: Mapping[int, bytes], number: int) -> str:
    try:
        return fields.get(number, b"").decode()
    except UnicodeDecodeError as error:
        raise _malformed(f"field {number} is not UTF-8") from error


def _read_fields(message: bytes) -> tuple[Sequence[tuple[int, bytes]], Mapping[int, int]]:
    """The fields that are bytes, by number and in their order, and those that are numbers; others are skipped.

    Raises:
        CallError: the bytes are not a message.
    """
    fields, numbers = [], {}
    position, end = 0, len(message)
    while position < end:
        if message[position] < 0x80:  # nearly always, and a call less
            key, position = message[position], position + 1
        else:
            key, position = _read_varint(message, position)
        kind, field = key & 7, key >> 3
        if kind == _VARINT:
            numbers[field], position = _read_varint(message, position)
            continue
        if kind == _BYTES:
            if position < end and message[position] < 0x80:
                size, position = message[position], position + 1
            else:
                size, position = _read_varint(message, position)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise _malformed(f"field {field} has the unknown type {kind}")
        start, position = position, position + size
        if position > end:
            raise _malformed(f"field {field} is longer than the message")
        if kind == _BYTES:
            fields.append((field, message[start:position]))
    return fields, numbers


def _read_varint(message: bytes, position: int) -> tuple[int, int]:
    """The number at the position, and the position after it."""
    number = shift = 0
    while position < len(message) and shift < 70:
        byte = message[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
        shift += 7
    raise _malformed("it ends within a number, or a number has more than 64 bits")


def _malformed(problem: str) -> CallError:
    return CallError(Status.INVALID_ARGUMENT, f"the request is not a valid message: {problem}")


# Errors as text


def error_limit(count: int) -> int:
    """How many bytes each of `count` texts may have, so that all of them fit into one message."""
    return min(MAX_ERROR_BYTES, ALL_ERRORS_BYTES // max(1, count))


def describe(error: PydraError, limit: int = MAX_ERROR_BYTES) -> str:
    """The error as one line of at most `limit` bytes; never empty, for an empty error would mean success."""
    return one_line(str(error), limit) or type(error).__name__


def one_line(text: str, limit: int) -> str:
    """The text without line breaks and control characters, cut to `limit` bytes of UTF-8."""
    line = _UNPRINTABLE.sub(" ", text[: 2 * limit]).strip()
    encoded = line.encode()
    if len(encoded) <= limit and len(text) <= 2 * limit:
        return line
    return encoded[: limit - 3].decode(errors="ignore") + "..."
