"""What went wrong, and what it takes to be well again. Values and the meaning of XIDs; pure.

Sources: NVIDIA's XID catalogue; the skip list of NVIDIA's device plugin and DRA driver.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from pydra_nvidia.hardware_types import Placement

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""Errors of applications: the GPU is as good as before. NVIDIA's drivers skip the same."""

PASSING_XIDS = frozenset({63, 92, 94})
"""The driver has dealt with them: a row remapped, corrected errors, an error contained to one application."""

MEANINGS = {
    13: "graphics engine exception",
    31: "GPU memory page fault",
    43: "a channel was reset after an application's error",
    45: "an application's channels were cleaned up",
    48: "an uncorrectable memory error",
    61: "an internal microcontroller breakpoint",
    62: "an internal microcontroller halt",
    63: "a memory row was remapped",
    64: "remapping a memory row failed",
    68: "a video processor exception",
    69: "a graphics engine class error",
    74: "an NVLink error",
    79: "the GPU has fallen off the bus",
    92: "a high rate of corrected memory errors",
    94: "a memory error, contained to one application",
    95: "a memory error that was not contained",
    109: "a context switch timed out",
    119: "the GPU's system processor did not answer",
    120: "an error of the GPU's system processor",
    121: "an error of the chip-to-chip link",
    123: "an error of the power management unit",
    136: "training an NVLink failed",
    140: "an unrecovered memory error",
    143: "the GPU could not be initialised",
    149: "an NVLink error",
    154: "the GPU asks for a recovery action",
}


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """An XID on a GPU, or on the partition at `place`; `first` and `last` in seconds since the epoch."""

    gpu: str
    xid: int
    place: Placement | None = None
    first: float
    last: float
    count: int = 1


def is_ignored(xid: int, *, ignored: Collection[int], fatal: Collection[int]) -> bool:
    """Whether the code says nothing about the GPU's health."""
    return xid not in fatal and (xid in APPLICATION_XIDS or xid in ignored)


def is_over(incident: Incident, *, now: float, quiet_period: float, recovery: int | None, ignored: bool) -> bool:
    """Whether the incident no longer counts.

    Quiet is needed in any case. Beyond that the driver's word is taken: no recovery action is wanted. A driver too
    old to say so is believed for what passes by itself only; anything else lasts until the GPU is known to be reset.
    """
    if now - incident.last < quiet_period:
        return False
    return ignored or recovery == 0 or (recovery is None and incident.xid in PASSING_XIDS)


def explain(incident: Incident) -> str:
    """`XID 79: the GPU has fallen off the bus`."""
    meaning = MEANINGS.get(incident.xid)
    return f"XID {incident.xid}" + (f": {meaning}" if meaning else "")
