"""Which GPUs are lost: they were usable once, and are not now, although nobody took them from the driver. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from pydra_amd.hardware_types import LostGpu, Reading


def add_lost(found: Reading, before: Reading, is_on_bus: Callable[[str], bool]) -> Reading:
    """The reading with the GPUs that are lost since the one before in their places: the others keep their numbers.

    One that had a mode and reports none now, as in a reset, is lost, too: it would seem to be of another kind.
    """
    had = {gpu.address for gpu in before.known if gpu.mode}
    silent = {gpu.address for gpu in found.gpus if gpu.mode is None and gpu.address in had}
    problems = {**found.problems, **dict.fromkeys(silent, "the driver no longer reports its partition mode")}
    found = replace(found, gpus=tuple(gpu for gpu in found.gpus if gpu.address not in silent), problems=problems)
    lost = tuple(_find_lost(found, before, is_on_bus))
    gone = {one.gpu.address for one in lost}
    merged = replace(
        found, lost=lost, problems={address: why for address, why in problems.items() if address not in gone}
    )
    places = {gpu.address: index for index, gpu in enumerate(merged.known)}
    return replace(
        merged,
        gpus=tuple(replace(gpu, index=places[gpu.address]) for gpu in merged.gpus),
        lost=tuple(replace(one, gpu=replace(one.gpu, index=places[one.gpu.address])) for one in lost),
    )


def _find_lost(found: Reading, before: Reading, is_on_bus: Callable[[str], bool]) -> Iterator[LostGpu]:
    """A function that is on the bus, and not the driver's any more, was taken away."""
    for gpu in before.known:
        if found.find(gpu.address) is not None:
            continue
        if gpu.address in found.problems:
            yield LostGpu(gpu=gpu, why=found.problems[gpu.address])
        elif not is_on_bus(gpu.address):
            yield LostGpu(gpu=gpu, why="it is gone from the PCI bus")
