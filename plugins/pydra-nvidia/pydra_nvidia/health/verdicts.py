"""What health means for devices. Values only."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from pydra import Health, Taint
from pydra_nvidia.hardware import Placement


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """How a piece of hardware is, and taints that only inform (effect None)."""

    health: Health = Health()
    taints: tuple[Taint, ...] = ()


WELL = Verdict()


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """Verdicts by GPU UUID, by partition (its GPU's UUID and place), and by PCI address. What is missing is well."""

    gpus: Mapping[str, Verdict] = {}
    partitions: Mapping[tuple[str, Placement], Verdict] = {}
    functions: Mapping[str, Verdict] = {}
