"""What becomes of a simulated machine and its GPUs: new, in another MIG mode, reset, without a driver, rebooted.

The state is changed in place, within `Machine.change`.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from pydra_nvidia.simulation.machine_state import ComputeState, Counters, GpuState, InstanceState, View
from pydra_nvidia.simulation.scenario_gpus import Board, derive_mig_uuid


def new_gpu(board: Board) -> GpuState:
    """A GPU as the scenario says that a new machine has it."""
    condition = board.condition
    return GpuState(
        plugged=board.plugged,
        driver=board.driver if board.plugged else "",
        mig=board.mig,
        mig_pending=board.mig_pending,
        instances=_new_instances(board),
        persistence=board.persistence,
        lost=condition.lost,
        recovery=condition.recovery,
        counters=msgspec.convert(condition, Counters, from_attributes=True),
    )


def _new_instances(board: Board) -> list[InstanceState]:
    instances: list[InstanceState] = []
    given = {preset.id for preset in board.instances}
    for number, preset in enumerate(board.instances):
        assert board.model.mig is not None  # the scenario was checked
        profile = board.model.mig.named(preset.profile)
        assert profile is not None
        whole = profile.size == board.model.mig.memory_slices
        id_ = lowest_instance_id(instances, whole=whole, taken=given) if preset.id is None else preset.id
        compute: list[ComputeState] = []
        start = 0
        for position, part in enumerate(preset.compute_parts(profile.slices)):
            kind = next(one for one in profile.compute_profiles() if one.slices == part.slices)
            start = start if part.start is None else part.start
            compute_id = position if part.id is None else part.id
            compute.append(
                ComputeState(
                    id=compute_id,
                    profile=kind.id,
                    start=start,
                    slices=part.slices,
                    uuid=part.uuid or derive_mig_uuid(board.uuid, id_, compute_id),
                )
            )
            start += part.slices
        instances.append(
            InstanceState(
                id=id_,
                profile=profile.id,
                start=preset.start,
                size=profile.size,
                serial=-1 - number,
                compute=compute,
            )
        )
    return instances


def lowest_instance_id(instances: Collection[InstanceState], *, whole: bool, taken: Collection[int | None] = ()) -> int:
    """The id that a new GPU instance gets: 0 for one that has the whole GPU, else the lowest free from 1 on."""
    used = {one.id for one in instances} | set(taken)
    return 0 if whole else next(number for number in range(1, 64) if number not in used)


def switch_mode(gpu: GpuState, enabled: bool) -> None:
    """The MIG mode comes into effect, where it is another: the driver makes the GPU again."""
    if gpu.mig != enabled:
        gpu.mig = enabled
        gpu.epoch += 1


def reset_gpu(gpu: GpuState) -> None:
    """A reset: the pending MIG mode comes into effect; instances, processes and what was to be done by it are gone."""
    gpu.lost = False
    switch_mode(gpu, gpu.mig_pending)
    gpu.instances.clear()
    gpu.processes.clear()
    gpu.compute_mode = gpu.time_slice = gpu.recovery = 0
    counters = gpu.counters
    counters.ecc_corrected_volatile = counters.ecc_uncorrected_volatile = 0
    counters.remap_pending = counters.retirement_pending = False


def release_gpu(board: Board, gpu: GpuState) -> None:
    """The NVIDIA driver lets go of it: the MIG mode is kept only where the GPU itself keeps it. It stays lost."""
    model, lost = board.model.mig, gpu.lost
    gpu.mig_pending = gpu.mig_pending and model is not None and model.persistent
    reset_gpu(gpu)
    gpu.lost = lost


def reload_driver(view: View) -> None:
    """The NVIDIA driver is unloaded, or reloaded: sessions end, all that it managed is forgotten."""
    view.state.loaded += 1
    view.state.events.clear()
    for uuid in view.attached():
        release_gpu(view.boards[uuid], view.state.gpus[uuid])


def reboot(view: View) -> None:
    """The machine restarts: every GPU that is plugged is back with the NVIDIA driver."""
    reload_driver(view)
    view.state.boot += 1
    view.state.fabric.clear()
    view.state.fabric_phase = "normal"
    for uuid, board in view.boards.items():
        gpu = view.state.gpus[uuid]
        gpu.lost = False
        release_gpu(board, gpu)
        gpu.persistence = board.persistence  # nvidia-persistenced sets it at each start
        gpu.driver, gpu.override = "nvidia" if gpu.plugged else "", ""
