"""What only the library reports about a GPU: the state of its xGMI links, and how long its clocks were held down.

Absent values are the string N/A, which is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from pydra_amd.amdsmi.library import Amdsmi, AmdsmiError

THERMAL = ("prochot", "socket", "regulator", "memory")
"""Causes of throttling that are no part of normal use, unlike `power`."""

_COUNTERS = {
    "power": "ppt_residency_acc",
    "prochot": "prochot_residency_acc",
    "socket": "socket_thm_residency_acc",
    "regulator": "vr_thm_residency_acc",
    "memory": "hbm_thm_residency_acc",
}
_STATES = {"U": "up", "D": "down", "X": "disabled"}


class GpuReading(msgspec.Struct, frozen=True, kw_only=True):
    """`links` has the state of each xGMI link (`up`, `down`, `disabled`), empty where it is not known.

    `throttled` counts, by cause, how often the firmware held the clocks down, since the driver was loaded.
    """

    links: tuple[str, ...] = ()
    throttled: Mapping[str, int] = {}


def read_gpu(library: Amdsmi, handle: Any) -> GpuReading:
    """Of one GPU; what it does not support is left out. Raises AmdsmiError: the library as a whole does not answer."""
    status = _ask(library, "amdsmi_get_gpu_xgmi_link_status", handle).get("status", ())
    metrics = _ask(library, "amdsmi_get_gpu_metrics_info", handle)
    links = tuple(_STATES[one] for one in status if one in _STATES)
    return GpuReading(
        # None is up: before ROCm 7.12 that is also what the library says where a guest may not see the state.
        links=links if "up" in links else (),
        throttled={cause: value for cause, key in _COUNTERS.items() if isinstance(value := metrics.get(key), int)},
    )


def _ask(library: Amdsmi, name: str, handle: Any) -> Mapping[str, Any]:
    try:
        answer = library.call(name, handle)
    except AmdsmiError as error:
        if error.is_closed:
            raise
        return {}
    return answer if isinstance(answer, dict) else {}
