"""Pure geometry of a TPU mesh: the chips of a host, the sub-slices that it can be cut into, and where each chip is.

Shapes and coordinates are those of ICI, in chips: x, y, z. A host's chips are counted row by row, x first, as JAX
counts the devices of a process.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from typing import NamedTuple, TypeAlias

import msgspec

_TOPOLOGY = re.compile(r"[1-9][0-9]{0,2}(x[1-9][0-9]{0,2}){1,2}")

Coordinates: TypeAlias = tuple[int, int, int]


class Bounds(NamedTuple):
    """The extent of a mesh: how many chips, hosts or processes it has in each dimension, each at least 1."""

    x: int
    y: int
    z: int = 1

    @property
    def size(self) -> int:
        """How many there are."""
        return math.prod(self)

    def __str__(self) -> str:
        """As environment variables of libtpu have it: `2,4,1`."""
        return ",".join(map(str, self))


HOST_BOUNDS = {1: Bounds(1, 1), 2: Bounds(1, 2), 4: Bounds(2, 2), 8: Bounds(2, 4)}
"""The shape of so many chips of one host: of a part, and of a whole host with another number of chips than two.

Source: the tables in Google's DRA driver, JAX and Ray. That of two chips is theirs too: which of its two dimensions the
chips 0 and 1 of a host differ in is documented nowhere.
"""


class SubSlice(msgspec.Struct, frozen=True, kw_only=True):
    """Chips of one host that can form a mesh of their own: their indices on the host, ascending, and its shape."""

    chips: tuple[int, ...]
    bounds: Bounds


def list_sub_slices(count: int) -> tuple[SubSlice, ...]:
    """All sub-slices of a host with `count` chips, which must be a key of HOST_BOUNDS: the whole host, then its halves.

    Halves are aligned: chips 0 to 3 and 4 to 7 of eight, each of which has a NUMA node of its own.
    """
    return tuple(
        SubSlice(chips=tuple(range(first, first + size)), bounds=HOST_BOUNDS[size])
        for size in sorted(HOST_BOUNDS, reverse=True)
        if size <= count
        for first in range(0, count, size)
    )


def find_sub_slice(chips: Collection[int], count: int) -> SubSlice | None:
    """The sub-slice of a host with `count` chips that consists of these chips; None if they form none."""
    wanted = tuple(sorted(chips))
    return next((one for one in list_sub_slices(count) if one.chips == wanted), None)


def locate(index: int, bounds: Bounds) -> Coordinates:
    """Where the chip with this index is in a mesh of this shape."""
    row, x = divmod(index, bounds.x)
    z, y = divmod(row, bounds.y)
    return x, y, z


def divide_bounds(whole: Bounds, part: Bounds) -> Bounds | None:
    """How many parts fit into the whole in each dimension; None if they do not fill it."""
    if any(length % unit for length, unit in zip(whole, part, strict=True)):
        return None
    return Bounds(*(length // unit for length, unit in zip(whole, part, strict=True)))


def parse_topology(text: str) -> Bounds:
    """The shape in `2x4` or `2x2x1`. Raises ValueError for what is not a shape."""
    if not _TOPOLOGY.fullmatch(text):
        raise ValueError(f"{text[:64]!r} is not a topology; it must be two or three numbers, such as 2x4 or 2x2x1")
    return Bounds(*map(int, text.split("x")))


def format_topology(bounds: Bounds, dimensions: int) -> str:
    """The shape as Google writes it for a generation with so many dimensions: `2x4` or `2x2x1`."""
    return "x".join(map(str, bounds[:dimensions]))
