"""How long to wait before something that has failed is tried again."""

from __future__ import annotations

_DOUBLINGS = 30
"""More reach any cap, and after a day of failures 2.0**failures would raise OverflowError."""


def find_pause(failures: int, *, first: float, cap: float) -> float:
    """Return the seconds to wait after `failures` in a row (at least 1): `first`, doubled each time up to `cap`."""
    return min(cap, first * 2.0 ** min(failures - 1, _DOUBLINGS))
