"""Which GPUs are lost: NVML counts them and cannot reach them, or does not count what the kernel driver has. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from pydra_nvidia.hardware_types import Gpu, LostGpu, Reading
from pydra_nvidia.nvml.errors import Code, NvmlError
from pydra_pci import PciFunction


def find_lost(
    failures: Mapping[int, NvmlError],
    answering: Sequence[Gpu],
    before: Reading | None,
    functions: Mapping[str, PciFunction],
) -> tuple[LostGpu, ...]:
    """The lost GPUs by index, each with what was known of it before, those that NVML does not count last.

    `failures` are NVML's errors by its index. A GPU that NVML does not count is lost as long as its function is bound
    to the driver; otherwise somebody has taken it away. `functions` lacks those that the admin has excluded.
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
    lost.sort(key=lambda one: one.index)
    known = {gpu.pci for gpu in (*answering, *missing)}
    nameless = [address for address, one in functions.items() if _is_bound(one) and address not in known]
    return tuple(_place(lost, nameless))


def _place(lost: Sequence[LostGpu], nameless: Sequence[str]) -> Iterator[LostGpu]:
    """With the addresses of functions of which nothing is known, where NVML's order shows which is whose."""
    unknown = [one for one in lost if one.last is None]
    if len(unknown) == len(nameless):
        addresses = iter(nameless)
        yield from (replace(one, pci=one.last.pci if one.last else next(addresses)) for one in lost)
        return
    yield from (replace(one, pci=one.last.pci if one.last else "") for one in lost)
    if not unknown:
        for address in nameless:
            message = f"NVML does not count the GPU at {address}, although it is bound to the NVIDIA driver"
            yield LostGpu(index=-1, code=Code.GPU_NOT_FOUND, message=message, pci=address)


def _is_bound(function: PciFunction) -> bool:
    return function.driver == "nvidia" and not function.is_virtual


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
            and _is_bound(functions[gpu.pci])
        ),
        key=lambda gpu: gpu.index,
    )
