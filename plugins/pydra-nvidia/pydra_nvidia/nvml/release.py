"""What keeps a GPU with the NVIDIA driver: persistence mode, processes, MIG mode. By PCI address, over `Nvml`."""

from __future__ import annotations

from typing import Any

import msgspec

from pydra_nvidia.nvml.calls import Nvml
from pydra_nvidia.nvml.errors import Code, NvmlError

_UNSEEN = frozenset({Code.NOT_FOUND, Code.INVALID_ARGUMENT, Code.GPU_NOT_FOUND})


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU's use at one moment. `processes` are pids; `partitioned`: in MIG mode, or with the next reset."""

    minor: int
    persistent: bool
    partitioned: bool
    processes: tuple[int, ...] = ()


def read_use(nvml: Nvml, address: str) -> Use | None:
    """How the GPU is used; None when NVML does not know it, as when another driver has it. Raises NvmlError."""
    handle = _find(nvml, address)
    if handle is None:
        return None
    mode = nvml.ask("nvmlDeviceGetMigMode", handle, subject=address)
    pids: set[int] = set()
    for kind in ("Compute", "Graphics", "MPSCompute"):
        running = nvml.ask(f"nvmlDeviceGet{kind}RunningProcesses_v3", handle, subject=address) or ()
        pids.update(process.pid for process in running)
    return Use(
        minor=nvml.call("nvmlDeviceGetMinorNumber", handle, subject=address),
        persistent=bool(nvml.ask("nvmlDeviceGetPersistenceMode", handle, subject=address)),
        partitioned=bool(mode and any(mode)),
        processes=tuple(sorted(pids)),
    )


def set_persistence(nvml: Nvml, address: str, *, on: bool) -> None:
    """Let the driver keep the GPU ready while nobody uses it, or not; nothing for a GPU that NVML does not know.

    Raises NvmlError.
    """
    handle = _find(nvml, address)
    if handle is not None:
        nvml.ask("nvmlDeviceSetPersistenceMode", handle, int(on), subject=address)


def _find(nvml: Nvml, address: str) -> Any:
    try:
        return nvml.call("nvmlDeviceGetHandleByPciBusId", address, subject=address)
    except NvmlError as error:
        if error.code in _UNSEEN:
            return None
        raise
