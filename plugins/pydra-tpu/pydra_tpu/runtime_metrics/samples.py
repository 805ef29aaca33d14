"""Decides which samples the answers of runtimes become, and which chips these are of. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from pydra import Sample
from pydra_tpu.hardware_types import Host


class RuntimeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What one runtime says, by its own numbers of its devices: bytes of memory by core, and percent by chip."""

    port: int
    answered: bool = False
    memory_total: Mapping[int, float] = {}
    memory_used: Mapping[int, float] = {}
    duty_percent: Mapping[int, float] = {}


class HeldChips(msgspec.Struct, frozen=True, kw_only=True):
    """The chips that a claim holds, and the ports that its config gives to its runtimes, if it does."""

    chips: tuple[int, ...]
    ports: tuple[int, ...] = ()


def build_samples(answers: Sequence[RuntimeAnswer], host: Host, held: Sequence[HeldChips]) -> list[Sample]:
    """The samples of all runtimes of this host, of which the claims hold `held`."""
    return [sample for answer in answers for sample in _build(answer, _find_chips(answer, answers, host, held), host)]


def _build(answer: RuntimeAnswer, chips: Sequence[int], host: Host) -> Iterator[Sample]:
    port = {"port": str(answer.port)}
    text = "Whether the TPU runtime on this port answered in time."
    yield Sample(name="runtime_answered", value=float(answer.answered), help=text, labels=port)
    cores = host.chips[0].generation.runtime_devices if host.chips else 1
    for name, text, values in (
        ("hbm_total_bytes", "Memory that the TPU runtime has of a chip.", _by_chip(answer.memory_total, cores)),
        ("hbm_used_bytes", "Memory of a chip that is in use.", _by_chip(answer.memory_used, cores)),
        ("duty_cycle_ratio", "Share of the time in which a chip was at work.", _by_chip(answer.duty_percent, 1, 100)),
    ):
        # A runtime has chips of this host only. Values of more chips are wrong, and would fill the agent's metrics.
        for place, value in enumerate(values if len(values) <= len(host.chips) else ()):
            device = f"chip-{chips[place]}" if len(chips) == len(values) else ""
            yield Sample(name=name, value=value, help=text, device=device, labels={**port, "chip": str(place)})


def _by_chip(values: Mapping[int, float], cores: int, unit: int = 1) -> list[float]:
    """One value for each chip, in the order of the runtime's numbers; none where cores are missing.

    Source: tpu-info sorts by these numbers too; those of a worker of a larger slice do not begin at 0.
    """
    numbers = sorted(values)
    if len(numbers) % cores or not all(math.isfinite(value) for value in values.values()):
        return []
    return [
        sum(values[number] for number in numbers[first : first + cores]) / unit
        for first in range(0, len(numbers), cores)
    ]


def _find_chips(
    answer: RuntimeAnswer, answers: Sequence[RuntimeAnswer], host: Host, held: Sequence[HeldChips]
) -> Sequence[int]:
    """The runtime's chips, in its order; none where it could have others: no source says which are whose.

    A runtime with as many chips as the host has them all. With fewer, they are those of the only claim, if there is no
    other runtime; or of the only claim whose config names the port, if each claim's config names ports. In both cases
    nobody may use a chip without a claim.
    """
    count = len(answer.duty_percent)
    if count == len(host.chips):
        return host.runtime_order
    if any(chip.unclaimed_users for chip in host.chips):
        return ()
    owners = held if len(held) == len(answers) == 1 else ()
    if all(one.ports for one in held):
        owners = [one for one in held if answer.port in one.ports]
    if len(owners) != 1 or len(owners[0].chips) != count:
        return ()
    return [index for index in host.runtime_order if index in owners[0].chips]
