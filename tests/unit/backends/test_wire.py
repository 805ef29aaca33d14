"""Frames survive every way of being cut up, and malformed bytes are named as such."""

from __future__ import annotations

import contextlib
import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydra.backends.error_codec import Fault, FaultKind
from pydra.backends.wire import (
    MAX_FRAME,
    Call,
    Cancel,
    Failure,
    FrameSplitter,
    Hello,
    LogLine,
    Message,
    Method,
    Ping,
    Pong,
    Refusal,
    Reply,
    Start,
    ToAgent,
    ToBackend,
    Waiting,
    WireError,
    build_frame,
    build_held,
    build_result,
    parse_held,
    parse_to_agent,
    parse_to_backend,
)
from pydra.cdi.edits import ContainerEdits, DeviceNode
from pydra.claim import AllocatedDevice, Claim, HeldClaim, OpaqueConfig, PreparedDevice

CLAIM = Claim(
    uid="u",
    namespace="ns",
    name="c",
    devices=(
        AllocatedDevice(
            request="gpu/big",
            pool="node",
            device="gpu-0",
            share_id="s",
            consumed_capacity={"memory": "1Gi"},
            admin_access=True,
            configs=(OpaqueConfig(source="FromClaim", position="config[0]", parameters={"kind": "K", "n": [1, None]}),),
        ),
        AllocatedDevice(request="gpu", pool="node", device="gpu-1"),
    ),
)
PREPARED = CLAIM.devices[0].prepared(
    ContainerEdits(env={"A": "b"}, device_nodes=(DeviceNode(path="/dev/x"),)), {"n": 1}
)

TO_BACKEND = [
    Call(id=1, method=Method.DISCOVER),
    Call(id=2, method=Method.PREPARE, claim=CLAIM),
    Call(id=3, method=Method.UNPREPARE, claim=CLAIM, prepared=(PREPARED,)),
    Call(id=4, method=Method.PLAN, claim=CLAIM, until=1.5),
    *build_held({CLAIM.uid: HeldClaim(claim=CLAIM, completed=False)}, ["u-2"], complete=True),
    Cancel(id=2**60),
    Start(backend="sim", prefix="PYDRA_SIM_", settings={"a": [1]}, log_level=10),
    Ping(),
]
TO_AGENT = [
    Hello(driver="d", methods=tuple(Method), config_kinds=("a/v1/K",)),
    Refusal(fault=Fault(kind=FaultKind.CONTRACT, problems=("a", "b")), final=True),
    Failure(id=4, fault=Fault(kind=FaultKind.DEVICE_IN_USE, device="d", holder="h", traceback="t")),
    Pong(),
    Waiting(id=4, where="File"),
    LogLine(level=30, logger="x", message="m", claim="ns/c", uid="u"),
]


def take_all(splitter: FrameSplitter, data: bytes) -> list[bytes]:
    splitter.feed(data)
    bodies = []
    while (body := splitter.take()) is not None:
        bodies.append(body)
    return bodies


messages = st.sampled_from([*TO_BACKEND, *TO_AGENT])


@pytest.mark.parametrize(
    "message", TO_BACKEND, ids=lambda message: str(getattr(message, "method", type(message).__name__))
)
def test_what_the_agent_sends_is_what_the_backend_reads(message: ToBackend) -> None:
    assert parse_to_backend(bytes(build_frame(message)[4:])) == message


@pytest.mark.parametrize("message", TO_AGENT, ids=lambda message: type(message).__name__)
def test_what_the_backend_sends_is_what_the_agent_reads(message: ToAgent) -> None:
    assert parse_to_agent(bytes(build_frame(message)[4:])) == message


def test_held_claims_arrive_as_they_were_sent() -> None:
    held = HeldClaim(claim=CLAIM, prepared=(PREPARED,), completed=True)
    (message,) = build_held({CLAIM.uid: held})
    assert parse_held(bytes(message.claims[CLAIM.uid])) == held


def test_a_result_travels_undecoded() -> None:
    sent = Reply(id=7, result=build_result((PREPARED,)))
    arrived = parse_to_agent(bytes(build_frame(sent)[4:]))
    assert isinstance(arrived, Reply)
    assert msgspec.msgpack.decode(arrived.result, type=tuple[PreparedDevice, ...]) == (PREPARED,)


@given(st.lists(messages, max_size=6), st.lists(st.integers(0, 500), max_size=20))
def test_frames_are_found_however_the_stream_is_cut(sent: list[Message], cuts: list[int]) -> None:
    frames = [bytes(build_frame(message)) for message in sent]
    stream = b"".join(frames)
    edges = sorted({0, len(stream), *(min(cut, len(stream)) for cut in cuts)})
    splitter = FrameSplitter(MAX_FRAME)
    bodies = [body for start, end in itertools.pairwise(edges) for body in take_all(splitter, stream[start:end])]
    assert bodies == [frame[4:] for frame in frames]
    assert splitter.pending == 0


@pytest.mark.fuzz
@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_messages_or_an_error(data: bytes) -> None:
    for parse, types in ((parse_to_agent, ToAgent), (parse_to_backend, ToBackend)):
        with contextlib.suppress(WireError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            assert isinstance(parse(data), types)


def test_a_length_beyond_the_limit_is_refused_before_anything_is_buffered() -> None:
    with pytest.raises(WireError, match=f"the limit is {MAX_FRAME} bytes"):
        take_all(FrameSplitter(MAX_FRAME), (MAX_FRAME + 1).to_bytes(4, "big"))


def test_a_message_beyond_the_limit_is_not_sent() -> None:
    with pytest.raises(WireError, match="over the limit"):
        build_frame(Reply(id=1, result=build_result("x" * (MAX_FRAME + 1))))


def test_the_largest_frame_passes() -> None:
    body = b"x" * MAX_FRAME
    assert take_all(FrameSplitter(MAX_FRAME), MAX_FRAME.to_bytes(4, "big") + body) == [body]
