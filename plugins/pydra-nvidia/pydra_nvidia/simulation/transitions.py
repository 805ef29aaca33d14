"""What a GPU forgets when it is reset, taken from its driver, or the machine starts anew. Changes `state` values."""

from __future__ import annotations

from pydra_nvidia.simulation.boards import Board
from pydra_nvidia.simulation.machine import View
from pydra_nvidia.simulation.state import GpuState


def switch_mode(gpu: GpuState, enabled: bool) -> None:
    """The MIG mode comes into effect, where it is another: the driver makes the GPU anew."""
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
    gpu.reset_required = False
    counters = gpu.counters
    counters.ecc_corrected_volatile = counters.ecc_uncorrected_volatile = 0
    counters.remap_pending = counters.retirement_pending = False
    counters.channel_repair_pending = counters.tpc_repair_pending = False


def release_gpu(board: Board, gpu: GpuState) -> None:
    """The NVIDIA driver lets go of it: the MIG mode is kept only where the GPU itself keeps it. It stays lost."""
    model, lost = board.model.mig, gpu.lost
    gpu.mig_pending = gpu.mig_pending and model is not None and model.persistent
    reset_gpu(gpu)
    gpu.lost = lost


def reload_driver(view: View) -> None:
    """The NVIDIA driver is unloaded, or loaded anew: sessions end, all that it managed is forgotten."""
    view.state.loaded += 1
    view.state.events.clear()
    for uuid in view.attached():
        release_gpu(view.boards[uuid], view.state.gpus[uuid])


def reboot(view: View) -> None:
    """The machine starts anew: every GPU that is plugged is back with the NVIDIA driver."""
    reload_driver(view)
    view.state.boot += 1
    for uuid, board in view.boards.items():
        gpu = view.state.gpus[uuid]
        gpu.lost = False
        release_gpu(board, gpu)
        gpu.persistence = board.persistence  # nvidia-persistenced sets it at each start
        gpu.driver, gpu.override = "nvidia" if gpu.plugged else "", ""
