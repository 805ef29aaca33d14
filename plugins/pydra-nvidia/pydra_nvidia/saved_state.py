"""State that the steps of a claim will change, saved in its plan, so that undoing restores exactly that.

What another claim changed already is known from that claim's steps only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from pydra_nvidia.host.pci import DRIVER
from pydra_nvidia.host.persistenced import Persistenced
from pydra_nvidia.host.tree import Tree
from pydra_nvidia.nvml.session import NvmlSession
from pydra_nvidia.sharing.gpu_modes import read_compute_mode
from pydra_nvidia.steps import BindVfio, Entry, SetTimeSlice, StartMps, Step
from pydra_nvidia.vfio.functions import read_function


class SavedState:
    """Compute modes from NVML, overrides of kernel drivers from /sys, what nvidia-persistenced keeps; all block."""

    def __init__(self, session: NvmlSession, tree: Tree, persistenced: Persistenced) -> None:
        self._session = session
        self._tree = tree
        self._persistenced = persistenced

    def remember(self, entry: Entry, others: Iterable[Entry]) -> Entry:
        """The entry, whose steps say what was before. Raises NvmlError, PersistenceFailed."""
        begun = [step for other in others if other.uid != entry.uid for step in other.steps]
        return replace(entry, steps=tuple(self._complete(step, begun) for step in entry.steps))

    def _complete(self, step: Step, begun: list[Step]) -> Step:
        match step:
            case SetTimeSlice():
                return replace(step, mode=self._mode(step.gpu, begun))
            case StartMps() if step.exclusive:
                found = {gpu: self._mode(gpu, begun) for gpu in step.exclusive}
                return replace(step, modes={gpu: mode for gpu, mode in found.items() if mode is not None})
            case BindVfio() if step.before != step.target and step not in begun:
                override = read_function(self._tree, step.address).override
                # NVML in a container tells of the daemon's GPUs that they are not persistent.
                persistent = step.persistence or (step.before == DRIVER and self._persistenced.keeps(step.address))
                return replace(step, override=override, persistence=persistent)
        return step

    def _mode(self, gpu: str, begun: list[Step]) -> int | None:
        for mode in _modes_before(gpu, begun):
            return mode
        return self._session.run_here(lambda nvml: read_compute_mode(nvml, gpu))


def _modes_before(gpu: str, begun: Iterable[Step]) -> Iterator[int | None]:
    for step in begun:
        match step:
            case SetTimeSlice() if step.gpu == gpu:
                yield step.mode
            case StartMps() if gpu in step.exclusive:
                yield step.modes.get(gpu)
