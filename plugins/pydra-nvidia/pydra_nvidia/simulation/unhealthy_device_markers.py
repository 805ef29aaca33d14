"""Files `unhealthy/DEVICE` in the machine's directory, by which the page of `pydra dev` breaks and repairs devices."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from pydra_nvidia.simulation.inject import lose_gpu
from pydra_nvidia.simulation.machine_store import Machine
from pydra_nvidia.simulation.machine_transitions import reset_gpu

_DEVICE = re.compile(r"gpu-(\d+)(-mig-.+)?")


class UnhealthyFiles:
    """The GPU of a device with a file has fallen off the bus; a reset repairs it when none of its devices has one."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._directory = os.path.join(machine.path, "unhealthy")
        self._names: Sequence[str] = ()
        os.makedirs(self._directory, exist_ok=True)

    def follow(self) -> None:
        """Look whether there are other files now."""
        names = os.listdir(self._directory)
        if names == self._names:
            return
        self._names = names
        minors = {int(found[1]) for found in map(_DEVICE.fullmatch, names) if found}
        with self._machine.change() as view:
            for board in view.boards.values():
                gpu = view.state.gpus[board.uuid]
                was, gpu.has_unhealthy_file = gpu.has_unhealthy_file, board.minor in minors
                if gpu.has_unhealthy_file and not was:
                    lose_gpu(self._machine, view, board)
                elif was and not gpu.has_unhealthy_file:
                    reset_gpu(gpu)
