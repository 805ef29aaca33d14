"""Messages and framing between the agent and a backend process.

A frame is a 4-byte big-endian length and that many bytes of msgpack. The content of a reply stays undecoded
(`msgspec.Raw`), so a wrong result violates the contract of one call and does not break the stream. Each end reads at a
bounded rate, so a peer that sends without end takes only a bounded share of its time.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import Annotated, Any, Generic, TypeAlias, TypeVar, cast

import msgspec

from pydra.api_name_formats import DRIVER_BYTES, SUBDOMAIN
from pydra.backends.error_codec import Fault
from pydra.claim import Claim, HeldClaim, PreparedDevice, restore_configs
from pydra.json_encodable import MAX_DEPTH, find_json_problems

MAX_FRAME = 16 * 1024 * 1024
"""The largest body in bytes: 128 devices with 32 attributes each take about 200 KB."""

MAX_CONTAINERS = 500_000
"""Lists and objects in one answer: 50,000 devices. In the agent's memory each may take 100 times its bytes here."""

_HELD_BYTES = 8 * 1024 * 1024
"""After which a message about held claims is full; one claim has at most 256 KiB each of plan, results and states."""

_HEADER = struct.Struct(">I")
_CONTAINERS = bytes((*range(0x80, 0xA0), *range(0xDC, 0xE0)))
"""The first bytes of lists and objects in msgpack: fixmap, fixarray, array 16 to map 32."""


class WireError(ValueError):
    """The bytes are not frames of this protocol, or a message is too large."""


class Method(Enum):
    """The coroutines of a backend, by name."""

    DISCOVER = "discover"
    PLAN = "plan"
    APPLY = "apply"
    UNDO = "undo"
    PREPARE = "prepare"
    UNPREPARE = "unprepare"
    MEASURE = "measure"
    WAIT_CHANGED = "wait_changed"
    INHERIT = "inherit"
    RESTORE = "restore"


class Start(msgspec.Struct, frozen=True, kw_only=True, tag="start", omit_defaults=True):
    """Agent to backend, first of all: `settings` are the backend's own from the agent's settings file.

    `prefix` begins the names of its environment variables, such as `PYDRA_SIM_`; `log_level` is a number of `logging`,
    `descriptors` the soft and the hard limit of open files, None to keep those of the agent.
    """

    backend: str
    prefix: str
    settings: Mapping[str, Any] = {}
    log_level: int = 20
    descriptors: tuple[int, int] | None = None


class Ping(msgspec.Struct, frozen=True, kw_only=True, tag="ping"):
    """Agent to backend: answer with a Pong."""


class Call(msgspec.Struct, frozen=True, kw_only=True, tag="call", omit_defaults=True):
    """Agent to backend: run a coroutine.

    `claim` for calls for a claim, `step` for apply and undo (its place among the claim's steps), `prepared` for
    unprepare, `directory` for inherit. `until` is the deadline on the clock of `time.monotonic`, which both processes
    share.
    """

    id: int
    method: Method
    claim: Claim | None = None
    step: int = 0
    prepared: tuple[PreparedDevice, ...] = ()
    directory: str = ""
    until: float | None = None

    def __str__(self) -> str:
        """Return what the call does, for messages: `prepare`, or `step create-mig of GPU 3`."""
        if self.claim is None or self.method not in (Method.APPLY, Method.UNDO):
            return self.method.value
        doing = "step" if self.method is Method.APPLY else "undoing step"
        return f"{doing} {self.claim.steps[self.step].label}"


class Held(msgspec.Struct, frozen=True, kw_only=True, tag="held", omit_defaults=True):
    """Agent to backend, before a call: the claims that the node holds, as far as they changed since the last time.

    Each claim, by uid, is encoded by itself: the backend decodes what it reads. `complete`: there are no others, except
    those of the messages that follow.
    """

    claims: Mapping[str, msgspec.Raw] = {}
    ended: tuple[str, ...] = ()
    complete: bool = False


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag="cancel"):
    """Agent to backend: the call's answer is no longer wanted."""

    id: int


