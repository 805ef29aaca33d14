"""Netlink messages by hand."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroute2.netlink.exceptions import NetlinkDumpInterrupted

from pydra_net.netlink.messages import pack, parse_answer, unpack

LINK, DONE = 16, 3


@given(st.dictionaries(st.integers(0, 0x3FFF), st.binary(max_size=40)), st.binary(max_size=3))
def test_attributes_are_read_as_they_were_written(attributes: dict[int, bytes], cut: bytes) -> None:
    packed = pack(attributes)
    assert unpack(packed + cut) == attributes
    assert len(packed) % 4 == 0


def answer(kind: int, *, flags: int = 2, code: int = 0) -> bytes:
    return struct.pack("=IHHIIi", 20, kind, flags, 1, 0, code)


def test_a_list_that_the_kernel_did_not_finish_is_not_taken_for_all() -> None:
    assert parse_answer(answer(LINK) + answer(DONE)) == ([answer(LINK)], False)
    with pytest.raises(NetlinkDumpInterrupted):
        parse_answer(answer(LINK) + answer(DONE, flags=0x12))
    with pytest.raises(OSError, match="Cannot allocate memory"):
        parse_answer(answer(LINK) + answer(DONE, code=-12))
