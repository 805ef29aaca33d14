"""What a claim's partitions, whole GPUs and GPUs for passthrough need of MIG. Pure.

A partition that exists and that no claim made is used as it is, and left as it is. With dynamic MIG a missing one is
created at its place. Where the mode changes without a reset its step is always planned, though the mode may be right
already: the plan of a claim is then the same before and after it was carried out, and the last claim on a GPU has the
step whose undoing leaves MIG mode. Only a GPU that is bound for passthrough by now has no mode any more, and no step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from pydra import ClaimError
from pydra_nvidia.claim_targets import Partition, Passthrough, Target, WholeGpu
from pydra_nvidia.hardware_types import VGPU_GUEST, Gpu, GpuInstance, Placement, Profile, Reading
from pydra_nvidia.settings import Settings
from pydra_nvidia.steps import CreateMig, MigModeOff, MigModeOn, Step


def plan_partitions(
    targets: Sequence[Target],
    reading: Reading,
    *,
    owned: Collection[tuple[str, Placement]],
    settings: Settings,
) -> tuple[Step, ...]:
    """MigModeOn, MigModeOff, CreateMig, each once, modes before partitions of the same GPU.

    `owned` are the places that claims made, by their GPU's UUID; it must be older than `reading`, or a partition that
    is being removed looks like somebody else's. Targets with admin access need nothing but to exist. The others do
    not overlap, which `claim_plan` has seen to.

    Raises:
        ClaimError: a partition that is not available now: what is in the way, who can remove it.
    """
    for target in targets:
        if isinstance(target, Partition) and target.allocated.admin_access and target.instance is None:
            raise ClaimError(
                f"partition {target.allocated.device} does not exist now, and admin access creates none; it will be"
                " tried again: wait until another claim has created it, or ask for a partition that exists"
            )
    wanted = [target for target in targets if not target.allocated.admin_access]
    partitions = [target for target in wanted if isinstance(target, Partition)]
    steps: list[Step] = []
    for target in wanted:
        if isinstance(target, WholeGpu):
            steps += _for_whole(target, owned, settings)
        elif isinstance(target, Partition):
            steps += _for_partition(target, partitions, owned, settings)
        else:
            steps += _for_passthrough(target, reading, settings)
    return tuple(dict.fromkeys(steps))


def describe(instance: GpuInstance, profiles: Iterable[Profile]) -> str:
    """`1g.10gb (profile 19) at memory slice 3, GPU instance 7`, as errors name a partition."""
    name = next((one.name for one in profiles if one.id == instance.profile), "a partition")
    return f"{name} (profile {instance.profile}) at {slices(instance.placement)}, GPU instance {instance.id}"


def slices(place: Placement) -> str:
    """`memory slice 3` or `memory slices 4-7`."""
    last = place.start + place.size - 1
    return f"memory slice {last}" if place.size == 1 else f"memory slices {place.start}-{last}"


def can_change_mode(gpu: Gpu) -> bool:
    """Whether the MIG mode can be changed here and now: without a reset, and not by a hypervisor."""
    return gpu.mig is not None and gpu.mig.resetless and gpu.virtualization != VGPU_GUEST


def leaves_mode(gpu: Gpu, settings: Settings) -> bool:
    """Whether this driver switches the MIG mode off where the GPU is needed as a whole."""
    return settings.dynamic_mig and can_change_mode(gpu)


def _for_whole(target: WholeGpu, owned: Collection[tuple[str, Placement]], settings: Settings) -> Iterator[Step]:
    gpu, mig, device = target.gpu, target.gpu.mig, target.allocated.device
    if mig is None:
        return
    if mig.enabled and mig.instances:
        first = mig.instances[0]
        remover = _remover(gpu, first, owned, settings)
        raise ClaimError(f"device {device} is partitioned, it has {describe(first, mig.profiles)}: {remover}")
    if leaves_mode(gpu, settings):
        yield MigModeOff(gpu=gpu.uuid)
    elif mig.enabled:
        reset = "" if mig.resetless else ", then --gpu-reset"
        dynamic = ", or let this driver do it (PYDRA_NVIDIA_DYNAMIC_MIG=true)" if can_change_mode(gpu) else ""
        raise ClaimError(
            f"device {device} is in MIG mode, where it runs nothing as a whole: the admin can switch the mode off"
            f" (nvidia-smi -i {gpu.uuid} -mig 0{reset}){dynamic}"
        )


def _for_partition(
    target: Partition,
    partitions: Sequence[Partition],
    owned: Collection[tuple[str, Placement]],
    settings: Settings,
) -> Iterator[Step]:
    gpu = target.gpu
    if target.instance is None:
        _check_creatable(target, partitions, owned, settings)
    elif (gpu.uuid, target.placement) not in owned:
        _check_usable(target, target.instance)
        return
    yield from create_partition(target)


def create_partition(target: Partition) -> Iterator[Step]:
    """The steps that make it, whether it is there or not."""
    if can_change_mode(target.gpu):
        yield MigModeOn(gpu=target.gpu.uuid)
    yield CreateMig(
        gpu=target.gpu.uuid,
        profile=target.profile_id,
        profile_name=target.profile.name if target.profile else str(target.profile_id),
        placement=target.placement,
    )


def _for_passthrough(target: Passthrough, reading: Reading, settings: Settings) -> Iterator[Step]:
    """What stands in the way of it otherwise is reported by `vfio.plan_passthrough`."""
    for gpu in reading.gpus:
        if gpu.pci == target.function.address and leaves_mode(gpu, settings):
            yield MigModeOff(gpu=gpu.uuid)


def _check_usable(target: Partition, instance: GpuInstance) -> None:
    """Somebody else's partition serves when it is one MIG device, all of it."""
    compute = instance.compute
    if len(compute) == 1 and (target.profile is None or compute[0].slices == target.profile.slices):
        return
    found = ", ".join(f"one of {one.slices} compute slices" for one in compute) or "none"
    raise ClaimError(
        f"device {target.allocated.device} was made outside of this driver and is not one MIG device: a single compute"
        f" instance should fill it, it has {found}; who made it can put that right"
        f" (nvidia-smi mig -i {target.gpu.uuid} -gi {instance.id} -dci, -cci)"
    )


