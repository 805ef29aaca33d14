"""The numbers that simulated accelerators report. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from pydra import Sample
from pydra_sim.hardware import Part
from pydra_sim.state import Active

IDLE_CELSIUS, BUSY_CELSIUS = 35.0, 55.0
UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "": 1}


def build_samples(part: Part, active: Sequence[Active]) -> tuple[Sample, ...]:
    """How warm an accelerator is and how much memory its claims have taken, from what is at work on it."""
    return (
        Sample(
            name="temperature_celsius",
            help="Temperature of the accelerator.",
            device=part.accelerator,
            value=BUSY_CELSIUS if active else IDLE_CELSIUS,
        ),
        Sample(
            name="memory_used_bytes",
            help="Memory of the accelerator that claims have taken.",
            device=part.accelerator,
            value=sum(_bytes(share.memory) for share in active),
        ),
    )


def _bytes(quantity: str) -> float:
    number = quantity.rstrip("KMGTki")
    return float(number) * UNITS.get(quantity[len(number) :], 1)
