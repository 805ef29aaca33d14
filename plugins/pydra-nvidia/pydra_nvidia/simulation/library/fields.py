"""nvmlDeviceGetFieldValues: many values at once, each with an answer of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from pydra_nvidia.nvml.errors import Code
from pydra_nvidia.simulation.library.arguments import Refusal, number, pointed
from pydra_nvidia.simulation.library.function_registry import Call, function, require

UNSIGNED_INT, UNSIGNED_LONG_LONG = 1, 3
Reader: TypeAlias = Callable[[Call, int], int]


@function("gpu", "nvmlDeviceGetFieldValues")
def _field_values(call: Call, count: Any, values: Any) -> None:
    array = pointed(values)
    now = time.time_ns() // 1000
    for position in range(number(count)):
        entry = array[position]
        entry.timestamp, entry.latencyUsec = now, 0
        try:
            wide, value = _read(call, entry.fieldId, entry.scopeId)
            entry.valueType = UNSIGNED_LONG_LONG if wide else UNSIGNED_INT
            entry.value.ullVal = value
            entry.nvmlReturn = int(Code.SUCCESS)
        except Refusal as refusal:
            entry.nvmlReturn = int(refusal.code)


def _read(call: Call, field: int, scope: int) -> tuple[bool, int]:
    model = call.board.model
    if field in model.unsupported_fields:
        raise Refusal(Code.NOT_SUPPORTED)
    if (fixed := model.fields.get(field)) is not None:
        return False, fixed
    if (narrow := _NARROW.get(field)) is not None:
        return False, narrow(call, scope)
    if (wide := _WIDE.get(field)) is not None:
        return True, wide(call, scope)
    raise Refusal(Code.NOT_SUPPORTED)


def _link(count: str) -> Reader:
    """A counter of the link `scope`; those of a simulated GPU are all of link 0."""

    def read(call: Call, scope: int) -> int:
        nvlink = call.board.model.nvlink
        if nvlink is None or scope >= nvlink.links:
            raise Refusal(Code.NOT_SUPPORTED)
        return int(getattr(call.gpu.counters, count)) if scope == 0 else 0

    return read


_NARROW: Mapping[int, Reader] = {
    184: lambda call, _scope: int(require(call.board.model.mig).resetless),
    230: lambda call, _scope: call.gpu.recovery,
}
"""Field ids of NVML_FI_DEV_* that backends read, those that are 32 bits wide."""

_WIDE: Mapping[int, Reader] = {
    161: _link("nvlink_replays"),
    162: _link("nvlink_recoveries"),
    163: _link("nvlink_crc"),
}
"""The same, those of 64 bits."""
