"""What the held claims and the hardware disagree on when the backend starts, and what is done about it.

Partitions without an owner are published as they are, or removed where the admin chose that. Claims whose partition
vanished (a reset, an admin) need nothing: its device is reported as unhealthy, and unpreparing finds nothing to undo.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import msgspec

from pydra import ClaimError
from pydra_nvidia.claim_records import Entry, Hold
from pydra_nvidia.hardware_types import Gpu, GpuInstance, Reading
from pydra_nvidia.mig.plan_partitions import can_change_mode, describe
from pydra_nvidia.nvml.mig_control import destroy_instance, find_all, find_instance, set_mig_mode
from pydra_nvidia.nvml.pynvml_library import Nvml
from pydra_nvidia.nvml.session import NvmlSession
from pydra_nvidia.settings import Orphans, Settings
from pydra_nvidia.steps import CreateMig


class Orphan(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU instance that no claim has or made; half made without a compute instance. `name` is for people."""

    gpu: str
    instance: GpuInstance
    name: str


class Cleanup(msgspec.Struct, frozen=True, kw_only=True):
    """What to do: remove these, leave those.

    `empty` are GPUs that can leave MIG mode when that is done.
    """

    remove: tuple[Orphan, ...] = ()
    leave: tuple[Orphan, ...] = ()
    empty: tuple[Gpu, ...] = ()


def plan_cleanup(
    reading: Reading,
    entries: Sequence[Entry],
    *,
    settings: Settings,
) -> Cleanup:
    """Decide. As long as the record of a claim cannot be read, nothing is called ownerless."""
    certain = settings.dynamic_mig and not any(entry.unread for entry in entries)
    remove: list[Orphan] = []
    leave: list[Orphan] = []
    empty: list[Gpu] = []
    for gpu in reading.gpus:
        if gpu.mig is None or not gpu.mig.enabled:
            continue
        orphans = [
            Orphan(
                gpu=gpu.uuid,
                instance=one,
                name=f"{describe(one, gpu.mig.profiles)}, of gpu-{gpu.minor}",
            )
            for one in gpu.mig.instances
            if not _has_owner((gpu.uuid, gpu.pci), one, entries)
        ]
        removes = certain and settings.orphans is Orphans.REMOVE
        (remove if removes else leave).extend(orphans)
        stays = len(gpu.mig.instances) - len(orphans if removes else ())
        if certain and can_change_mode(gpu) and not stays and not _is_held((gpu.uuid, gpu.pci), entries):
            empty.append(gpu)
    return Cleanup(remove=tuple(remove), leave=tuple(leave), empty=tuple(empty))


async def reconcile(
    session: NvmlSession, entries: Sequence[Entry], reading: Reading, *, settings: Settings
) -> tuple[str, ...]:
    """Clean up before anything is served, and tell it for the log; what fails is tried again at the next start."""
    cleanup = plan_cleanup(reading, entries, settings=settings)
    said = [*map(_say_left, cleanup.leave)]
    for orphan in cleanup.remove:
        try:
            if await session.run(partial(_remove, orphan=orphan)):
                said.append(f"removed {orphan.name}, which no claim has")
        except ClaimError as error:
            said.append(f"{orphan.name}, which no claim has, could not be removed: {error}")
    for gpu in cleanup.empty:
        try:
            if await session.run(partial(_leave_mode, gpu=gpu)):
                said.append(f"{gpu.uuid} left MIG mode: no partition is on it")
        except ClaimError as error:
            said.append(f"{gpu.uuid} has no partition, and could not leave MIG mode: {error}")
    return tuple(said)


def _has_owner(gpu: tuple[str, str], instance: GpuInstance, entries: Iterable[Entry]) -> bool:
    """Whether a claim made it, or has it although somebody else made it. `gpu` is its UUID and its address."""
    for entry in entries:
        for step in entry.steps:
            if isinstance(step, CreateMig) and _is_at(step, gpu[0], instance):
                return True
        for hold in _holds_of(gpu, (entry,)):
            if hold.place is None or hold.place.overlaps(instance.placement):
                return True
    return False


def _is_held(gpu: tuple[str, str], entries: Iterable[Entry]) -> bool:
    return any(_holds_of(gpu, entries))


def _holds_of(gpu: tuple[str, str], entries: Iterable[Entry]) -> Iterator[Hold]:
    """Who has admin access only looks, and has nothing."""
    for entry in entries:
        for hold in entry.holds:
            if hold.hardware in gpu and not hold.admin:
                yield hold


def _is_at(step: CreateMig, gpu: str, instance: GpuInstance) -> bool:
    return (step.gpu, step.profile, step.placement) == (gpu, instance.profile, instance.placement)


def _say_left(orphan: Orphan) -> str:
    if orphan.instance.compute:
        return f"{orphan.name}, is adopted: no claim has it"
    return f"{orphan.name}, is left as it is: no claim has it, and without a compute instance nothing can use it"


def _remove(nvml: Nvml, orphan: Orphan) -> bool:
    """Whether it went: it stays when it is no longer what was decided on."""
    found = find_instance(nvml, orphan.gpu, orphan.instance.profile, orphan.instance.placement.start)
    if found is None or found != orphan.instance:
        return False
    destroy_instance(nvml, orphan.gpu, found)
    return True


def _leave_mode(nvml: Nvml, gpu: Gpu) -> bool:
    """Whether it was left: somebody else may have made a partition since the decision."""
    if find_all(nvml, gpu.uuid)[0]:
        return False
    set_mig_mode(nvml, gpu.uuid, on=False)
    return True
