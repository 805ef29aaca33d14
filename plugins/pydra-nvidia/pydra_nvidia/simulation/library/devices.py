"""Enumeration and what a GPU is: names, numbers, PCI, modes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pydra_nvidia.nvml.errors import Code
from pydra_nvidia.simulation.library.arguments import Refusal, fill, number, put, put_handle, text
from pydra_nvidia.simulation.library.function_registry import (
    Call,
    function,
    gpu_target,
    numbers,
    require,
    texts,
)
from pydra_nvidia.simulation.machine_state import View
from pydra_nvidia.simulation.scenario_gpus import spell_bus_id

if TYPE_CHECKING:
    from pydra_nvidia.simulation.library.library import Library

ADDRESSING_VERSION = 0x1000008
_ADDRESS = re.compile(r"(?:([0-9A-Fa-f]{1,8}):)?([0-9A-Fa-f]{1,2}):([0-9A-Fa-f]{1,2})(?:\.[0-7])?")
EXCLUSIVE_THREAD, MOST_COMPUTE_MODE = 1, 3


def _by_index(library: Library, view: View, arguments: tuple[Any, ...]) -> str | None:
    uuids, index = library.check(view).uuids, number(arguments[0])
    return uuids[index] if 0 <= index < len(uuids) else None


def _by_uuid(library: Library, view: View, arguments: tuple[Any, ...]) -> str | None:
    wanted = text(arguments[0])
    return wanted if wanted in library.check(view).uuids else None


def _by_address(library: Library, view: View, arguments: tuple[Any, ...]) -> str | None:
    match = _ADDRESS.fullmatch(text(arguments[0]))
    if match is None:
        raise Refusal(Code.INVALID_ARGUMENT)
    wanted = int(match[1] or "0", 16), int(match[2], 16), int(match[3], 16)
    return next((uuid for uuid in library.check(view).uuids if _numbers(view.boards[uuid].address) == wanted), None)


@function("system", "nvmlDeviceGetHandleByIndex_v2", finds=_by_index)
def _handle_by_index(call: Call, index: Any, reference: Any) -> None:
    uuid = _by_index(call.library, call.view, (index,))
    if uuid is None:
        raise Refusal(Code.INVALID_ARGUMENT)
    _give(call, uuid, reference)


@function("system", "nvmlDeviceGetHandleByUUID", finds=_by_uuid)
def _handle_by_uuid(call: Call, wanted: Any, reference: Any) -> None:
    _give(call, _by_uuid(call.library, call.view, (wanted,)), reference)


@function("system", "nvmlDeviceGetHandleByPciBusId_v2", finds=_by_address)
def _handle_by_address(call: Call, address: Any, reference: Any) -> None:
    _give(call, _by_address(call.library, call.view, (address,)), reference)


def _give(call: Call, uuid: str | None, reference: Any) -> None:
    if uuid is None:
        raise Refusal(Code.NOT_FOUND)
    call.resolve(call.view, gpu_target(call.view, uuid))
    put_handle(reference, call.library.address(gpu_target(call.view, uuid)))


texts(
    "device",
    {
        "nvmlDeviceGetUUID": lambda call: call.compute.uuid if call.compute else call.board.uuid,
        "nvmlDeviceGetName": lambda call: call.board.model.name,
    },
)
texts("gpu", {"nvmlDeviceGetSerial": lambda call: require(call.board.serial if call.board.model.serial else None)})
numbers("system", {"nvmlDeviceGetCount_v2": lambda call: len(call.library.check(call.view).uuids)})
numbers(
    "device",
    {
        "nvmlDeviceGetMinorNumber": lambda call: require(call.board.minor if call.compute is None else None),
        "nvmlDeviceGetBrand": lambda call: call.board.model.brand,
        "nvmlDeviceGetArchitecture": lambda call: call.board.model.architecture,
        "nvmlDeviceGetVirtualizationMode": lambda call: call.board.model.virtualization,
    },
)
numbers(
    "gpu",
    {
        "nvmlDeviceGetModuleId": lambda call: require(call.board.module if call.board.model.module else None),
        "nvmlDeviceGetComputeMode": lambda call: call.gpu.compute_mode,
        "nvmlDeviceGetPersistenceMode": lambda call: int(call.gpu.persistence),
    },
)


@function("device", "nvmlDeviceGetCudaComputeCapability")
def _compute_capability(call: Call, major: Any, minor: Any) -> None:
    put(major, call.board.model.compute[0])
    put(minor, call.board.model.compute[1])


@function("gpu", "nvmlDeviceGetAddressingMode")
def _addressing_mode(call: Call, info: Any) -> None:
    fill(info, ADDRESSING_VERSION, value=require(call.board.model.addressing))


@function("device", "nvmlDeviceGetPciInfo_v3")
def _pci_info(call: Call, info: Any) -> None:
    pci = call.board.model.pci
    fill_place(info, call.board.address)
    fill(
        info,
        pciDeviceId=_pair(pci.device, pci.vendor),
        pciSubSystemId=_pair(pci.subsystem_device, pci.subsystem_vendor),
    )


@function("gpu", "nvmlDeviceSetComputeMode", root=True)
def _set_compute_mode(call: Call, mode: Any) -> None:
    wanted = number(mode)
    if not 0 <= wanted <= MOST_COMPUTE_MODE or wanted == EXCLUSIVE_THREAD:
        raise Refusal(Code.INVALID_ARGUMENT)
    with call.changing():
        if call.gpu.mig:
            raise Refusal(Code.NOT_SUPPORTED)
        call.gpu.compute_mode = wanted


@function("gpu", "nvmlDeviceSetPersistenceMode", root=True)
def _set_persistence_mode(call: Call, mode: Any) -> None:
    with call.changing():
        call.gpu.persistence = bool(number(mode))


def fill_place(info: Any, address: str) -> None:
    """Where a function is on the bus, into NVML's struct."""
    domain, bus, slot = _numbers(address)
    spelled = spell_bus_id(address).encode()
    fill(info, busIdLegacy=spelled[4:], busId=spelled, domain=domain, bus=bus, device=slot)


def _numbers(address: str) -> tuple[int, int, int]:
    domain, bus, rest = address.split(":")
    return int(domain, 16), int(bus, 16), int(rest.partition(".")[0], 16)


def _pair(high: str, low: str) -> int:
    return int(high, 16) << 16 | int(low, 16)