class Locate(msgspec.Struct, frozen=True, kw_only=True, tag="locate"):
    """Agent to backend: report where the call waits."""

    id: int


class SettingValue(msgspec.Struct, frozen=True, kw_only=True):
    """One of a backend's settings, spelled for people: what it allows, its value and where that came from."""

    name: str
    variable: str
    allowed: str
    default: str
    value: str
    source: str


class BackendDescription(msgspec.Struct, frozen=True, kw_only=True):
    """What a backend is and what it has. `driver` is its default driver name, empty when the settings must give one.

    `reasons` are those of its errors that have one of their own, by the name of the class, as far as their code is
    imported when it can be called. `misspelt` are its names that resemble one of the contract that it lacks, with that
    one. `survives_reboot`: the hardware keeps what `prepare` did to it across a reboot of the node. `one_pod`: a claim
    is for one pod, which the backend is given. `deadline` is how many seconds a call for a claim may take, where the
    agent's settings give less. `settings` are its own, where it has a SETTINGS_TYPE.
    """

    driver: Annotated[str, msgspec.Meta(max_length=DRIVER_BYTES, pattern=rf"^(?:{SUBDOMAIN.pattern})?\Z")]
    methods: tuple[Method, ...]
    config_kinds: tuple[str, ...] = ()
    reasons: Mapping[str, str] = {}
    misspelt: Mapping[str, str] = {}
    survives_reboot: bool = False
    one_pod: bool = False
    deadline: float = 0.0
    settings: tuple[SettingValue, ...] = ()


class Hello(BackendDescription, frozen=True, kw_only=True, tag="hello"):
    """Backend to agent, once, when it can be called."""


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


class Pong(msgspec.Struct, frozen=True, kw_only=True, tag="pong"):
    """Backend to agent: its event loop runs."""


class Waiting(msgspec.Struct, frozen=True, kw_only=True, tag="waiting"):
    """Backend to agent: where a call waits that was cancelled and has not ended, or that the agent asks about.

    `where` has the status that the call has set (`status: ...`), if any, and the lines of a traceback.
    """

    id: int
    where: str


MAX_MESSAGE = 4096
MAX_EXCEPTION = 16 * 1024
MAX_NAME = 512
"""Characters of a log line's parts; longer ones are cut."""


class LogLine(msgspec.Struct, frozen=True, kw_only=True, tag="log", omit_defaults=True):
    """Backend to agent: a record of `logging`. `claim` is `namespace/name` of the running call's claim."""

    level: int
    logger: str
    message: str
    exception: str = ""
    claim: str = ""
    uid: str = ""


ToBackend: TypeAlias = Start | Call | Held | Cancel | Locate | Ping
ToAgent: TypeAlias = Hello | Refusal | Reply | Failure | Pong | Waiting | LogLine
Message: TypeAlias = ToBackend | ToAgent

T = TypeVar("T")
M = TypeVar("M")

_encoder = msgspec.msgpack.Encoder()
_to_backend: msgspec.msgpack.Decoder[ToBackend] = msgspec.msgpack.Decoder(ToBackend)
_held: msgspec.msgpack.Decoder[HeldClaim] = msgspec.msgpack.Decoder(HeldClaim)


def build_frame(message: Message) -> bytearray:
    """Encode one message as a frame.

    Raises WireError beyond `MAX_FRAME`; TypeError for what msgpack cannot encode.
    """
    frame = bytearray(_HEADER.size)
    _encoder.encode_into(message, frame, _HEADER.size)
    size = len(frame) - _HEADER.size
    if size > MAX_FRAME:
        raise WireError(f"a message of {size} bytes is over the limit of {MAX_FRAME} bytes")
    _HEADER.pack_into(frame, 0, size)
    return frame


def build_result(result: Any) -> msgspec.Raw:
    """Encode what a coroutine returned for a `Reply`. Raises TypeError, OverflowError or ValueError."""
    return msgspec.Raw(_encoder.encode(result))


