"""What is done to the hardware for a claim, and what the claim holds, as values: planned before anything is done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

import pydra_pci
from pydra_amd.hardware_types import Mode


class SetComputeMode(msgspec.Struct, frozen=True, kw_only=True, tag_field="step", tag="set-compute-mode"):
    """Give the GPU at this address another compute mode. Undone by `before`, when no claim holds a part of it.

    `before` is None in a memory mode that changes for claims, which ends with the modes that all GPUs had.
    """

    gpu: str
    before: str | None
    target: str

    @property
    def gpus(self) -> tuple[str, ...]:
        """The addresses of the GPUs that change."""
        return (self.gpu,)


class SetMemoryMode(msgspec.Struct, frozen=True, kw_only=True, tag_field="step", tag="set-memory-mode"):
    """Give all GPUs of the node another memory mode, for which the driver is loaded anew.

    `before` has the mode of each, by address. Undone by it, compute modes too, when no claim holds any of them.
    """

    before: Mapping[str, Mode]
    target: str

    @property
    def gpus(self) -> tuple[str, ...]:
        """The addresses of the GPUs that change."""
        return tuple(sorted(self.before))


class BindVfio(pydra_pci.BindVfio, frozen=True, kw_only=True, tag="bind-vfio"):
    """Take the function from amdgpu for a guest.

    Given back, the GPU gets the mode `compute`; empty: what the driver chooses.
    """

    compute: str = ""

    @property
    def gpus(self) -> tuple[str, ...]:
        """The addresses of the GPUs that change."""
        return (self.address,)


Step: TypeAlias = SetComputeMode | SetMemoryMode | BindVfio

Units: TypeAlias = tuple[tuple[int, int], ...]
"""Compute units of a partition: the first and the last of each range."""


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """That a claim has the partition `index` that the GPU at this address has in `mode`; None: all of the GPU.

    With `passthrough` it has the function.
    Holds with `admin` only look. One with `units` is a share, which has these compute units, or all where it is empty.
    """

    device: str
    gpu: str
    mode: Mode | None = None
    index: int = 0
    admin: bool = False
    units: Units | None = None
    passthrough: bool = False


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a claim holds, and that is done for it, in the order of doing."""

    uid: str
    name: str
    holds: tuple[Hold, ...] = ()
    steps: tuple[Step, ...] = ()
