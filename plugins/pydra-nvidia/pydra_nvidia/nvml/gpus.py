"""One GPU: facts that do not change while the driver has it, its condition now, its handle, and who uses it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import msgspec

from pydra_nvidia.hardware_types import Architecture, Condition, Driver, Gpu
from pydra_nvidia.nvml.errors import Code, NvmlError
from pydra_nvidia.nvml.pynvml_library import Nvml, read_fields

RECOVERY_FIELD = 230
XID_EVENT = 0x8
_UNCORRECTED, _VOLATILE = 1, 0


def read_driver(nvml: Nvml) -> Driver:
    """The driver's versions; 0 for CUDA where it does not report it."""
    return Driver(
        version=nvml.call("nvmlSystemGetDriverVersion"),
        cuda=nvml.look("nvmlSystemGetCudaDriverVersion") or 0,
    )


def read_facts(nvml: Nvml, handle: Any, *, index: int, uuid: str) -> Gpu:
    """The GPU without its partitions, links and condition.

    Raises:
        NvmlError: what nothing can be done without (minor number, name, address) cannot be read.
    """
    pci = nvml.call("nvmlDeviceGetPciInfo", handle, subject=uuid)
    memory = nvml.look("nvmlDeviceGetMemoryInfo", handle, subject=uuid)  # not reported where it is the CPU's
    return Gpu(
        index=index,
        minor=nvml.call("nvmlDeviceGetMinorNumber", handle, subject=uuid),
        uuid=uuid,
        name=nvml.call("nvmlDeviceGetName", handle, subject=uuid),
        brand=nvml.look("nvmlDeviceGetBrand", handle, subject=uuid) or 0,
        architecture=read_architecture(nvml, handle, subject=uuid),
        compute=nvml.look("nvmlDeviceGetCudaComputeCapability", handle, subject=uuid) or (0, 0),
        pci=parse_bus_id(pci.busId),
        memory=None if memory is None else memory.total,
        serial=nvml.look("nvmlDeviceGetSerial", handle, subject=uuid) or "",
        # Its default argument is shared by all callers, so each brings its own.
        module=nvml.look("nvmlDeviceGetModuleId", handle, ctypes.c_uint(), subject=uuid),
        addressing=nvml.look("nvmlDeviceGetAddressingMode", handle, subject=uuid),
        virtualization=nvml.look("nvmlDeviceGetVirtualizationMode", handle, subject=uuid) or 0,
    )


def parse_bus_id(bus_id: bytes | str) -> str:
    """The address as sysfs has it: `0000:53:00.0` for NVML's `00000000:53:00.0`; a domain has 4 digits, or its own."""
    text = bus_id.decode("ascii", "replace") if isinstance(bus_id, bytes) else bus_id
    domain, _, rest = text.strip().lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def read_architecture(nvml: Nvml, handle: Any, *, subject: str) -> int:
    """Its generation; UNKNOWN where the driver does not report it."""
    found: int | None = nvml.look("nvmlDeviceGetArchitecture", handle, subject=subject)
    return Architecture.UNKNOWN if found is None else found


def read_condition(nvml: Nvml, handle: Any, *, monitored: bool, subject: str) -> Condition:
    """What this GPU's generation and driver report; the rest is None."""
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


_UNSEEN = frozenset({Code.NOT_FOUND, Code.INVALID_ARGUMENT, Code.GPU_NOT_FOUND})


def find_handle(nvml: Nvml, address: str) -> Any:
    """The library's handle of the GPU at this PCI address, or None where it has none."""
    try:
        return nvml.call("nvmlDeviceGetHandleByPciBusId", address, subject=address)
    except NvmlError as error:
        if error.code in _UNSEEN:
            return None
        raise


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