def count_containers(result: msgspec.Raw) -> int:
    """Return how many lists and objects an encoded result has, or more: text outside of ASCII has such bytes, too."""
    content = bytes(result)
    return len(content) - len(content.translate(None, _CONTAINERS))


def find_unencodable(value: Any, path: str, depth: int = 0) -> Iterator[str]:
    """Yield each part of a result that `build_result` refuses, with its path; an item of a list with its name, too."""
    match value:
        case list() | tuple() | Mapping() | msgspec.Struct() if depth > MAX_DEPTH:
            yield f"{path} is nested more than {MAX_DEPTH} deep"
        case msgspec.Struct():
            for name in value.__struct_fields__:
                yield from find_unencodable(getattr(value, name), f"{path}.{name}", depth + 1)
        case list() | tuple():
            for index, item in enumerate(value):
                is_value = isinstance(item, msgspec.Struct)
                name = (getattr(item, "device", "") or getattr(item, "name", "")) if is_value else ""
                label = f" ({name})" if name else ""
                yield from find_unencodable(item, f"{path}[{index}]{label}", depth + 1)
        case Mapping():
            for key, item in value.items():
                yield from find_unencodable(key, f"key {key!r} of {path}", depth + 1)
                yield from find_unencodable(item, f"{path}.{key}", depth + 1)
        case _:
            try:
                build_result(value)
            except (TypeError, ValueError, OverflowError):
                yield from find_json_problems(value, path)


def parse_to_backend(body: bytes) -> ToBackend:
    """Decode a message of the agent. Raises msgspec.DecodeError or RecursionError."""
    message = _to_backend.decode(body)
    if isinstance(message, Call) and message.claim is not None:
        return msgspec.structs.replace(message, claim=restore_configs(message.claim))
    return message


def build_held(held: Mapping[str, HeldClaim], ended: Iterable[str] = (), *, complete: bool = False) -> Iterator[Held]:
    """Yield the messages for these claims, each within `MAX_FRAME`."""
    claims: dict[str, msgspec.Raw] = {}
    size = 0
    for uid, one in held.items():
        claims[uid] = raw = msgspec.Raw(_encoder.encode(one))
        size += len(bytes(raw))
        if size > _HELD_BYTES:
            yield Held(claims=claims, complete=complete)
            claims, size, complete = {}, 0, False
    yield Held(claims=claims, ended=tuple(ended), complete=complete)


def parse_held(content: bytes) -> HeldClaim:
    """Decode one held claim. Raises msgspec.DecodeError."""
    held = _held.decode(content)
    return msgspec.structs.replace(held, claim=restore_configs(held.claim))


parse_to_agent: Callable[[bytes], ToAgent] = msgspec.msgpack.Decoder(ToAgent).decode
"""Decodes a message of the backend. Raises msgspec.DecodeError or RecursionError."""


