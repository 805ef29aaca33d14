"""Carries out one step, and undoes one. Which, and when, the agent decides."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from pydra import Claim, ClaimError, LeftBehind, UndoLater, set_status, time_left
from pydra_amd.host.driver_reload import DriverModule
from pydra_amd.modes.compute_partition import GpuBusy, GpuGone, ModeRefused, ModeUncertain, set_compute_partition
from pydra_amd.modes.memory_partition import set_memory_partitions
from pydra_amd.steps import BindVfio, SetMemoryPartition, Step
from pydra_amd.vfio.apply_passthrough import Passthrough
from pydra_pci import Tree

_log = logging.getLogger(__name__)

_PATIENCE_SECONDS = 20.0
_LOOK_SECONDS = 0.5
"""Between two tries to change the mode of a GPU that is in use."""

_AFTER_SECONDS = 5.0
"""Of the call's time, so that a GPU that stays in use is reported, instead of a timeout."""


class StepAppliers:
    """The changes of this node's GPUs. AMD's library must be closed meanwhile."""

    def __init__(self, tree: Tree, driver: DriverModule, passthrough: Passthrough) -> None:
        self._tree = tree
        self._driver = driver
        self._passthrough = passthrough

    async def apply(self, step: Step, claim: Claim) -> None:
        """Make the change; a claim with admin access only keeps a memory mode, and changes nothing.

        Raises ClaimError: nothing is changed. LeftBehind: something may be.
        """
        if all(one.admin_access for one in claim.devices):
            return
        if isinstance(step, BindVfio):
            set_status(f"binding {step.address} to {step.target}")
            ours = {one.step.address for one in claim.steps if isinstance(one.step, BindVfio)}
            await self._passthrough.apply(step, ours)
        elif isinstance(step, SetMemoryPartition):
            try:
                await self._set_memory(dict.fromkeys(step.before, step.target))
            except GpuGone as error:  # after the reload
                raise LeftBehind(str(error)) from error
        else:
            try:
                await self._set_compute(step.gpu, step.target)
            except GpuGone as error:
                raise GpuGone(f"{error}; delete the pod to have another GPU") from error

    async def undo(self, step: Step) -> None:
        """Undo the change. Raises UndoLater while amdgpu does not have the GPU."""
        if isinstance(step, BindVfio):
            set_status(f"giving {step.address} back to {step.before or 'no driver'}")
            await self._passthrough.undo(step)
            if step.compute:
                await self._reset_compute(step.address, step.compute)
        elif isinstance(step, SetMemoryPartition):
            # No GPU is waited for that is gone or refuses: no claim could have another memory mode until then.
            with _let_go(GpuGone):
                await self._set_memory({address: mode.memory for address, mode in step.before.items()})
            for address, mode in step.before.items():
                with _let_go(GpuGone, ModeRefused, ModeUncertain):
                    await self._set_compute(address, mode.compute)
        elif step.before is not None:
            await self._reset_compute(step.gpu, step.before)

    async def _reset_compute(self, address: str, compute: str) -> None:
        try:
            await self._set_compute(address, compute)
        except GpuGone as error:
            raise UndoLater(f"the mode {compute} is set again when amdgpu has the GPU: {error}") from error

    async def _set_compute(self, address: str, compute: str) -> None:
        set_status(f"setting the mode of GPU {address} to {compute}")
        await _wait_unused(lambda: asyncio.to_thread(set_compute_partition, self._tree, address, compute))

    async def _set_memory(self, targets: dict[str, str]) -> None:
        await _wait_unused(lambda: set_memory_partitions(self._tree, self._driver, targets))


@contextmanager
def _let_go(*errors: type[ClaimError]) -> Iterator[None]:
    """After these errors the GPU has the mode that the driver gives it."""
    try:
        yield
    except errors as error:
        _log.warning("a mode is not set back: %s", error)


async def _wait_unused(change: Callable[[], Awaitable[None]]) -> None:
    """Wait for a GPU that is in use.

    KFD frees a GPU some time after its last process has ended. A longer wait would end after the kubelet's call, whose
    error is what the pod's events show.
    """
    left = time_left()
    clock = asyncio.get_running_loop().time
    end = clock() + (min(left - _AFTER_SECONDS, _PATIENCE_SECONDS) if math.isfinite(left) else 0)
    while True:
        try:
            return await change()
        except GpuBusy as error:
            if (left := end - clock()) <= 0:
                raise
            set_status(str(error))
        await asyncio.sleep(min(_LOOK_SECONDS, left))
