"""Which functions a claim's passthrough devices take from which driver. Pure.

The interface to the IOMMU that a config asks for needs no step: a function that is bound has a node for its group and,
where the kernel has iommufd, one of its own. `PreferIommuFD` on a node without iommufd gets the group's, as the word
says; NVIDIA's driver does the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from pydra import ClaimError, TerminalError
from pydra_nvidia.claim_targets import Partition, Passthrough, Target, WholeGpu
from pydra_nvidia.hardware_types import Gpu, Reading
from pydra_nvidia.host.pci import DRIVER
from pydra_nvidia.mig.plan_partitions import can_change_mode, leaves_mode
from pydra_nvidia.settings import Settings
from pydra_nvidia.steps import BindVfio, Step
from pydra_pci import Owner, PciFunction, find_problems, is_begun, plan_binding


def plan_passthrough(
    targets: Sequence[Target],
    reading: Reading,
    *,
    begun: Iterable[Step],
    owners: Mapping[str, Owner],
    settings: Settings,
) -> tuple[BindVfio, ...]:
    """BindVfio for each function, once, in the order of the targets.

    `begun` are the steps of all claims: a function that is on its way already keeps its step, so that
    the plan of a claim is the same before and after it was carried out. Targets with admin access only look, and need
    nothing. `owners` are other claims by the addresses of the functions that they have.

    Raises:
        ClaimError: what stands in the way of each function, and who can remove it.
        TerminalError: the claim asks for a GPU twice.
    """
    wanted = [target for target in targets if isinstance(target, Passthrough)]
    if not wanted:
        return ()
    if not settings.vfio:
        names = ", ".join(target.allocated.device for target in wanted)
        raise ClaimError(f"{names}: passthrough is switched off on this node; the admin can set PYDRA_NVIDIA_VFIO=true")
    _refuse_doubles(wanted, targets)
    known = {step.address: step for step in begun if isinstance(step, BindVfio) and step.before != step.target}
    if problems := [text for target in wanted for text in _find_problems(target, reading, known, owners, settings)]:
        raise ClaimError("; ".join(problems))
    functions = (target.function for target in wanted if not target.allocated.admin_access)
    return tuple(dict.fromkeys(_bind(function, reading, known) for function in functions))


def _bind(function: PciFunction, reading: Reading, known: Mapping[str, BindVfio]) -> BindVfio:
    step = plan_binding(function, known.get(function.address))
    if isinstance(step, BindVfio):
        return step
    gpu = _gpu_at(function.address, reading)
    persistent = step.before != step.target and bool(gpu and gpu.persistence)
    return BindVfio(
        address=step.address, before=step.before, target=step.target, override=step.override, persistence=persistent
    )


def _refuse_doubles(wanted: Sequence[Passthrough], targets: Sequence[Target]) -> None:
    for target in targets:
        if isinstance(target, WholeGpu | Partition):
            for one in wanted:
                if one.function.address == target.gpu.pci:
                    raise TerminalError(
                        f"devices {target.allocated.device} and {one.allocated.device} of this claim are one GPU, which"
                        " is either passed through or used by containers"
                    )


def _find_problems(
    target: Passthrough,
    reading: Reading,
    known: Mapping[str, BindVfio],
    owners: Mapping[str, Owner],
    settings: Settings,
) -> Iterator[str]:
    function = target.function
    where = f"{target.allocated.device} ({function.address})"
    mates, admin = reading.functions.values(), target.allocated.admin_access
    for problem in find_problems(function, reading.vfio, driver=DRIVER, functions=mates, owners=owners, admin=admin):
        yield f"{where}: {problem}"
    if not is_begun(function, known.get(function.address)):
        yield from _find_gpu_problems(where, function, reading, settings)


def _find_gpu_problems(where: str, function: PciFunction, reading: Reading, settings: Settings) -> Iterator[str]:
    for lost in reading.lost:
        if lost.last is not None and lost.last.pci == function.address:
            yield f"{where}: the GPU is lost: {lost.message}"
    gpu = _gpu_at(function.address, reading)
    if gpu is None or gpu.mig is None:
        return
    if gpu.mig.instances:
        yield f"{where}: the GPU has partitions ({len(gpu.mig.instances)}); it is free for passthrough without them"
    elif (gpu.mig.enabled or gpu.mig.pending) and not leaves_mode(gpu, settings):
        reset = "" if gpu.mig.resetless else ", then --gpu-reset"
        dynamic = ", or let this driver do it (PYDRA_NVIDIA_DYNAMIC_MIG=true)" if can_change_mode(gpu) else ""
        yield (
            f"{where}: the GPU is in MIG mode, or will be; the admin can leave it: nvidia-smi -i {gpu.uuid} -mig 0"
            f"{reset}{dynamic}"
        )


def _gpu_at(address: str, reading: Reading) -> Gpu | None:
    return next((gpu for gpu in reading.gpus if gpu.pci == address), None)
