"""Value types for samples: what a backend's `measure` reports for `/metrics`."""

from __future__ import annotations

from collections.abc import Mapping

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
