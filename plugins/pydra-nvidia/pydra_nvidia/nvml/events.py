"""Events of GPUs: registering for them and waiting. The wait is the one call that NVML allows beside all others.

Source: nvml.h, nvmlEventSetWait_v2 and nvmlEventType*.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from pydra_nvidia.nvml.calls import Nvml, address_of
from pydra_nvidia.nvml.errors import Code, NvmlError

WHOLE = 0xFFFFFFFF
"""An event's instance ids when it concerns the whole GPU."""

_XID = 0x8
_WANTED = _XID | 0x2 | 0x4000 | 0x8000
"""XIDs, double-bit ECC errors, and on new drivers: GPU unavailable, recovery action changed. Single-bit errors, which
the hardware corrects and which may come in floods, are only measured."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """What NVML tells: `xid` None for anything else; `instance` is the id of a GPU instance, None for the whole GPU."""

    gpu: str
    xid: int | None
    instance: int | None = None


class EventSet:
    """An open registration. Made by `open_events`, freed once."""

    def __init__(self, nvml: Nvml, handle: Any, gpus: Mapping[int, str], unmonitored: frozenset[str]) -> None:
        self.unmonitored = unmonitored
        self._nvml = nvml
        self._handle = handle
        self._gpus = gpus

    def wait(self, milliseconds: int) -> Event | None:
        """The next event; None when none came in time. Raises NvmlError."""
        pynvml = self._nvml.pynvml
        try:
            data = pynvml.nvmlEventSetWait_v2(self._handle, milliseconds)
        except pynvml.NVMLError as error:
            if error.value == Code.TIMEOUT:
                return None
            raise NvmlError(int(error.value), "nvmlEventSetWait_v2") from error
        instance = int(data.gpuInstanceId)
        return Event(
            gpu=self._gpus.get(address_of(data.device), ""),
            xid=int(data.eventData) if data.eventType == _XID else None,
            instance=None if instance == WHOLE else instance,
        )

    def free(self) -> None:
        """Release it; raises NvmlError."""
        self._nvml.call("nvmlEventSetFree", self._handle)


def open_events(nvml: Nvml, uuids: Iterable[str]) -> EventSet:
    """Register for what these GPUs report. One that reports nothing, or is lost, is unmonitored. Raises NvmlError."""
    handle = nvml.call("nvmlEventSetCreate")
    gpus: dict[int, str] = {}
    unmonitored: set[str] = set()
    for uuid in sorted(uuids):
        try:
            device = nvml.find(uuid)
            supported = int(nvml.call("nvmlDeviceGetSupportedEventTypes", device, subject=uuid))
            if not supported & _XID:
                unmonitored.add(uuid)
                continue
            nvml.call("nvmlDeviceRegisterEvents", device, supported & _WANTED, handle, subject=uuid)
            gpus[address_of(device)] = uuid
        except NvmlError:
            unmonitored.add(uuid)
    return EventSet(nvml, handle, gpus, frozenset(unmonitored))
