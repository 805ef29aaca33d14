"""What libtpu's SDK says of links, throttling and cores, parsed: lists of texts. Pure.

Source of the formats: the library's own descriptions of these metrics.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from pydra import Sample
from pydra_tpu.hardware_types import Chip

_LINK = re.compile(r"tray(\d{1,4})\.chip(\d{1,4})\.(\S{1,64}): (\d{1,2})")
_THROTTLE = re.compile(r"(\d{1,4})-(\d{1,2})")


class SdkMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """What the library answered: each metric's texts. Empty as long as nobody serves them."""

    ici_link_health: tuple[str, ...] = ()
    tpu_throttle_score: tuple[str, ...] = ()
    tensorcore_util: tuple[str, ...] = ()


def add_links(chips: Sequence[Chip], metrics: SdkMetrics) -> tuple[Chip, ...]:
    """The chips with the states of their links and how far each is slowed down, as far as that is known.

    The library numbers chips by trays, or devices from 0. Which are this host's is certain only where there are as many
    as the host has, in order; else nothing is added.
    """
    links = _read_links(metrics.ici_link_health)
    throttle = _read_throttle(metrics.tpu_throttle_score)
    return tuple(
        replace(
            chip,
            links=links[place] if len(links) == len(chips) else {},
            throttle=throttle[place] if len(throttle) == len(chips) else None,
        )
        if chip.present
        else chip
        for place, chip in enumerate(chips)
    )


def build_sdk_samples(chips: Sequence[Chip], metrics: SdkMetrics) -> Iterator[Sample]:
    """The same, and the use of each TensorCore, as samples; nothing where nobody serves them."""
    for chip in chips:
        device = f"chip-{chip.index}"
        for link, state in sorted(chip.links.items()):
            text = "State of an ICI link: 0 healthy, 1 to 5 transient, 6 to 9 persistent trouble, 10 unusable."
            yield Sample(name="ici_link_state", value=state, help=text, device=device, labels={"link": link})
        if chip.throttle is not None:
            text = "Share by which a chip is slowed down."
            yield Sample(name="throttle_ratio", value=chip.throttle / 10, help=text, device=device)
    uses = [value for text in metrics.tensorcore_util if (value := _read_percent(text)) is not None]
    cores = chips[0].generation.cores if chips else 1
    if chips and len(uses) == len(chips) * cores:
        for place, use in enumerate(uses):
            index, core = divmod(place, cores)
            text = "Use of a TensorCore."
            labels = {"core": str(core)}
            yield Sample(name="tensorcore_use_ratio", value=use / 100, help=text, device=f"chip-{index}", labels=labels)


def _read_links(texts: Sequence[str]) -> Sequence[Mapping[str, int]]:
    """By chip, in the order of trays and chips in them."""
    found: dict[tuple[int, int], dict[str, int]] = {}
    for match in filter(None, map(_LINK.fullmatch, texts)):
        tray, chip, link, state = match.groups()
        if int(state) <= 10:
            found.setdefault((int(tray), int(chip)), {})[link] = int(state)
    return [found[place] for place in sorted(found)]


def _read_throttle(texts: Sequence[str]) -> Sequence[int]:
    matches = [match.groups() for match in map(_THROTTLE.fullmatch, texts) if match]
    return [score for _, score in sorted((int(one), int(score)) for one, score in matches) if score <= 10]


def _read_percent(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value <= 100 else None
