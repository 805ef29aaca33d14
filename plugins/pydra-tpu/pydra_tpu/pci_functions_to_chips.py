"""Decides which PCI functions are one chip. Pure.

Sources: tpu-info, for which the functions of a slot are one chip; Ray and vLLM, whose users see two VFIO devices for
each 7x chip.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from pydra_tpu.hardware_types import Chip, ChipFunction


def build_chips(functions: Sequence[ChipFunction]) -> tuple[Chip, ...]:
    """The chips of these functions, in their order."""
    parts = _join_slots(_group_by_slot(functions))
    most = max(map(len, parts), default=0)
    return tuple(
        Chip(index=index, functions=part, missing_functions=most - len(part)) for index, part in enumerate(parts)
    )


def keep_places(before: Sequence[ChipFunction], found: Sequence[ChipFunction]) -> tuple[ChipFunction, ...]:
    """The functions that are there, and those that were: one that vanishes must not turn others into another mesh.

    A new one takes the place of one that is gone: the chip has come back at another address.
    """
    there = {one.address: one for one in found}
    known = {one.address for one in before}
    new = [one for one in found if one.address not in known]
    if new and all(one.address in there for one in before):
        return tuple(sorted(found, key=lambda one: one.address))
    places = [there.get(one.address) or (new.pop(0) if new else _mark_gone(one)) for one in before]
    return (*places, *new)


def _mark_gone(function: ChipFunction) -> ChipFunction:
    return replace(function, driver="", node="", node_exists=False, present=False)


def _group_by_slot(functions: Sequence[ChipFunction]) -> list[tuple[ChipFunction, ...]]:
    slots: dict[tuple[str, str], list[ChipFunction]] = {}
    for function in functions:
        slots.setdefault((function.slot, function.generation.name), []).append(function)
    return [tuple(slot) for slot in slots.values()]


def _join_slots(slots: list[tuple[ChipFunction, ...]]) -> list[tuple[ChipFunction, ...]]:
    """Where each slot has a part of a chip only, and there are more slots than a host has chips, neighbours are one.

    No source says which slots belong together; that they are neighbours is the least surprising order.
    """
    if not slots or any(len(slot) > 1 for slot in slots):
        return slots
    generation = slots[0][0].generation
    size = generation.functions
    if len(slots) in generation.host_chips or len(slots) % size:
        return slots
    return [tuple(one for slot in slots[first : first + size] for one in slot) for first in range(0, len(slots), size)]
