"""NVML's errors as ours: the code, its name, the call, and what can be done. Pure; pynvml's own are not hashable.

Source: nvml.h, nvmlReturn_t.
"""

from __future__ import annotations

from enum import IntEnum

from pydra import ClaimError


class Code(IntEnum):
    """nvmlReturn_t."""

    SUCCESS = 0
    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    ALREADY_INITIALIZED = 5
    NOT_FOUND = 6
    INSUFFICIENT_SIZE = 7
    INSUFFICIENT_POWER = 8
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    IRQ_ISSUE = 11
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    CORRUPTED_INFOROM = 14
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    OPERATING_SYSTEM = 17
    LIB_RM_VERSION_MISMATCH = 18
    IN_USE = 19
    MEMORY = 20
    NO_DATA = 21
    VGPU_ECC_NOT_SUPPORTED = 22
    INSUFFICIENT_RESOURCES = 23
    FREQ_NOT_SUPPORTED = 24
    ARGUMENT_VERSION_MISMATCH = 25
    DEPRECATED = 26
    NOT_READY = 27
    GPU_NOT_FOUND = 28
    INVALID_STATE = 29
    RESET_TYPE_NOT_SUPPORTED = 30
    UNKNOWN = 999


_CODES = {code.value: code for code in Code}

UNAVAILABLE = frozenset(
    {Code.NOT_SUPPORTED, Code.FUNCTION_NOT_FOUND, Code.NO_DATA, Code.ARGUMENT_VERSION_MISMATCH, Code.DEPRECATED}
)
"""This hardware or driver does not tell: the field is left out."""

LOST = frozenset({Code.GPU_IS_LOST, Code.RESET_REQUIRED})
"""The GPU does nothing until it is reset or replaced."""

STALE = frozenset({Code.UNINITIALIZED, Code.DRIVER_NOT_LOADED, Code.LIBRARY_NOT_FOUND, Code.LIB_RM_VERSION_MISMATCH})
"""The session is of no use: the driver was unloaded, replaced, or is not there yet."""

PASSING = frozenset({Code.TIMEOUT, Code.IN_USE, Code.NOT_READY})
"""Worth another try."""

_ADVICE = {
    Code.NO_PERMISSION: "the backend needs root, or CAP_SYS_ADMIN, for this",
    Code.DRIVER_NOT_LOADED: "the NVIDIA kernel driver is not loaded on this node",
    Code.LIBRARY_NOT_FOUND: "libnvidia-ml.so.1 was not found; PYDRA_NVIDIA_DRIVER_ROOT says where the driver is",
    Code.LIB_RM_VERSION_MISMATCH: "the driver's libraries and kernel module differ in version; reload the module, or"
    " reboot the node",
    Code.FUNCTION_NOT_FOUND: "the installed driver is too old for this; update it",
    Code.GPU_IS_LOST: "the GPU has fallen off the bus; reset it or reboot the node",
    Code.RESET_REQUIRED: "the GPU must be reset",
    Code.IN_USE: "processes still use the GPU; stop them (dcgm, nvsm and monitoring agents count too)",
    Code.INSUFFICIENT_RESOURCES: "the driver has run out of a resource other than memory; end processes that use"
    " the GPU, or reset it",
    Code.NOT_SUPPORTED: "this GPU or driver does not support it",
}

_NO_ROOM = "the GPU has no room for it: the place is taken, or compute slices or engines are used up"
_CREATING = frozenset({"nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceCreateComputeInstance"})
"""Calls for which INSUFFICIENT_RESOURCES is about room on the GPU; for any other it is about the driver."""


class NvmlError(ClaimError):
    """NVML refused `call`. `subject` says for which GPU or partition, empty for the whole node."""

    reason = "NvmlError"

    def __init__(self, code: int, call: str, subject: str = "") -> None:
        self.code = code
        self.call = call
        self.subject = subject
        where = f" for {subject}" if subject else ""
        known = _CODES.get(code, Code.UNKNOWN)
        no_room = known is Code.INSUFFICIENT_RESOURCES and call in _CREATING
        text = _NO_ROOM if no_room else _ADVICE.get(known, "")
        advice = f": {text}" if text else ""
        super().__init__(f"{call}{where} failed with NVML_ERROR_{known.name} ({code}){advice}")


def code_name(code: int) -> str:
    """`IN_USE` for 19; `UNKNOWN` for what NVML adds later."""
    return _CODES.get(code, Code.UNKNOWN).name