def _check_creatable(
    target: Partition,
    partitions: Sequence[Partition],
    owned: Collection[tuple[str, Placement]],
    settings: Settings,
) -> None:
    device, place, gpu, mig = target.allocated.device, target.placement, target.gpu, target.gpu.mig
    assert mig is not None  # a target is only found where there is
    if gpu.virtualization == VGPU_GUEST:
        raise ClaimError(
            f"device {device} does not exist, and this node is a vGPU guest: its hypervisor partitions GPUs"
        )
    if not settings.dynamic_mig:
        mode = "" if mig.enabled else f"nvidia-smi -i {gpu.uuid} -mig 1; "
        raise ClaimError(
            f"device {device} does not exist: the admin can create it ({mode}nvidia-smi mig -i {gpu.uuid} -cgi"
            f" {target.profile_id}:{place.start} -C), or let this driver do it (PYDRA_NVIDIA_DYNAMIC_MIG=true)"
        )
    for instance in mig.instances:
        if instance.placement.overlaps(place):
            raise ClaimError(
                f"device {device} needs {slices(place)}, where there is {describe(instance, mig.profiles)}:"
                f" {_remover(gpu, instance, owned, settings)}"
            )
    if target.profile is not None:
        starts = {one.placement.start for one in mig.instances if one.profile == target.profile_id}
        starts |= {
            one.placement.start
            for one in partitions
            if one.gpu.uuid == gpu.uuid and one.profile_id == target.profile_id
        }
        if len(starts) > target.profile.most:
            raise ClaimError(
                f"device {device} cannot be created: its GPU can have {target.profile.most} of profile"
                f" {target.profile.name} at a time, and others begin at memory slices"
                f" {', '.join(str(start) for start in sorted(starts - {place.start}))}"
            )


def _remover(gpu: Gpu, instance: GpuInstance, owned: Collection[tuple[str, Placement]], settings: Settings) -> str:
    """Who can remove it, as errors say."""
    if (gpu.uuid, instance.placement) in owned:
        return "another claim has it, and it goes when the pods of that claim have ended"
    at_start = "; PYDRA_NVIDIA_ORPHANS=remove does it at start" if settings.dynamic_mig else ""
    return (
        "it was made outside of this driver, and who made it can remove it"
        f" (nvidia-smi mig -i {gpu.uuid} -gi {instance.id} -dci, then -dgi){at_start}"
    )
