"""Errors of the memory: ECC counters, remapped rows and retired pages."""

from __future__ import annotations

from typing import Any

from pydra_nvidia.nvml.errors import Code
from pydra_nvidia.simulation.library.arguments import Refusal, number, pointed, put
from pydra_nvidia.simulation.library.function_registry import Call, function, numbers, require

UNCORRECTED, AGGREGATE = 1, 1

numbers(
    "gpu",
    {
        "nvmlDeviceGetRetiredPagesPendingStatus": lambda call: require(
            call.gpu.counters.retirement_pending if call.board.model.page_retirement else None
        ),
    },
)


@function("gpu", "nvmlDeviceGetTotalEccErrors")
def _total_ecc_errors(call: Call, kind: Any, counter: Any, reference: Any) -> None:
    _needs(call.board.model.ecc)
    error = "uncorrected" if number(kind) == UNCORRECTED else "corrected"
    since = "" if number(counter) == AGGREGATE else "_volatile"
    put(reference, getattr(call.gpu.counters, f"ecc_{error}{since}"))


@function("gpu", "nvmlDeviceGetRemappedRows")
def _remapped_rows(call: Call, corrected: Any, uncorrected: Any, pending: Any, failed: Any) -> None:
    _needs(call.board.model.row_remapping)
    counters = call.gpu.counters
    put(corrected, counters.remapped_corrected)
    put(uncorrected, counters.remapped_uncorrected)
    put(pending, int(counters.remap_pending))
    put(failed, int(counters.remap_failed))


@function("gpu", "nvmlDeviceGetRetiredPages")
def _retired_pages(call: Call, cause: Any, count: Any, pages: Any) -> None:
    _needs(call.board.model.page_retirement)
    counters = call.gpu.counters
    found = counters.retired_double if number(cause) else counters.retired_single
    room = number(pointed(count))
    put(count, found)
    if pages is None or room < found:
        if found:
            raise Refusal(Code.INSUFFICIENT_SIZE)
        return
    for position in range(found):
        pages[position] = 0x1000 * (position + 1)


def _needs(present: bool) -> None:
    if not present:
        raise Refusal(Code.NOT_SUPPORTED)
