"""How a slice's place in its pool stands in its name: `0000a-gpu.example.com-node1-x7k2p` has index 10. Pure."""

from __future__ import annotations

import re

LEAST_WIDTH = 5


def index_width(count: int) -> int:
    """Hexadecimal digits for the indexes of `count` slices."""
    return max(LEAST_WIDTH, len(f"{max(count - 1, 0):x}"))


def build_generate_name(index: int, count: int, driver: str, owner: str) -> str:
    """`<index>-<driver>-<owner>-`; the API server adds five characters (and cuts what is too long before them).

    The scheduler tries slices in the order of their names, so the index keeps the pool's order.
    """
    parts = [f"{index:0{index_width(count)}x}", driver, *([owner] if owner else [])]
    return "-".join(parts) + "-"


def parse_index(name: str, count: int) -> int | None:
    """The index in a slice's name when the pool has `count` slices; None when it has none of that width."""
    match = re.match(rf"([0-9a-f]{{{index_width(count)}}})-", name)
    return int(match[1], 16) if match else None
