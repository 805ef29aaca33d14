"""Bytes as somebody else's mistake or attack makes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import strategies as st

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
"""What a JSON document may hold."""

_INSERTED = (
    b"\x00",
    b"\xe9",
    b'"\\ud800"',
    b"[" * 1200,
    b"{}",
    b"null",
    b"-1",
    b"1e999",
    b"9" * 5000,
    b"\n",
    b"'",
    b"&a *a",
)
"""What has ended a parser somewhere: a byte that is no text, a surrogate alone, depth, numbers without end."""


def damage(*samples: bytes) -> st.SearchStrategy[bytes]:
    """Any bytes, any JSON, and the samples with a part left out, changed, said twice or put in."""
    return st.binary(max_size=200) | VALUES.map(msgspec.json.encode) | st.sampled_from(samples).flatmap(_damage)


def _damage(sample: bytes) -> st.SearchStrategy[bytes]:
    part = st.tuples(st.integers(0, len(sample)), st.integers(0, len(sample))).map(sorted)
    changes: list[Callable[[bytes, bytes, bytes], bytes]] = [
        lambda before, _, after: before + after,
        lambda before, inside, after: before + inside + inside + after,
        lambda before, inside, _: before + inside,
        lambda before, inside, after: before + bytes(255 - one for one in inside[:8]) + inside[8:] + after,
    ]
    cut = part.map(lambda at: (sample[: at[0]], sample[at[0] : at[1]], sample[at[1] :]))
    changed = st.builds(lambda change, parts: change(*parts), st.sampled_from(changes), cut)
    grown = st.builds(lambda parts, text: parts[0] + text + parts[2], cut, st.sampled_from(_INSERTED))
    return changed | grown
