"""Taking GOAWAY out of a stream of HTTP/2 frames."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pydra_dev.kubelet.grpc_channel import GoAwayFilter

GOAWAY = 0x7


def frame(kind: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind]) + b"\0\0\0\0\0" + payload


frames = st.lists(st.tuples(st.integers(0, 9), st.binary(max_size=40)), max_size=12)


@given(frames, st.data())
def test_everything_but_goaway_passes_whole_however_it_is_cut(
    sent: list[tuple[int, bytes]], data: st.DataObject
) -> None:
    stream = b"".join(frame(kind, payload) for kind, payload in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    found, kept, going = GoAwayFilter(), b"", False
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        passed, told = found.feed(stream[start:end])
        kept += passed
        going |= told
    assert kept == b"".join(frame(kind, payload) for kind, payload in sent if kind != GOAWAY)
    assert going == any(kind == GOAWAY for kind, _ in sent)


def test_an_unfinished_frame_waits_for_its_rest() -> None:
    found = GoAwayFilter()
    whole = frame(0, b"data")
    assert found.feed(whole[:11]) == (b"", False)
    assert found.feed(whole[11:]) == (whole, False)
