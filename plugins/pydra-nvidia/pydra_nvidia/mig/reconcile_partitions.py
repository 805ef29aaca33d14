"""What the held claims and the hardware disagree on when the backend starts, and what is done about it.

Partitions without an owner are published as they are, or removed where the admin chose that. Claims whose partition
vanished (a reset, an admin) need nothing: its device is reported as unhealthy, and unpreparing finds nothing to undo.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from pydra import ClaimError
from pydra_nvidia.claim_records import Entry
from pydra_nvidia.hardware_types import Gpu, GpuInstance, Reading
from pydra_nvidia.mig.plan_partitions import can_change_mode, describe
from pydra_nvidia.nvml.mig_control import destroy_instance, find_all, find_instance, set_mig_mode
from pydra_nvidia.nvml.pynvml_library import Nvml
from pydra_nvidia.nvml.session import NvmlSession
from pydra_nvidia.settings import Orphans, Settings
from pydra_nvidia.steps import CreateMig


class Orphan(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU instance that no claim has or made; half made without a compute instance."""

    gpu: Gpu
    instance: GpuInstance

    def __str__(self) -> str:
        profiles = self.gpu.mig.profiles if self.gpu.mig is not None else ()
        return f"{describe(self.instance, profiles)}, of gpu-{self.gpu.minor}"


class Cleanup(msgspec.Struct, frozen=True, kw_only=True):
    """What to do: remove these, leave those.

    `empty` are GPUs that can leave MIG mode when that is done.
    """

    remove: tuple[Orphan, ...] = ()
    leave: tuple[Orphan, ...] = ()
    empty: tuple[Gpu, ...] = ()


def plan_cleanup(reading: Reading, entries: Sequence[Entry], *, settings: Settings) -> Cleanup:
    """Decide. As long as the record of a claim cannot be read, nothing is called ownerless.

    A partition's owner is the claim that made it, or that has it although somebody else made it. Who has admin access
    only looks, and has nothing.
    """
    certain = settings.dynamic_mig and not any(entry.unread for entry in entries)
    removes = certain and settings.orphans is Orphans.REMOVE
    made = {
        (step.gpu, step.profile, step.placement)
        for entry in entries
        for step in entry.steps
        if isinstance(step, CreateMig)
    }
    orphans: list[Orphan] = []
    empty: list[Gpu] = []
    for gpu in reading.gpus:
        if gpu.mig is None or not gpu.mig.enabled:
            continue
        held = [hold for entry in entries for hold in entry.holds if hold.hardware == gpu.pci and not hold.admin]
        mine = [
            Orphan(gpu=gpu, instance=one)
            for one in gpu.mig.instances
            if (gpu.uuid, one.profile, one.placement) not in made
            and not any(hold.place is None or hold.place.overlaps(one.placement) for hold in held)
        ]
        orphans += mine
        stays = len(gpu.mig.instances) - len(mine if removes else ())
        if certain and can_change_mode(gpu) and not stays and not held:
            empty.append(gpu)
    return Cleanup(
        remove=tuple(orphans) if removes else (), leave=() if removes else tuple(orphans), empty=tuple(empty)
    )


async def reconcile(
    session: NvmlSession, entries: Sequence[Entry], reading: Reading, *, settings: Settings
) -> tuple[str, ...]:
    """Clean up before anything is served, and tell it for the log; what fails is tried again at the next start."""
    cleanup = plan_cleanup(reading, entries, settings=settings)
    said = [*map(_say_left, cleanup.leave)]
    for orphan in cleanup.remove:
        try:
            if await session.run(partial(_remove, orphan=orphan)):
                said.append(f"removed {orphan}, which no claim has")
        except ClaimError as error:
            said.append(f"{orphan}, which no claim has, could not be removed: {error}")
    for gpu in cleanup.empty:
        try:
            if await session.run(partial(_leave_mode, gpu=gpu)):
                said.append(f"{gpu.uuid} left MIG mode: no partition is on it")
        except ClaimError as error:
            said.append(f"{gpu.uuid} has no partition, and could not leave MIG mode: {error}")
    return tuple(said)


def _say_left(orphan: Orphan) -> str:
    if orphan.instance.compute:
        return f"{orphan}, is adopted: no claim has it"
    return f"{orphan}, is left as it is: no claim has it, and without a compute instance nothing can use it"


def _remove(nvml: Nvml, orphan: Orphan) -> bool:
    """Whether it went: it stays when it is no longer what was decided on."""
    found = find_instance(nvml, orphan.gpu.uuid, orphan.instance.profile, orphan.instance.placement.start)
    if found != orphan.instance:
        return False
    destroy_instance(nvml, orphan.gpu.uuid, found)
    return True


def _leave_mode(nvml: Nvml, gpu: Gpu) -> bool:
    """Whether it was left: somebody else may have made a partition since the decision."""
    if find_all(nvml, gpu.uuid)[0]:
        return False
    set_mig_mode(nvml, gpu.uuid, on=False)
    return True