class FrameSplitter:
    """Splits a stream of bytes into the bodies of its frames, each of at most `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = bytearray()
        self._start = 0

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        del self._buffer[: self._start]
        self._start = 0
        self._buffer += data

    def take(self) -> bytes | None:
        """Read the next complete body. Raises WireError for an impossible length."""
        buffer, body_start = self._buffer, self._start + _HEADER.size
        if len(buffer) < body_start:
            return None
        (size,) = _HEADER.unpack_from(buffer, self._start)
        if size > self._limit:
            raise WireError(f"a frame claims {size} bytes, the limit is {self._limit} bytes")
        if len(buffer) < body_start + size:
            return None
        self._start = body_start + size
        return bytes(memoryview(buffer)[body_start : self._start])

    @property
    def pending(self) -> int:
        """Bytes of a frame that is not complete yet."""
        return len(self._buffer) - self._start


class Budget:
    """A rate limit: `limit` units in `period` seconds, on the clock of the caller."""

    def __init__(self, limit: int, period: float) -> None:
        self._limit = limit
        self._period = period
        self._spent = 0
        self._since = -period

    def spend(self, units: int, now: float) -> float:
        """Note what was done; return the seconds to pause before more, or 0."""
        if now - self._since >= self._period:
            self._since, self._spent = now, 0
        self._spent += units
        return max(self._since + self._period - now, 0.001) if self._spent >= self._limit else 0.0


FRAMES_PER_PERIOD = 1000
_FRAME_BYTES = 12
"""A larger message counts as one for each 2**12 bytes: 40 MB/s are read at most."""
PERIOD_SECONDS = 0.1


class Channel(asyncio.Protocol, Generic[M]):
    """Passes each message to `on_message`, and calls `on_end` once with the error, or None if the other end closed.

    After malformed bytes nothing more is read: where the next frame begins is unknown. Of more than FRAMES_PER_PERIOD
    frames in PERIOD_SECONDS the rest is left unread until the next period.
    """

    def __init__(
        self,
        parse: Callable[[bytes], M],
        on_message: Callable[[M], None],
        on_end: Callable[[WireError | None], None],
    ) -> None:
        self._parse = parse
        self._on_message = on_message
        self._on_end = on_end
        self._splitter = FrameSplitter(MAX_FRAME)
        self._budget = Budget(FRAMES_PER_PERIOD, PERIOD_SECONDS)
        self._handled = 0
        self._paused = False
        self._transport: asyncio.Transport | None = None
        self.is_writable = False  # while the other end is slow to read
        self._closed = asyncio.Event()
        self._ended = False
        self._finished = False

    async def open(self, sock: socket.socket) -> None:
        """Take over the connected socket."""
        self._loop = asyncio.get_running_loop()
        await self._loop.create_connection(lambda: self, sock=sock)

    def send(self, message: Message) -> None:
        """Queue a message. Raises WireError when it is too large; dropped once the connection is gone or finished."""
        frame = build_frame(message)
        if self._transport is not None and not self._finished and not self._transport.is_closing():
            self._transport.write(frame)

    def finish(self) -> None:
        """Announce that no more will be sent; the other end may still answer."""
        if self._transport is not None and not self._finished and not self._transport.is_closing():
            self._finished = True
            self._transport.write_eof()

    def close(self) -> None:
        """Drop the connection and what was not sent."""
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self) -> None:
        """Wait until the connection is gone, after `close`."""
        if self._transport is not None:
            await self._closed.wait()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:  # noqa: D102
        self._transport = cast("asyncio.Transport", transport)
        self.is_writable = True

    def data_received(self, data: bytes) -> None:  # noqa: D102
        if not self._ended:
            self._splitter.feed(data)
            self._handled += len(data) >> _FRAME_BYTES
            if not self._paused:
                self._handle_frames()

    def _handle_frames(self) -> None:
        count, body = 0, b""
        try:
            while count < FRAMES_PER_PERIOD and not self._ended:
                following = self._splitter.take()
                if following is None:
                    break
                count, body = count + 1, following
                self._on_message(self._parse(body))
        except WireError as error:
            self._end(error)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._end(WireError(f"a frame of {len(body)} bytes is not a message: {error}"))
        self._handled += count
        if self._handled >= FRAMES_PER_PERIOD:
            self._pause_reading()

    def _pause_reading(self) -> None:
        pause = self._budget.spend(self._handled, self._loop.time())
        self._handled = 0
        if pause and not self._ended and self._transport is not None and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()
            self._loop.call_later(pause, self._go_on)

    def _go_on(self) -> None:
        self._paused = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
            self._handle_frames()

    def eof_received(self) -> bool:  # noqa: D102
        self._end(None)
        return True  # keep our half open: an answer may still be unsent

    def pause_writing(self) -> None:  # noqa: D102
        self.is_writable = False

    def resume_writing(self) -> None:  # noqa: D102
        self.is_writable = True

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: D102
        self._closed.set()
        self._end(None)

    def _end(self, reason: WireError | None) -> None:
        if not self._ended:
            self._ended = True
            self._on_end(reason)
