"""What goes wrong when a simulated machine's modes are changed, from files beside its tree.

faults/0000:05:00.0     one line for each change of its mode or driver that is tried, taken one by one
faults/driver           one line for each time that the driver is unloaded or loaded

EIO, EPERM, ...         the driver refuses with this error
keep                    it accepts the change, and does nothing; loaded, the GPUs have the memory mode of before
slow                    loading the driver takes longer than anybody waits, and ends when it is loaded again
stale                   KFD goes on showing the partitions of before
fall                    the GPU falls off the bus
-                       nothing
"""

from __future__ import annotations

import os

NONE, KEEP, STALE, FALL, SLOW = "-", "keep", "stale", "fall", "slow"
MODULE_FAULTS = "driver"


def take_fault(root: str, what: str) -> str:
    """What is to go wrong with this change of the GPU at an address; `root` is that of the machine's tree."""
    path = os.path.join(os.path.dirname(root), "faults", what)
    try:
        with open(path, encoding="utf-8") as file:
            fault, *others = file.read().split() or [NONE]
    except FileNotFoundError:
        return NONE
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(others))
    return fault
