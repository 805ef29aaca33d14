"""What can be done to the hardware for a claim, as values: planned before it is done, undone in reverse, by the agent.

Each kind has an applier in the package for its subject. A step has all that undoing needs, except what only doing it
could tell, which is its result. Its `key` has the target and the wanted state, and not the state before: claims whose
steps have the same key have one change in common. `holds` are names of devices of the claim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

import pydra_pci
from pydra_nvidia.hardware_types import Placement


class _Step(msgspec.Struct, frozen=True, kw_only=True, tag_field="step"):
    """Each kind has a tag, which is its name in plans."""

    holds: tuple[str, ...] | None = None


class _MigMode(_Step, frozen=True):
    gpu: str

    @property
    def key(self) -> str:
        """The GPU."""
        return self.gpu

    def __str__(self) -> str:
        return f"{self.__struct_config__.tag} of {self.gpu}"


class MigModeOn(_MigMode, frozen=True, tag="mig-mode-on"):
    """Switch the GPU to MIG mode. Undone when no partition is left on it; only where that needs no reset."""


class MigModeOff(_MigMode, frozen=True, tag="mig-mode-off"):
    """Leave MIG mode, so that the GPU can be given whole or passed through. There is nothing to undo."""


class CreateMig(_Step, frozen=True, tag="create-mig"):
    """Create a GPU instance at its place and a compute instance that fills it. Undone by destroying both.

    Its result is the UUID of the compute instance: what has another is not destroyed.
    """

    gpu: str
    profile: int
    profile_name: str
    placement: Placement

    @property
    def key(self) -> str:
        """The GPU, the profile and the place."""
        return f"{self.gpu}/{self.profile}/{self.placement.start}+{self.placement.size}"

    def __str__(self) -> str:
        return f"create-mig {self.profile_name} at memory slice {self.placement.start} of {self.gpu}"


class SetTimeSlice(_Step, frozen=True, tag="set-time-slice"):
    """Set the time slice of a GPU (0 default, 1 short, 2 medium, 3 long). Undone by setting it to the default.

    `mode` is the compute mode that the GPU had and gets back, as NVML counts; None where it is not known.
    """

    gpu: str
    interval: int
    mode: int | None = None

    @property
    def key(self) -> str:
        """The GPU and the time slice."""
        return f"{self.gpu}/{self.interval}"

    def __str__(self) -> str:
        return f"set-time-slice {self.interval} of {self.gpu}"


class StartMps(_Step, frozen=True, tag="start-mps"):
    """Run an MPS control daemon for `devices` (UUIDs of GPUs, or of one partition), and wait until it is ready.

    `id` names it and its directories. `pinned_mib` maps UUIDs to limits in MiB. While it runs the GPUs `exclusive` are
    in the compute mode EXCLUSIVE_PROCESS. Undone by stopping it, and by their compute modes before: `modes` by UUID, as
    NVML counts, DEFAULT for those that are not in it.

    For a partition, whose UUID exists only after an earlier step, `partition` is its GPU's UUID and its place.
    """

    id: str
    devices: tuple[str, ...] = ()
    partition: tuple[str, Placement] | None = None
    exclusive: tuple[str, ...] = ()
    modes: Mapping[str, int] = {}
    thread_percentage: int | None = None
    pinned_mib: Mapping[str, int] = {}
    default_pinned_mib: int | None = None
    multi_user: bool = False

    @property
    def key(self) -> str:
        """The daemon's id, which has the claim's uid."""
        return self.id

    def __str__(self) -> str:
        return f"start-mps {self.id}"


class ActivateFabric(_Step, frozen=True, tag="activate-fabric"):
    """Let Fabric Manager connect these GPUs (PCI addresses), which are its partition. Undone by deactivating it.

    `partition` is the ID that it had. Its `members` are how Fabric Manager identifies the GPUs: another table of
    partitions may give the ID to other GPUs. `persistent` of them have a persistence mode, which they get back after
    each change.
    """

    partition: int
    gpus: tuple[str, ...]
    members: tuple[str, ...]
    persistent: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The GPUs."""
        return ",".join(self.gpus)

    def __str__(self) -> str:
        return f"activate-fabric {self.partition} of {', '.join(self.gpus)}"


class BindVfio(pydra_pci.BindVfio, frozen=True, kw_only=True, tag="bind-vfio"):
    """Passthrough of a GPU. `persistence`: it gets its persistence mode back with its driver."""

    persistence: bool = False


Step: TypeAlias = MigModeOn | MigModeOff | CreateMig | ActivateFabric | SetTimeSlice | StartMps | BindVfio
STEP_TYPES: Sequence[type] = (MigModeOn, MigModeOff, CreateMig, ActivateFabric, SetTimeSlice, StartMps, BindVfio)
