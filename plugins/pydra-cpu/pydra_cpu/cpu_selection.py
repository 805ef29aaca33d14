"""Chooses the CPUs of a claim from those that are free.

The choice shares as little as possible with others: one socket, one NUMA node, one level 3 cache, whole cores, in this
order, each time from the group with the least room to spare, so that large groups stay whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pydra_cpu.hardware_types import Cpu, by_cache, by_core, by_node, by_socket, group

_LEVELS: tuple[Callable[[Cpu], Any], ...] = (by_socket, by_node, by_cache, by_core)


def select_cpus(free: Iterable[Cpu], count: int) -> list[Cpu]:
    """Return `count` of the free CPUs; fewer if there are not so many."""
    return _select(list(free), count, _LEVELS)


def _select(free: Sequence[Cpu], count: int, levels: Sequence[Callable[[Cpu], Any]]) -> list[Cpu]:
    if count <= 0 or not free:
        return []
    if not levels:
        return list(free[:count])
    groups = sorted(group(free, levels[0]).items())
    roomy = [cpus for _, cpus in groups if len(cpus) >= count]
    if roomy:
        return _select(min(roomy, key=len), count, levels[1:])
    largest = max((cpus for _, cpus in groups), key=len)
    taken = {cpu.id for cpu in largest}
    return largest + _select([cpu for cpu in free if cpu.id not in taken], count - len(largest), levels)


def select_evenly(free: Iterable[Cpu], count: int, of: Callable[[Cpu], Any], among: Iterable[Any]) -> list[Cpu]:
    """Return `count` of the free CPUs, from each of these groups as many, or one more; fewer if one has not so many."""
    groups = group(free, of)
    rooms = {name: groups.get(name, []) for name in sorted(among)}
    least, more = divmod(count, len(rooms))
    chosen: list[Cpu] = []
    for place, name in enumerate(sorted(rooms, key=lambda one: (-len(rooms[one]), one))):
        chosen += select_cpus(rooms[name], least + (place < more))
    return chosen


def keep_whole_cores(free: Iterable[Cpu], every: Iterable[Cpu]) -> list[Cpu]:
    """Return the free CPUs of the cores of which all CPUs are free."""
    cores = group(every, by_core)
    return [cpu for cpus in group(free, by_core).values() if len(cpus) == len(cores[cpus[0].core]) for cpu in cpus]


def first_of_cores(cpus: Iterable[Cpu]) -> list[Cpu]:
    """Return one CPU of each core, the first."""
    return [same[0] for same in group(cpus, by_core).values()]
