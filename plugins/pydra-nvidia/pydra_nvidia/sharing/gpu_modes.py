"""Whether a GPU answers, and its compute mode, through NVML."""

from __future__ import annotations

from collections.abc import Iterable

from pydra_nvidia.nvml.calls import Nvml
from pydra_nvidia.nvml.errors import LOST, Code, NvmlError
from pydra_nvidia.nvml.session import NvmlSession

DEFAULT = 0
EXCLUSIVE_PROCESS = 3

GONE = LOST | {Code.NOT_FOUND, Code.GPU_NOT_FOUND, Code.DRIVER_NOT_LOADED, Code.LIBRARY_NOT_FOUND}
"""The GPU, or its driver, is not there: what was set on it is forgotten, and there is nothing to undo."""


async def has_gpu(session: NvmlSession, uuid: str) -> bool:
    """Whether the GPU answers. Raises NvmlError for anything but that it is gone."""

    def ask(nvml: Nvml) -> bool:
        handle = nvml.call("nvmlDeviceGetHandleByUUID", uuid, subject=uuid)
        nvml.call("nvmlDeviceGetComputeMode", handle, subject=uuid)
        return True

    try:
        return await session.run(ask)
    except NvmlError as error:
        if error.code in GONE:
            return False
        raise


async def set_compute_mode(session: NvmlSession, uuids: Iterable[str], mode: int) -> None:
    """Set it on all, in order; raises NvmlError at the first that refuses."""

    def set_all(nvml: Nvml) -> None:
        for uuid in uuids:
            handle = nvml.call("nvmlDeviceGetHandleByUUID", uuid, subject=uuid)
            nvml.call("nvmlDeviceSetComputeMode", handle, mode, subject=uuid)

    await session.run(set_all)


async def reset_compute_mode(session: NvmlSession, uuids: Iterable[str]) -> None:
    """Back to DEFAULT on those that are there."""
    for uuid in uuids:
        try:
            await set_compute_mode(session, (uuid,), DEFAULT)
        except NvmlError as error:
            if error.code not in GONE:
                raise
