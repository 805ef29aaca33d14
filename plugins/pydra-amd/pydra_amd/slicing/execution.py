"""Carries out a claim's steps and undoes them. A shell: what the steps are is decided in `slicing.plan`.

A process that is killed anywhere leaves a plan that says at most too much, and undoing what was not done is fine. A
step that cannot be undone stays the claim's, whose record the agent keeps until `unprepare` succeeds.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

from pydra import ClaimError, PydraError, set_status, time_left
from pydra_amd.held_claims import HeldEntries
from pydra_amd.host.driver_module import DriverModule
from pydra_amd.slicing.compute_mode import GpuBusy, GpuGone, set_compute_mode
from pydra_amd.slicing.memory_mode import set_memory_modes
from pydra_amd.slicing.passthrough import Passthrough
from pydra_amd.steps import BindVfio, Entry, SetMemoryMode, Step
from pydra_pci import Tree

_log = logging.getLogger(__name__)

_PATIENCE_SECONDS = 20.0
_LOOK_SECONDS = 0.5
"""Between two tries to change the mode of a GPU that is in use."""


class UndoFailed(ClaimError):
    """A mode that changed for the claim is not set back yet; it is tried again with the next call."""

    reason = "UndoFailed"


class StepExecutor:
    """One change at a time of each GPU. `find_unread` gives the addresses of those that claims without a plan have."""

    def __init__(
        self,
        tree: Tree,
        driver: DriverModule,
        passthrough: Passthrough,
        held: HeldEntries,
        find_unread: Callable[[], Awaitable[Collection[str]]],
    ) -> None:
        self._tree = tree
        self._driver = driver
        self._passthrough = passthrough
        self._held = held
        self._find_unread = find_unread
        self._locks: dict[str, asyncio.Lock] = {}

    async def carry_out(self, entry: Entry) -> None:
        """Do the steps. Raises what a step raised, with the others undone, or UndoFailed.

        A claim that only looks has a change of the memory mode to undo, if it ends last, and none to do.
        """
        self._held.write(entry)
        try:
            async with self._turn(entry.steps):
                for step in entry.steps if any(not hold.admin for hold in entry.holds) else ():
                    await self._do(step, entry)
        except Exception as error:
            await self.take_back(entry, error)
            raise

    async def take_back(self, entry: Entry, error: Exception) -> None:
        """Undo what was done for a claim that cannot be prepared for `error`. Raises UndoFailed, which tells both."""
        try:
            await self.undo(entry)
        except PydraError as failed:
            raise UndoFailed(f"{error}; and undoing what was done for the claim failed: {failed}") from error

    async def undo(self, entry: Entry) -> None:
        """Undo the steps whose GPUs no other claim holds, last first, all although one fails; then forget the claim.

        Raises UndoFailed; the claim then holds its devices as before.
        """
        problems: list[PydraError] = []
        async with self._turn(entry.steps):
            unread = await self._find_unread() if entry.steps else ()
            for step in reversed(entry.steps):
                if not self._is_needed(step, entry, unread):
                    try:
                        await self._undo(step)
                    except PydraError as error:
                        problems.append(error)
        if problems:
            raise UndoFailed("; ".join(map(str, problems)))
        self._held.remove(entry.uid)

    def _is_needed(self, step: Step, entry: Entry, unread: Collection[str]) -> bool:
        """Whether another claim needs what the step did: a reload unloads the driver for all GPUs."""
        holds = [hold for other in self._held.others(entry.uid) for hold in other.holds]
        if isinstance(step, SetMemoryMode):
            return bool(holds or self._held.unread)
        return not {*unread, *(hold.gpu for hold in holds if not hold.admin)}.isdisjoint(step.gpus)

    async def _do(self, step: Step, entry: Entry) -> None:
        if isinstance(step, BindVfio):
            set_status(f"binding {step.address} to {step.target}")
            await self._passthrough.apply(step, {one.address for one in entry.steps if isinstance(one, BindVfio)})
        elif isinstance(step, SetMemoryMode):
            await self._set_memory(dict.fromkeys(step.before, step.target))
        else:
            await self._set_compute(step.gpu, step.target)

    async def _undo(self, step: Step) -> None:
        if isinstance(step, BindVfio):
            set_status(f"giving {step.address} back to {step.before or 'no driver'}")
            await self._passthrough.undo(step)
            if step.compute:
                with _let_go():
                    await self._set_compute(step.address, step.compute)
        elif isinstance(step, SetMemoryMode):
            with _let_go():
                await self._set_memory({address: mode.memory for address, mode in step.before.items()})
            for address, mode in step.before.items():
                with _let_go():
                    await self._set_compute(address, mode.compute)
        elif step.before is not None:
            with _let_go():
                await self._set_compute(step.gpu, step.before)

    async def _set_compute(self, address: str, compute: str) -> None:
        set_status(f"setting the mode of GPU {address} to {compute}")
        await _wait_unused(lambda: asyncio.to_thread(set_compute_mode, self._tree, address, compute))

    async def _set_memory(self, targets: dict[str, str]) -> None:
        await _wait_unused(lambda: set_memory_modes(self._tree, self._driver, targets))

    @asynccontextmanager
    async def _turn(self, steps: Iterable[Step]) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for address in sorted({address for step in steps for address in step.gpus}):
                await stack.enter_async_context(self._locks.setdefault(address, asyncio.Lock()))
            yield


@contextmanager
def _let_go() -> Iterator[None]:
    """A GPU that is gone comes back as the driver makes it, and the claim's pod must be able to end."""
    try:
        yield
    except GpuGone as error:
        _log.warning("a mode is not set back: %s", error)


async def _wait_unused(change: Callable[[], Awaitable[None]]) -> None:
    """Wait for a GPU that is in use, but no more than half of the call's time: the rest is for undoing and others.

    KFD frees a GPU some time after its last process has ended. A longer wait would end after the kubelet's call, whose
    error is what the pod's events tell.
    """
    half = time_left() / 2
    clock = asyncio.get_running_loop().time
    end = clock() + (min(half, _PATIENCE_SECONDS) if math.isfinite(half) else 0)
    while True:
        try:
            return await change()
        except GpuBusy as error:
            if (left := end - clock()) <= 0:
                raise
            set_status(str(error))
        await asyncio.sleep(min(_LOOK_SECONDS, left))
