"""Counters by which a scheduler gives out partitions of one mode of a GPU, and never of two. Pure.

There is a counter for each partition of each mode, but for the mode with most partitions of several. It holds `FULL`.
The partition that it is named after takes all of it; a partition of another mode takes its share: all partitions of
that mode together take no more than there is. So partitions of one mode fit beside each other, and any two of different
modes do not, because one of them needs all of a counter of which the other has a share. What exists already has a
counter each, which only passthrough needs: the whole function takes all of every counter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydra import CounterConsumption, CounterSet
from pydra_amd.devices import Offered, name_counter, name_counter_set
from pydra_amd.hardware_types import Gpu, Mode

FULL = 24
"""What each counter holds: it can be shared by 1, 2, 3, 4, 6 or 8."""


def build_counter_set(devices: Sequence[Offered]) -> CounterSet:
    """The counter set of the GPU whose devices these are, all of them; 21 counters at most."""
    return CounterSet(name=name_counter_set(devices[0].gpu), counters=_list_amounts(devices))


def build_whole_consumption(gpu: Gpu, devices: Sequence[Offered]) -> CounterConsumption:
    """What takes the GPU, whose devices these are, from all of them."""
    return CounterConsumption(counter_set=name_counter_set(gpu), counters=_list_amounts(devices))


def build_consumption(device: Offered, devices: Sequence[Offered]) -> CounterConsumption:
    """What a device takes of its GPU's counter set, where `devices` are all of that GPU."""
    taken = {
        name_counter(mode, index): FULL if mode == device.mode or not device.chosen else FULL // device.count
        for mode, index in _list_counters(devices)
        if index == device.index or (device.chosen and mode != device.mode)
    }
    return CounterConsumption(counter_set=name_counter_set(device.gpu), counters=taken)


def _list_amounts(devices: Sequence[Offered]) -> dict[str, int]:
    return {name_counter(mode, index): FULL for mode, index in _list_counters(devices)}


def _list_counters(devices: Sequence[Offered]) -> Iterator[tuple[Mode | None, int]]:
    if not devices[0].chosen:
        yield from ((None, one.index) for one in devices)
        return
    is_one_mode = len({one.mode for one in devices}) == 1  # then only passthrough needs them, and the API wants some
    without = None if is_one_mode else max(devices, key=lambda one: one.count).mode
    for one in devices:
        if one.mode is not None and one.mode != without:
            yield one.mode, one.index
