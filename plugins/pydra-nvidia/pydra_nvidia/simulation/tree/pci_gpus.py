"""Tells the simulated machine what the simulated kernel does with its GPUs."""

from __future__ import annotations

from collections.abc import Sequence

from pydra_nvidia.simulation.machine import Machine
from pydra_nvidia.simulation.transitions import release_gpu
from pydra_nvidia.simulation.tree.pci_kernel import GPU_DRIVER


class GpuListener:
    """The GPUs of `machine` by their PCI addresses; other functions are nothing to it."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def users(self, address: str) -> Sequence[int]:
        """The processes that use the GPU, and those that have NVML open: they keep it open once they asked about it."""
        view = self._machine.read()
        for uuid in view.attached():
            if view.boards[uuid].address == address:
                return (*(process.pid for process in view.state.gpus[uuid].processes), *self._machine.clients())
        return ()

    def moved(self, address: str, driver: str) -> None:
        """The GPU comes to, or goes from, NVML; what the NVIDIA driver managed is forgotten."""
        if uuid := self._find(address):
            with self._machine.change() as view:
                gpu = view.state.gpus[uuid]
                if gpu.driver == GPU_DRIVER and driver != GPU_DRIVER:
                    release_gpu(view.boards[uuid], gpu)
                    gpu.persistence = False
                gpu.driver = driver

    def overridden(self, address: str, driver: str) -> None:
        """Remembered, so that the machine's files can be made anew."""
        if uuid := self._find(address):
            with self._machine.change() as view:
                view.state.gpus[uuid].override = driver

    def _find(self, address: str) -> str | None:
        boards = self._machine.read().boards
        return next((uuid for uuid, board in boards.items() if board.address == address), None)
