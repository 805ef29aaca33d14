"""Which fault comes when: follows from the seed alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple


class Planned(NamedTuple):
    """A fault, so many seconds after the start; `number` seeds what it chooses."""

    seconds: float
    kind: str
    number: int


def plan_faults(seed: int, kinds: Sequence[str], *, begin: float, end: float, period: float) -> tuple[Planned, ...]:
    """Faults about every `period` seconds; each kind once before any comes again, in an order of chance."""
    chance = random.Random(seed)
    planned: list[Planned] = []
    bag: list[str] = []
    at = begin
    while kinds and at < end:
        if not bag:
            bag = chance.sample(sorted(kinds), len(kinds))
        planned.append(Planned(at, bag.pop(), chance.randrange(2**32)))
        at += period * chance.uniform(0.5, 1.5)
    return tuple(planned)
