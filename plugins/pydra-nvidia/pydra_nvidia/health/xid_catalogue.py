"""XIDs, the driver's codes of errors: what they mean, and which say nothing of the GPU, or pass by themselves.

Sources: NVIDIA's XID catalogue; the skip list of NVIDIA's device plugin and DRA driver; of XID 154
_gpuRefreshRecoveryActionInLock in the open kernel modules' gpu.c.
"""

from __future__ import annotations

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""Errors of applications: the GPU is as good as before. NVIDIA's drivers skip the same."""
PASSING_XIDS = frozenset({63, 92, 94})
"""The driver has dealt with them: a row remapped, corrected errors, an error contained to one application."""
RECOVERY_XID = 154
"""Follows any other XID that changes the recovery action, and comes again when that is over; it is an event too."""
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


def explain(xid: int) -> str:
    """`XID 79: the GPU has fallen off the bus`."""
    return f"XID {xid}: {MEANINGS[xid]}" if xid in MEANINGS else f"XID {xid}"
