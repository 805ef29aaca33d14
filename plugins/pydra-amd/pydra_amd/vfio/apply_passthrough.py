"""Applies and undoes the step of passthrough: takes a GPU from amdgpu for a guest, and gives it back.

Who uses a GPU follows from its device nodes, and from KFD.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from functools import partial

from pydra import time_left
from pydra_amd.hardware_reader import read_machine
from pydra_amd.host.amdgpu import list_nodes
from pydra_amd.host.kfd import read_users
from pydra_amd.modes.compute_partition import GpuGone
from pydra_amd.steps import BindVfio
from pydra_pci import FunctionState, Tree, VfioBinder, find_others

DEADLINE = "PYDRA_AMD_VFIO_IDLE_DEADLINE"

_AFTER_SECONDS = 5.0
"""Of the call's time, to report who uses the GPU instead of a timeout."""


class Passthrough:
    """`deadline`: how many seconds the users of a GPU are waited for. AMD's library must be closed meanwhile."""

    def __init__(self, tree: Tree, deadline: float) -> None:
        self._tree = tree
        self._deadline = deadline
        self._binder = VfioBinder(tree, variable=DEADLINE, left=_left)

    async def apply(self, step: BindVfio, ours: Collection[str]) -> None:
        """Bind the function; `ours` are the addresses that the same claim passes through. Raises ClaimError."""
        await self._binder.apply(step, ours, partial(self._take, step))

    async def undo(self, step: BindVfio) -> None:
        """Give the function back to the driver it had. Raises DeviceBusy while a guest has it, KernelRefused."""
        await self._binder.undo(step, asyncio.to_thread, deadline=_left(self._deadline))

    async def _take(self, step: BindVfio, found: FunctionState, driver: str) -> None:
        gpu = (await asyncio.to_thread(read_machine, self._tree)).find(step.address) if found.driver else None
        if found.driver and gpu is None:
            raise GpuGone(
                f"GPU {step.address} is bound to {found.driver}, which does not show it any more: its users are "
                "not known, and the kernel would wait for them without end; the kernel's log says why"
            )
        partitions = gpu.partitions if gpu else ()
        nodes = sorted({node for one in partitions for node in list_nodes(one)[1:]})
        numbers = [one.kfd_node for one in partitions]
        await self._binder.bind(
            step,
            driver,
            nodes=nodes,
            find_others=lambda: asyncio.to_thread(self._find_users, nodes, numbers),
            run_closed=asyncio.to_thread,
            deadline=_left(self._deadline),
        )

    def _find_users(self, nodes: Collection[str], numbers: Collection[int]) -> Mapping[int, str]:
        """Who has a node of the GPU open, and who computes on it as KFD has it. Blocks."""
        return find_others(self._tree, nodes, read_users(self._tree, numbers))


def _left(seconds: float) -> float:
    return max(min(seconds, time_left() - _AFTER_SECONDS), 0.0)
