"""The compute mode of GPUs: read, set, and put back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from types import MappingProxyType

from pydra_nvidia.nvml.errors import LOST, Code, NvmlError
from pydra_nvidia.nvml.pynvml_library import Nvml
from pydra_nvidia.nvml.session import NvmlSession

DEFAULT = 0
EXCLUSIVE_PROCESS = 3
FORGOTTEN = frozenset({Code.NOT_FOUND, Code.GPU_NOT_FOUND, Code.DRIVER_NOT_LOADED, Code.LIBRARY_NOT_FOUND})
"""The GPU, or its driver, is not there: what was set on it is forgotten, and there is nothing to undo. A lost GPU still
has it if it answers again without a reset."""


def read_compute_mode(nvml: Nvml, uuid: str) -> int | None:
    """As NVML counts; None where it does not report it. Raises NvmlError."""
    handle = nvml.find(uuid)
    mode = nvml.ask("nvmlDeviceGetComputeMode", handle, subject=uuid)
    return None if mode is None else int(mode)


async def has_gpu(session: NvmlSession, uuid: str) -> bool:
    """Whether the GPU answers. Raises NvmlError for anything but that it is gone."""
    try:
        await session.run(partial(read_compute_mode, uuid=uuid))
    except NvmlError as error:
        if error.code in FORGOTTEN:
            return False
        raise
    return True


async def set_compute_mode(session: NvmlSession, uuid: str, mode: int) -> None:
    """Set the compute mode where it is another; nothing where the GPU has none. Raises NvmlError."""

    def set_it(nvml: Nvml) -> None:
        if read_compute_mode(nvml, uuid) not in (None, mode):
            handle = nvml.find(uuid)
            nvml.call("nvmlDeviceSetComputeMode", handle, mode, subject=uuid)

    await session.run(set_it)


async def set_exclusive(session: NvmlSession, uuids: Iterable[str]) -> None:
    """Let each GPU have one process only, in order; raises NvmlError at the first that refuses."""

    def take(nvml: Nvml) -> None:
        for uuid in uuids:
            handle = nvml.find(uuid)
            nvml.call("nvmlDeviceSetComputeMode", handle, EXCLUSIVE_PROCESS, subject=uuid)

    await session.run(take)


async def restore_compute_modes(
    session: NvmlSession, uuids: Collection[str], modes: Mapping[str, int] = MappingProxyType({})
) -> None:
    """Restore those GPUs that are there and were taken over; other modes are somebody else's.

    `modes` are what they had before, where it is known; else all processes may have them again. Raises NvmlError, after
    all of them, but not for lost ones beside others, which would not be free before those are.
    """

    def give(nvml: Nvml, uuid: str) -> None:
        handle = nvml.find(uuid)
        if nvml.ask("nvmlDeviceGetComputeMode", handle, subject=uuid) == EXCLUSIVE_PROCESS:
            nvml.call("nvmlDeviceSetComputeMode", handle, modes.get(uuid, DEFAULT), subject=uuid)

    refusals: list[NvmlError] = []
    for uuid in uuids:
        try:
            await session.run(partial(give, uuid=uuid))
        except NvmlError as error:  # what has just told its mode is there
            if error.code not in FORGOTTEN or error.call == "nvmlDeviceSetComputeMode":
                refusals.append(error)
    is_none_left = len(refusals) == len(uuids)
    for refusal in refusals:
        if is_none_left or refusal.code not in LOST:
            raise refusal
