"""What becomes of a simulated machine and its GPUs: new, in another MIG mode, reset, without a driver, rebooted.

The state is changed in place, within `Machine.change`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pydra_nvidia.simulation.gpu_model import ComputeProfile, GpuProfile
from pydra_nvidia.simulation.machine_state import ComputeState, GpuState, InstanceState, View
from pydra_nvidia.simulation.scenario_gpus import Board, derive_mig_uuid


def new_gpu(board: Board) -> GpuState:
    """A GPU as the scenario says that a new machine has it."""
    group = board.group
    return GpuState(
        plugged=group.plugged,
        driver=group.driver if group.plugged else "",
        mig=group.mig,
        mig_pending=group.mig,
        instances=_new_instances(board),
        lost=group.lost,
    )


def _new_instances(board: Board) -> list[InstanceState]:
    instances: list[InstanceState] = []
    for number, preset in enumerate(board.group.instances):
        assert board.model.mig is not None  # the scenario was checked
        profile = board.model.mig.named(preset.profile)
        assert profile is not None
        compute = (profile.slices,) if preset.compute is None else preset.compute
        instances.append(make_instance(board, instances, profile, preset.start, serial=-1 - number, compute=compute))
    return instances


def make_instance(
    board: Board,
    others: Collection[InstanceState],
    profile: GpuProfile,
    start: int,
    *,
    serial: int,
    compute: Sequence[int] = (),
) -> InstanceState:
    """A GPU instance beside these, with compute instances of so many slices each.

    Its id is 0 if it has the whole GPU, else the lowest free from 1 on.
    """
    used = {one.id for one in others}
    is_whole = board.model.mig is not None and profile.size == board.model.mig.memory_slices
    id_ = 0 if is_whole else next(number for number in range(1, 64) if number not in used)
    made = InstanceState(id=id_, profile=profile.id, start=start, size=profile.size, serial=serial)
    for slices in compute:
        kind = next(one for one in profile.compute_profiles() if one.slices == slices)
        add_compute(board, made, kind, sum(one.slices for one in made.compute))
    return made


def add_compute(board: Board, instance: InstanceState, profile: ComputeProfile, start: int) -> ComputeState:
    """Another compute instance in a GPU instance, with the lowest free id."""
    used = {one.id for one in instance.compute}
    id_ = next(number for number in range(8) if number not in used)
    uuid = derive_mig_uuid(board.uuid, instance.id, id_)
    made = ComputeState(id=id_, profile=profile.id, start=start, slices=profile.slices, uuid=uuid)
    instance.compute = sorted([*instance.compute, made], key=lambda one: one.id)
    return made


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
        gpu.persistence = True  # nvidia-persistenced sets it at each start
        gpu.driver, gpu.override = "nvidia" if gpu.plugged else "", ""
