"""Whatever way the bytes of the socket are cut, the same messages arrive; what is too long ends the connection."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydra_nri.frames import MAX_DATA, Decoder, Message, ProtocolError, encode

MESSAGES = st.builds(
    Message,
    connection=st.sampled_from([1, 2]),
    stream=st.integers(0, 2**32 - 1),
    kind=st.integers(0, 255),
    data=st.one_of(st.binary(max_size=40), st.integers(4080, 9000).map(bytes)),
)


@given(st.lists(MESSAGES, max_size=4), st.data())
def test_messages_arrive_wherever_the_socket_cuts_them(messages: list[Message], data: st.DataObject) -> None:
    written = b"".join(map(encode, messages))
    cuts = data.draw(st.lists(st.integers(0, len(written)), max_size=6).map(sorted))
    decoder = Decoder()
    arrived = [
        message
        for start, end in zip([0, *cuts], [*cuts, len(written)], strict=True)
        for message in decoder.feed(written[start:end])
    ]
    assert arrived == messages


@given(st.lists(st.binary(min_size=1, max_size=5), min_size=1))
def test_a_message_arrives_whatever_frames_its_sender_makes_of_it(parts: list[bytes]) -> None:
    whole = struct.pack(">IIBB", sum(map(len, parts)), 7, 2, 0) + b"".join(parts)
    frames = [whole[:3], whole[3:10], *parts]
    decoder = Decoder()
    written = b"".join(struct.pack(">II", 2, len(frame)) + frame for frame in frames)
    assert decoder.feed(written) == [Message(connection=2, stream=7, kind=2, data=b"".join(parts))]


@pytest.mark.parametrize(
    ("size", "frames"), [(0, [10]), (4086, [4096]), (4087, [4096, 1]), (100_000, [4096, 95_914])], ids=str
)
def test_the_first_frame_of_a_message_fits_the_buffer_of_a_go_reader(size: int, frames: list[int]) -> None:
    written = encode(Message(connection=2, stream=1, kind=1, data=bytes(size)))
    found = []
    while written:
        length = struct.unpack_from(">I", written, 4)[0]
        found.append(length)
        written = written[8 + length :]
    assert found == frames


def test_frames_of_connections_that_nri_does_not_have_are_dropped() -> None:
    message = Message(connection=1, stream=1, kind=1, data=b"data")
    assert Decoder().feed(struct.pack(">II", 9, 3) + b"abc" + encode(message)) == [message]


@pytest.mark.parametrize(
    "hostile",
    [struct.pack(">II", 1, MAX_DATA + 11), struct.pack(">IIIIBB", 1, 10, MAX_DATA + 1, 1, 1, 0)],
    ids=["frame", "message"],
)
def test_a_length_above_the_limit_is_an_error_before_its_bytes_are_read(hostile: bytes) -> None:
    with pytest.raises(ProtocolError, match=r"has \d+ bytes, and at most \d+ are allowed"):
        Decoder().feed(hostile)
