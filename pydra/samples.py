"""Value types for samples: what a backend's `measure` reports for `/metrics`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One measured number for `/metrics`: `pydra_<backend>_<name>{device=..., **labels} value`."""

    name: str
    """By the conventions of Prometheus: base units (`_bytes`, `_seconds`, `_celsius`), and at the end `_total` if it is
    a counter, which only grows until the backend's process ends; others are gauges.
    """
    value: float
    """The current value."""
    help: str = ""
    """What is measured, in a sentence; the same for all samples of a name."""
    device: str = ""
    """The device that it belongs to; empty for the whole node. `discover` need not list it: it may be a GPU of which
    claims get partitions only.
    """
    labels: Mapping[str, str] = {}
    """Further labels."""


def list_labels(sample: Sample) -> Mapping[str, str]:
    """Return all labels of a sample, in order; the device is one, if there is any."""
    device = {"device": sample.device} if sample.device else {}
    return {**device, **dict(sorted(sample.labels.items()))}


def find_left_out(samples: Sequence[Sample]) -> Mapping[int, str]:
    """Return which samples, by their place, `/metrics` cannot show beside those before them, and why."""
    names: dict[str, tuple[str, ...]] = {}
    seen: set[tuple[str, ...]] = set()
    left_out: dict[int, str] = {}
    for place, sample in enumerate(samples):
        labels = list_labels(sample)
        first = names.setdefault(sample.name, tuple(labels))
        series = (sample.name, *labels.values())
        if tuple(labels) != first:
            left_out[place] = f"has the labels {_list(labels)}, and the first of its name {_list(first)}"
        elif series in seen:
            found = _list(f"{name}={text}" for name, text in labels.items())
            left_out[place] = f"is there twice with the labels {found}"
        seen.add(series)
    return left_out


def _list(labels: Iterable[str]) -> str:
    return ", ".join(labels) or "none"
