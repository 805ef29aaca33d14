"""Which GPUs are lost: NVML counts them and cannot reach them, or no longer counts what the kernel still has. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pydra_nvidia.hardware import Gpu, LostGpu, PciFunction, Reading
from pydra_nvidia.nvml.errors import Code, NvmlError


def find_lost(
    failures: Mapping[int, NvmlError],
    answering: Sequence[Gpu],
    before: Reading | None,
    functions: Mapping[str, PciFunction],
) -> tuple[LostGpu, ...]:
    """The lost GPUs by index, each with what was known of it before.

    `failures` are NVML's errors by its index. One that answered `before` and that NVML no longer counts is lost too as
    long as its function is bound to the driver; otherwise somebody has taken it away.
    """
    missing = _missing(answering, before, functions)
    last = {gpu.index: gpu for gpu in missing if gpu.index in failures}
    others = [gpu for gpu in missing if gpu.index not in last]
    unknown = [index for index in sorted(failures) if index not in last]
    if len(others) == len(unknown):  # the indices have moved, and each still stands for one
        last |= dict(zip(unknown, others, strict=True))
        others = []
    lost = [
        LostGpu(index=index, code=error.code, message=str(error), last=last.get(index))
        for index, error in failures.items()
    ]
    lost += [
        LostGpu(
            index=gpu.index,
            code=Code.GPU_NOT_FOUND,
            message=f"NVML no longer counts GPU {gpu.uuid}, although {gpu.pci} is bound to the NVIDIA driver",
            last=gpu,
        )
        for gpu in others
    ]
    return tuple(sorted(lost, key=lambda one: one.index))


def _missing(answering: Sequence[Gpu], before: Reading | None, functions: Mapping[str, PciFunction]) -> list[Gpu]:
    """What was known before and answers no more, and that the driver should still have."""
    if before is None:
        return []
    known: Iterable[Gpu] = (*before.gpus, *(one.last for one in before.lost if one.last is not None))
    uuids = {gpu.uuid for gpu in answering}
    places = {gpu.pci for gpu in answering}
    return sorted(
        (
            gpu
            for gpu in known
            if gpu.uuid not in uuids
            and gpu.pci not in places  # another GPU was put in its place
            and gpu.pci in functions
            and functions[gpu.pci].driver == "nvidia"
        ),
        key=lambda gpu: gpu.index,
    )
