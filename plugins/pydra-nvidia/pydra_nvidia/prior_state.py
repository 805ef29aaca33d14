"""Adds to steps what they will change and what cannot be read afterwards, so that undoing restores exactly that."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from pydra_nvidia.host.pci import DRIVER
from pydra_nvidia.host.persistenced import Persistenced
from pydra_nvidia.nvml.compute_mode import read_compute_mode
from pydra_nvidia.nvml.session import NvmlSession
from pydra_nvidia.steps import ActivateFabric, BindVfio, SetTimeSlice, StartMps, Step


class PriorState:
    """Compute modes from NVML, and what nvidia-persistenced keeps; both block."""

    def __init__(self, session: NvmlSession, persistenced: Persistenced) -> None:
        self._session = session
        self._persistenced = persistenced

    def remember(self, steps: Sequence[Step], begun: Collection[Step]) -> tuple[Step, ...]:
        """The steps with the state before them. Raises NvmlError, PersistenceFailed.

        `begun` are those of other claims: the agent replaces an equal one by theirs, which has the state before.
        """
        known = {one.key for one in begun if isinstance(one, BindVfio | ActivateFabric)}
        return tuple([self._complete(step, known) for step in steps])

    def _complete(self, step: Step, known: Collection[str]) -> Step:
        match step:
            case SetTimeSlice():
                return replace(step, mode=self._read_mode(step.gpu))
            case StartMps() if step.exclusive:
                found = {gpu: self._read_mode(gpu) for gpu in step.exclusive}
                return replace(step, modes={gpu: mode for gpu, mode in found.items() if mode is not None})
            case BindVfio() if step.before == DRIVER and step.key not in known:
                # NVML in a container reports the daemon's GPUs as not persistent.
                return replace(step, persistence=step.persistence or self._persistenced.keeps(step.address))
            case ActivateFabric() if step.key not in known:
                kept = {address for address in step.gpus if self._persistenced.keeps(address)}
                return replace(step, persistent=tuple(sorted(kept | set(step.persistent))))
        return step

    def _read_mode(self, gpu: str) -> int | None:
        return self._session.run_here(lambda nvml: read_compute_mode(nvml, gpu))
