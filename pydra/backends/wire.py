"""Frames between the agent and a backend's process: messages to bytes and back.

Pure: no socket, no clock. A frame is a 4-byte big-endian length and that many bytes of msgpack.
What is inside a reply stays undecoded (`msgspec.Raw`): a wrong answer is then one call's violation,
never the stream's.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeAlias, TypeVar

import msgspec

from pydra.backends.faults import Fault
from pydra.claim import AllocatedDevice, Claim, HeldClaim, OpaqueConfig, PreparedDevice

MAX_FRAME = 16 * 1024 * 1024
"""The largest body in bytes: 128 devices with 32 attributes each take about 200 KB."""

_HEADER = struct.Struct(">I")


class WireError(ValueError):
    """The bytes are not frames of this protocol, or a message is too large to be one."""


class Method(Enum):
    """The coroutines of a backend, by name."""

    DISCOVER = "discover"
    PLAN = "plan"
    PREPARE = "prepare"
    UNPREPARE = "unprepare"
    MEASURE = "measure"
    WAIT_CHANGED = "wait_changed"
    INHERIT = "inherit"
    RESTORE = "restore"


class Call(msgspec.Struct, frozen=True, kw_only=True, tag="call", omit_defaults=True):
    """Agent to backend: run a coroutine.

    `claim` for plan, prepare and unprepare, `prepared` for unprepare, `held` for plan and restore, `directory` for
    inherit. `until` is the deadline on the clock of `time.monotonic`, which both processes share.
    """

    id: int
    method: Method
    claim: Claim | None = None
    prepared: tuple[PreparedDevice, ...] = ()
    held: tuple[HeldClaim, ...] = ()
    directory: str = ""
    until: float | None = None


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag="cancel"):
    """Agent to backend: the call's answer is no longer wanted."""

    id: int


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """Backend to agent, once, when it can be called: what it is and what it has.

    `reasons` are those of its own errors, by the name of the class, as far as their code is imported by then.
    """

    driver: str
    methods: tuple[Method, ...]
    config_kinds: tuple[str, ...] = ()
    device_classes: Mapping[str, Any] = {}
    reasons: Mapping[str, str] = {}
    survives_reboot: bool = False


class Refusal(msgspec.Struct, frozen=True, kw_only=True, tag="refusal"):
    """Backend to agent, instead of `Hello`: it cannot be used.

    `final` when starting it again cannot help (it breaks the contract or cannot be imported),
    otherwise `connect` failed.
    """

    fault: Fault
    final: bool


class Reply(msgspec.Struct, frozen=True, kw_only=True, tag="reply"):
    """Backend to agent: what the coroutine returned, as msgpack that the caller decodes."""

    id: int
    result: msgspec.Raw


class Failure(msgspec.Struct, frozen=True, kw_only=True, tag="failure"):
    """Backend to agent: what the coroutine raised."""

    id: int
    fault: Fault


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, tag="heartbeat"):
    """Backend to agent: its event loop turns."""


ToBackend: TypeAlias = Call | Cancel
ToAgent: TypeAlias = Hello | Refusal | Reply | Failure | Heartbeat
Message: TypeAlias = ToBackend | ToAgent

T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()
_to_backend: msgspec.msgpack.Decoder[ToBackend] = msgspec.msgpack.Decoder(ToBackend)
_to_agent: msgspec.msgpack.Decoder[ToAgent] = msgspec.msgpack.Decoder(ToAgent)


def build_frame(message: Message) -> bytearray:
    """One message as a frame. Raises WireError beyond `MAX_FRAME`, TypeError for what msgpack cannot carry."""
    frame = bytearray(_HEADER.size)
    _encoder.encode_into(message, frame, _HEADER.size)
    size = len(frame) - _HEADER.size
    if size > MAX_FRAME:
        raise WireError(f"a message of {size} bytes is over the limit of {MAX_FRAME} bytes")
    _HEADER.pack_into(frame, 0, size)
    return frame


def build_result(result: Any) -> msgspec.Raw:
    """What a coroutine returned, as it travels in a `Reply`. Raises TypeError, OverflowError or ValueError."""
    return msgspec.Raw(_encoder.encode(result))


def parse_to_backend(body: bytes) -> ToBackend:
    """A message that the agent sent. Raises WireError."""
    message = _parse(_to_backend, body)
    if isinstance(message, Call) and (message.claim is not None or message.held):
        claim = None if message.claim is None else _with_opaque_configs(message.claim)
        held = tuple(msgspec.structs.replace(one, claim=_with_opaque_configs(one.claim)) for one in message.held)
        return msgspec.structs.replace(message, claim=claim, held=held)
    return message


def parse_to_agent(body: bytes) -> ToAgent:
    """A message that the backend sent. Raises WireError."""
    return _parse(_to_agent, body)


def _parse(decoder: msgspec.msgpack.Decoder[T], body: bytes) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"a frame of {len(body)} bytes is not a message: {error}") from error


def _with_opaque_configs(claim: Claim) -> Claim:
    """Configs are typed `Any` in the claim, so that they arrive as plain mappings."""
    return msgspec.structs.replace(claim, devices=tuple(map(_restore, claim.devices)))


def _restore(device: AllocatedDevice) -> AllocatedDevice:
    if not device.configs:
        return device
    try:
        configs = tuple(OpaqueConfig(**config) for config in device.configs)
    except TypeError as error:
        raise WireError(f"configs of device {device.device}: {error}") from error
    return msgspec.structs.replace(device, configs=configs)


class FrameSplitter:
    """Cuts a stream of bytes, however it is chopped up, into the bodies of its frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Take the next bytes; give back the bodies now complete. Raises WireError for an impossible length."""
        buffer = self._buffer
        buffer += data
        bodies: list[bytes] = []
        start = 0
        while len(buffer) - start >= _HEADER.size:
            (size,) = _HEADER.unpack_from(buffer, start)
            if size > MAX_FRAME:
                raise WireError(f"a frame claims {size} bytes, the limit is {MAX_FRAME} bytes")
            end = start + _HEADER.size + size
            if len(buffer) < end:
                break
            bodies.append(bytes(memoryview(buffer)[start + _HEADER.size : end]))
            start = end
        del buffer[:start]
        return bodies

    @property
    def pending(self) -> int:
        """Bytes of a frame that is not complete yet."""
        return len(self._buffer)
