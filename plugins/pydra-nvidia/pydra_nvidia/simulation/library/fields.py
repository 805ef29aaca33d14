"""nvmlDeviceGetFieldValues: many values at once, each with an answer of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from pydra_nvidia.nvml.errors import Code
from pydra_nvidia.simulation.library.arguments import Refusal, number, pointed
from pydra_nvidia.simulation.library.nvlink import active_links
from pydra_nvidia.simulation.library.sensors import ecc_errors
from pydra_nvidia.simulation.library.symbols import Call, gpu
from pydra_nvidia.simulation.model import MigModel, NvLinkModel

UNSIGNED_INT, UNSIGNED_LONG_LONG = 1, 3
RESET_STATUS_DEPRECATED = 570
Reader: TypeAlias = Callable[[Call, int], int]


@gpu("nvmlDeviceGetFieldValues")
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


def _mig(call: Call) -> MigModel:
    if call.board.model.mig is None:
        raise Refusal(Code.NOT_SUPPORTED)
    return call.board.model.mig


def _nvlink(call: Call, scope: int = 0) -> NvLinkModel:
    nvlink = call.board.model.nvlink
    if nvlink is None or scope >= nvlink.links:
        raise Refusal(Code.NOT_SUPPORTED)
    return nvlink


def _total(count: str) -> Reader:
    """A counter of all links together."""

    def read(call: Call, _scope: int) -> int:
        _nvlink(call)
        return int(getattr(call.gpu.counters, count))

    return read


def _link(count: str) -> Reader:
    """A counter of the link `scope`; those of a simulated GPU are all of link 0."""

    def read(call: Call, scope: int) -> int:
        _nvlink(call, scope)
        return int(getattr(call.gpu.counters, count)) if scope == 0 else 0

    return read


def _remapped(count: str) -> Reader:
    def read(call: Call, _scope: int) -> int:
        if not call.board.model.row_remapping:
            raise Refusal(Code.NOT_SUPPORTED)
        return int(getattr(call.gpu.counters, count))

    return read


def _retired(count: str) -> Reader:
    def read(call: Call, _scope: int) -> int:
        if not call.board.model.page_retirement:
            raise Refusal(Code.NOT_SUPPORTED)
        return int(getattr(call.gpu.counters, count))

    return read


def _recovery(call: Call, _scope: int) -> int:
    if not call.board.model.recovery_action:
        raise Refusal(Code.NOT_SUPPORTED)
    return call.gpu.recovery


def _reset_status(call: Call, _scope: int) -> int:
    """The recovery action took its place: R570 calls it deprecated."""
    if int(call.view.driver_version().partition(".")[0]) >= RESET_STATUS_DEPRECATED:
        raise Refusal(Code.DEPRECATED)
    return int(call.gpu.reset_required)


def _link_state(call: Call, scope: int) -> int:
    _nvlink(call, scope)
    return int(scope in active_links(call))


def _link_version(call: Call, scope: int) -> int:
    return _nvlink(call, scope).version


_NARROW: Mapping[int, Reader] = {
    31: _retired("retirement_pending"),
    91: lambda call, _scope: _nvlink(call).links,
    94: lambda call, _scope: call.gpu.counters.pcie_replays,
    142: _remapped("remapped_corrected"),
    143: _remapped("remapped_uncorrected"),
    144: _remapped("remap_pending"),
    145: _remapped("remap_failed"),
    165: _link_state,
    166: _link_version,
    184: lambda call, _scope: int(_mig(call).resetless),
    185: lambda call, _scope: call.gpu.gauges.power,
    186: lambda call, _scope: call.gpu.gauges.power,
    188: lambda call, _scope: call.board.model.power_limit * 1000,
    189: lambda call, _scope: call.board.model.power_limit * 1000,
    190: lambda call, _scope: call.board.model.power_limit * 1000,
    199: lambda call, _scope: int(_mig(call).tells_profiles_when_off),
    226: _reset_status,
    230: _recovery,
}
"""Field ids of NVML_FI_DEV_*, those that are 32 bits wide."""

_WIDE: Mapping[int, Reader] = {
    3: lambda call, _scope: ecc_errors(call, uncorrected=False, aggregate=False),
    4: lambda call, _scope: ecc_errors(call, uncorrected=True, aggregate=False),
    5: lambda call, _scope: ecc_errors(call, uncorrected=False, aggregate=True),
    6: lambda call, _scope: ecc_errors(call, uncorrected=True, aggregate=True),
    29: _retired("retired_single"),
    30: _retired("retired_double"),
    38: _total("nvlink_crc"),
    45: _total("nvlink_crc"),
    52: _total("nvlink_replays"),
    59: _total("nvlink_recoveries"),
    83: lambda call, _scope: call.gpu.gauges.power * 60,
    161: _link("nvlink_replays"),
    162: _link("nvlink_recoveries"),
    163: _link("nvlink_crc"),
}
"""The same, those of 64 bits."""
