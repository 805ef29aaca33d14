"""How a GPU is now, as the driver says it without being asked for events."""

from __future__ import annotations

from typing import Any

from pydra_nvidia.hardware import Condition
from pydra_nvidia.nvml.calls import Nvml
from pydra_nvidia.nvml.fields import read_fields

RECOVERY_FIELD = 230
XID_EVENT = 0x8
_UNCORRECTED, _VOLATILE = 1, 0


def read_condition(nvml: Nvml, handle: Any, *, monitored: bool, subject: str) -> Condition:
    """What this GPU's generation and driver tell; the rest is None."""
    (recovery,) = read_fields(nvml, handle, (RECOVERY_FIELD,), subject=subject)
    rows = nvml.look("nvmlDeviceGetRemappedRows", handle, subject=subject)
    retirement = nvml.look("nvmlDeviceGetRetiredPagesPendingStatus", handle, subject=subject)
    return Condition(
        recovery=None if recovery is None else int(recovery),
        ecc_uncorrected=nvml.look("nvmlDeviceGetTotalEccErrors", handle, _UNCORRECTED, _VOLATILE, subject=subject),
        remap_pending=None if rows is None else bool(rows[2]),
        remap_failed=None if rows is None else bool(rows[3]),
        retirement_pending=None if retirement is None else bool(retirement),
        monitored=monitored,
    )


def read_monitored(nvml: Nvml, handle: Any, *, subject: str) -> bool:
    """Whether the GPU can report XIDs."""
    return bool((nvml.look("nvmlDeviceGetSupportedEventTypes", handle, subject=subject) or 0) & XID_EVENT)
