"""When a file or folder can be known by its sign: inode, time and size. The time counts in ticks of the file system."""

from __future__ import annotations

SECONDS = 2.0
"""After which the next change surely has another time."""


def is_settled(changed: int, now: float) -> bool:
    """Whether what changed then, in nanoseconds since 1970, surely has another sign after its next change."""
    return now - changed / 1e9 >= SECONDS
