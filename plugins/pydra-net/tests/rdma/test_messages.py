"""Netlink messages by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pydra_net.netlink.messages import pack, unpack


@given(st.dictionaries(st.integers(0, 0x3FFF), st.binary(max_size=40)), st.binary(max_size=3))
def test_attributes_are_read_as_they_were_written(attributes: dict[int, bytes], cut: bytes) -> None:
    packed = pack(attributes)
    assert unpack(packed + cut) == attributes
    assert len(packed) % 4 == 0
