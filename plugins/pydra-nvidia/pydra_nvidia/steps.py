"""What can be done to the hardware for a claim, as values: planned before it is done, undone in reverse.

Each kind has an applier in the room that knows it. A step says all that undoing needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

import msgspec

import pydra_pci
from pydra_nvidia.hardware_types import Placement


class _Step(msgspec.Struct, frozen=True, kw_only=True, tag_field="step"):
    """Each kind has a tag, which is its name in plans."""


class MigModeOn(_Step, frozen=True, tag="mig-mode-on"):
    """Switch the GPU to MIG mode. Undone when no partition is left on it; only where that needs no reset."""

    gpu: str


class MigModeOff(_Step, frozen=True, tag="mig-mode-off"):
    """Leave MIG mode, so that the GPU can be given whole or passed through. There is nothing to undo."""

    gpu: str


class CreateMig(_Step, frozen=True, tag="create-mig"):
    """Create a GPU instance at its place and a compute instance that fills it. Undone by destroying both.

    `uuid` is that of the compute instance, where a prepared device remembers it: what has another is not destroyed.
    `absent`, which is in no plan, says that nothing was there when it was planned: what is there now is
    somebody else's.
    """

    gpu: str
    profile: int
    profile_name: str
    placement: Placement
    uuid: str = ""
    absent: bool = False


class SetTimeSlice(_Step, frozen=True, tag="set-time-slice"):
    """Set the time slice of a GPU (0 default, 1 short, 2 medium, 3 long). Undone by setting it to the default.

    `mode` is the compute mode that the GPU had and gets back, as NVML counts; None where it is not known.
    """

    gpu: str
    interval: int
    mode: int | None = None


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


class BindVfio(pydra_pci.BindVfio, frozen=True, kw_only=True, tag="bind-vfio"):
    """Passthrough of a GPU. `persistence`: it gets its persistence mode back with its driver."""

    persistence: bool = False


Step: TypeAlias = MigModeOn | MigModeOff | CreateMig | SetTimeSlice | StartMps | BindVfio


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """That a claim has (a part of) some hardware: the PCI address of its GPU, and the memory slices it covers.

    `place` None: all of it. `share` is the share id where others may hold it too, and `config` what they must agree
    on, as JSON. Holds with `admin` only look.
    """

    device: str
    hardware: str
    place: Placement | None = None
    share: str | None = None
    config: str = ""
    admin: bool = False


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was done, or begun, for one claim, in the order of doing.

    An `ownerless` one has what could not be undone when its claim ended. It holds nothing, and is undone as soon as
    that can be done.
    """

    uid: str
    namespace: str
    name: str
    holds: tuple[Hold, ...] = ()
    steps: tuple[Step, ...] = ()
    ownerless: bool = False


def leave_behind(entry: Entry, steps: tuple[Step, ...]) -> Entry:
    """The ownerless entry with these steps of the claim's; it has a uid that no claim has."""
    return Entry(uid=f"{entry.uid}.left", namespace=entry.namespace, name=entry.name, steps=steps, ownerless=True)


class StepApplier(Protocol):
    """Does and undoes one kind of step; both may be repeated.

    `apply` is all or nothing: when it raises a ClaimError, the hardware is as it was, unless it is
    a `pydra_pci.LeftBehind`.
    `undo` succeeds when there is nothing to undo, and touches nothing that another claim or somebody else made.
    """

    async def apply(self, step: Any, entry: Entry, /) -> None:
        """Do it."""
        ...

    async def undo(self, step: Any, entry: Entry, /) -> None:
        """Undo it."""
        ...
