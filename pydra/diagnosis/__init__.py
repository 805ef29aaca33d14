"""What `pydra doctor`, `explain`, `slices`, `checkpoint` and `cdi` find out and repair, with the agent's own code."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

import msgspec


class Level(Enum):
    """How bad a finding is. `unknown` means that the check could not be made, not that something is wrong."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"
    UNKNOWN = "unknown"


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """One fact. `advice` says what to do where something has to be done."""

    subject: str
    level: Level
    found: str
    advice: str = ""


def has_problems(findings: Iterable[Finding]) -> bool:
    """Return whether one of them is a problem."""
    return any(finding.level is Level.PROBLEM for finding in findings)
