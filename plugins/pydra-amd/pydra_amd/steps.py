"""What is done to the hardware for a claim, as values: planned before anything is done.

A step's `key` is what it changes, and to what. `holds` are devices of the claim, which stay held while it cannot be
undone. The state before is a field of it, which `plan` reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

import pydra_pci
from pydra_amd.hardware_types import Mode


class SetComputePartition(msgspec.Struct, frozen=True, kw_only=True, tag_field="step", tag="set-compute-partition"):
    """Give the GPU at this address another compute partition mode. Undone by `before`.

    `before` is None in a memory mode that changes for claims, which ends with the modes that all GPUs had.
    """

    gpu: str
    before: str | None
    target: str
    holds: tuple[str, ...] = ()
    """The claim's devices of the GPU."""

    @property
    def gpus(self) -> tuple[str, ...]:
        """The addresses of the GPUs that change."""
        return (self.gpu,)

    @property
    def key(self) -> str:
        """Several claims can have partitions of one GPU in one mode."""
        return f"{self.gpu}={self.target}"

    def __str__(self) -> str:
        """`set-compute-partition cpx of GPU 0000:05:00.0`, for messages."""
        return f"set-compute-partition {self.target} of GPU {self.gpu}"


class SetMemoryPartition(msgspec.Struct, frozen=True, kw_only=True, tag_field="step", tag="set-memory-partition"):
    """Give all GPUs of the node another memory mode, for which the driver is reloaded.

    `before` has the mode of each, by address. Undone by it, compute partition modes too.
    """

    before: Mapping[str, Mode]
    target: str
    holds: tuple[str, ...] = ()
    """All GPUs, since a claim of any of them needs the driver."""

    @property
    def gpus(self) -> tuple[str, ...]:
        """The addresses of the GPUs that change."""
        return tuple(sorted(self.before))

    @property
    def key(self) -> str:
        """All claims of the node have it, as long as one needs it."""
        return self.target

    def __str__(self) -> str:
        """`set-memory-partition nps4`, for messages."""
        return f"set-memory-partition {self.target}"


class BindVfio(pydra_pci.BindVfio, frozen=True, kw_only=True, tag="bind-vfio"):
    """Take the function from amdgpu for a guest.

    Given back, the GPU gets the mode `compute`; empty: what the driver chooses.
    """

    compute: str = ""

    @property
    def gpus(self) -> tuple[str, ...]:
        """The addresses of the GPUs that change."""
        return (self.address,)


Step: TypeAlias = SetComputePartition | SetMemoryPartition | BindVfio

STEP_TYPES = (SetComputePartition, SetMemoryPartition, BindVfio)
