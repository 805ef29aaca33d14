"""Errors of NVLink, counted by the GPU for each link; here summed for each GPU, by kind.

Source: nvml.h. Before Hopper there are counters for each link; Hopper has field values for the data link layer, and
Blackwell others in their place. A kind that no link tells is left out.
"""

from __future__ import annotations

from typing import Any

from pydra_nvidia.hardware import Architecture, Gpu
from pydra_nvidia.nvml.calls import Nvml, read_fields

_COUNTERS = {"replay": 0, "recovery": 1, "crc_flit": 2, "crc_data": 3, "ecc_data": 4}
_FIELDS = {
    "replay": 161,
    "recovery": 162,
    "crc": 163,
    "malformed_packet": 206,
    "buffer_overrun": 207,
    "receive": 208,
    "link_integrity": 211,
    "transmit_discard": 212,
    "recovery_failed": 214,
    "effective": 219,
    "symbol": 221,
}


def read_link_errors(nvml: Nvml, handle: Any, gpu: Gpu) -> dict[str, float]:
    """The sum over the GPU's links for each kind."""
    links = range(gpu.links.total if gpu.links else 0)
    if Architecture.HOPPER <= gpu.architecture < Architecture.UNKNOWN:
        wanted = [(field, link) for field in _FIELDS.values() for link in links]
        values = read_fields(nvml, handle, wanted, subject=gpu.uuid)
        kinds = [kind for kind in _FIELDS for _ in links]
    else:
        values = tuple(
            nvml.look("nvmlDeviceGetNvLinkErrorCounter", handle, link, counter, subject=gpu.uuid)
            for counter in _COUNTERS.values()
            for link in links
        )
        kinds = [kind for kind in _COUNTERS for _ in links]
    sums: dict[str, float] = {}
    for kind, value in zip(kinds, values, strict=True):
        if value is not None:
            sums[kind] = sums.get(kind, 0.0) + value
    return sums
