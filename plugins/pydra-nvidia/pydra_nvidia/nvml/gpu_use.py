"""Who uses a GPU now."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import msgspec

from pydra_nvidia.nvml.errors import NvmlError
from pydra_nvidia.nvml.gpus import find_handle
from pydra_nvidia.nvml.pynvml_library import Nvml


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU's use at one moment. `processes` are pids; `partitioned`: in MIG mode, or with the next reset."""

    minor: int
    persistent: bool
    partitioned: bool
    processes: tuple[int, ...] = ()


def read_use(nvml: Nvml, address: str) -> Use | None:
    """How the GPU is used; None when NVML does not know it, as when another driver has it. Raises NvmlError."""
    handle = find_handle(nvml, address)
    if handle is None:
        return None
    mode = nvml.ask("nvmlDeviceGetMigMode", handle, subject=address)
    pids = {process.pid for process in _list_processes(nvml.ask, handle, subject=address)}
    return Use(
        minor=nvml.call("nvmlDeviceGetMinorNumber", handle, subject=address),
        persistent=bool(nvml.ask("nvmlDeviceGetPersistenceMode", handle, subject=address)),
        partitioned=bool(mode and any(mode)),
        processes=tuple(sorted(pids)),
    )


def name_processes(nvml: Nvml, gpu: str) -> str:
    """`python3 (pid 4711), dcgm (pid 12)`: the processes that NVML knows to use the GPU; empty for none."""
    names: dict[int, str] = {}
    with suppress(NvmlError):  # it completes an error that says enough without it
        for process in _list_processes(nvml.look, nvml.find(gpu), subject=gpu):
            names.setdefault(process.pid, _process_name(nvml, process.pid))
    return ", ".join(f"{name} (pid {pid})" for pid, name in sorted(names.items()))


def _list_processes(tell: Callable[..., Any], handle: Any, *, subject: str) -> Iterator[Any]:
    """By `Nvml.ask` or `Nvml.look`."""
    for kind in ("Compute", "Graphics", "MPSCompute"):
        yield from tell(f"nvmlDeviceGet{kind}RunningProcesses_v3", handle, subject=subject) or ()


def _process_name(nvml: Nvml, pid: int) -> str:
    try:
        return str(nvml.call("nvmlSystemGetProcessName", pid)).partition(" ")[0].rpartition("/")[2]
    except NvmlError:
        return "a process"
