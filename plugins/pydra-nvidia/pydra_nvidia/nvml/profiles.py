"""MIG profiles as NVML tells them, by whichever version of its functions the driver has; for reading and making alike.

The second version has the profiles' names. A driver may lack it, or refuse it while MIG mode is off: the first version
is asked then. Source: nvml.h, nvmlDeviceGetGpuInstanceProfileInfo, nvmlGpuInstanceGetComputeInstanceProfileInfo and
their versioned wrappers (...V), which answer NOT_SUPPORTED for a device that does not have MIG mode enabled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from pydra_nvidia.nvml.calls import Nvml
from pydra_nvidia.nvml.errors import LOST, STALE, UNAVAILABLE, Code, NvmlError

PROFILES = 0x12
COMPUTE_PROFILES = 0x9

MAKING = (
    "nvmlDeviceSetMigMode",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlDeviceGetGpuInstances",
    "nvmlDeviceGetGpuInstanceById",
    "nvmlGpuInstanceGetInfo",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlGpuInstanceGetComputeInstances",
    "nvmlGpuInstanceGetComputeInstanceById",
    "nvmlComputeInstanceGetInfo_v2",
    "nvmlComputeInstanceDestroy",
    "nvmlGpuInstanceDestroy",
)
"""C functions without another version, which making and removing a partition need."""

_Ask: TypeAlias = Callable[[int, int], Any]
"""Called with NVML's constant of a profile and the version of the structure."""

_NOT_OFFERED = UNAVAILABLE | {Code.INVALID_ARGUMENT}
_LACKING = frozenset({Code.FUNCTION_NOT_FOUND, Code.ARGUMENT_VERSION_MISMATCH})


def read_gpu_profiles(nvml: Nvml, gpu: Any, *, subject: str) -> Iterator[tuple[int, Any]]:
    """Each profile of GPU instances: NVML's constant, and the structure, or the NvmlError that it was refused with.

    Profiles that the driver does not offer are left out. Raises NvmlError for a lost GPU or session.
    """

    def ask(number: int, version: int) -> Any:
        name = "nvmlDeviceGetGpuInstanceProfileInfo"
        return nvml.call(name, gpu, number, version=version, subject=subject)

    return _read(ask, PROFILES)


def read_compute_profiles(nvml: Nvml, instance: Any, *, subject: str) -> Iterator[tuple[int, Any]]:
    """The same for compute instances in a GPU instance, which share its engines as NVML's default says."""

    def ask(number: int, version: int) -> Any:
        name = "nvmlGpuInstanceGetComputeInstanceProfileInfo"
        return nvml.call(name, instance, number, 0, version=version, subject=subject)

    return _read(ask, COMPUTE_PROFILES)


def find_missing(nvml: Nvml) -> NvmlError | None:
    """The error of the first function that making partitions needs and the driver lacks."""
    for name in MAKING:
        if not nvml.has(name):
            return NvmlError(Code.FUNCTION_NOT_FOUND, name)
    return None


def _read(ask: _Ask, count: int) -> Iterator[tuple[int, Any]]:
    told = False
    refused: dict[int, NvmlError] = {}
    for number, answer in _ask_all(ask, range(count), 2):
        if isinstance(answer, NvmlError):
            refused[number] = answer
        else:
            told = True
            yield number, answer
    for number, answer in _ask_all(ask, tuple(refused) if told else range(count), 1):
        if isinstance(answer, NvmlError):
            refused.setdefault(number, answer)
        else:
            refused.pop(number, None)
            yield number, answer
    yield from refused.items()


def _ask_all(ask: _Ask, numbers: Iterable[int], version: int) -> Iterator[tuple[int, Any]]:
    """What one version of the function answers; nothing for what is not offered."""
    for number in numbers:
        try:
            yield number, ask(number, version)
        except NvmlError as error:
            if error.code in LOST | STALE:
                raise
            if error.code in _LACKING:
                return
            if error.code not in _NOT_OFFERED:
                yield number, error
