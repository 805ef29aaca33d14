"""Applies and undoes the step of Fabric Manager's partitions.

Fabric Manager resets the links of GPUs whose partition it changes, so nothing may keep them initialised meanwhile: not
their persistence mode, which they get back afterwards, and not this process's session with NVML.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from pydra import Claim, ClaimError, LeftBehind, UndoLater
from pydra_nvidia.fabric.active_partitions import ActivePartitions, RecordsUnread
from pydra_nvidia.fabric.plan_fabric import find_group
from pydra_nvidia.nvfm import AWAY, FabricManagerError, Group
from pydra_nvidia.nvml.maintenance_gate import InMaintenance
from pydra_nvidia.nvml.persistence import PersistenceMode
from pydra_nvidia.nvml.session import NvmlSession
from pydra_nvidia.steps import ActivateFabric
from pydra_nvidia.waiting import in_thread


class FabricChanged(ClaimError):
    """Fabric Manager has other partitions by now than when the claim was planned."""

    reason = "FabricPartitionsChanged"


class ActivateFabricApplier:
    """Both are idempotent: Fabric Manager says what is active, and gets the list first where it does not have it."""

    def __init__(self, partitions: ActivePartitions, session: NvmlSession, persistence: PersistenceMode) -> None:
        self._partitions = partitions
        self._session = session
        self._persistence = persistence

    async def apply(self, step: ActivateFabric, _result: Any, claim: Claim, /) -> bool:
        """Raises LeftBehind; FabricManagerError, FabricChanged, NvmlError, PersistenceFailed with nothing changed."""
        self._partitions.begin(claim.uid, step)
        found = await self._find(step)
        if found is None:
            raise FabricChanged(f"Fabric Manager no longer has a partition of exactly {', '.join(step.gpus)}")
        if found.active:
            await self._restore(step.persistent)
            return True
        try:
            await self._change(step, partial(self._partitions.activate, found.id))
        except ClaimError as error:
            if await self._may_be_active(step):
                raise LeftBehind(f"Fabric Manager's partition {found.id} may be active: {error}") from error
            if isinstance(error, InMaintenance):
                raise LeftBehind(str(error)) from error  # persistence modes may be off
            raise
        return True

    async def undo(self, step: ActivateFabric, _result: Any, claim: Claim, /) -> None:
        """Raises UndoLater while Fabric Manager is away; FabricManagerError."""
        self._partitions.end(claim.uid, step)
        try:
            found = await self._find(step)
            if found is not None and found.active:
                await self._change(step, partial(self._partitions.deactivate, found.id))
            else:
                await self._restore(step.persistent)
        except RecordsUnread as error:
            raise UndoLater(str(error)) from error
        except FabricManagerError as error:
            if error.code not in AWAY:
                raise
            raise UndoLater(str(error)) from error

    async def _find(self, step: ActivateFabric) -> Group | None:
        return find_group(await in_thread(self._partitions.list_groups), step)

    async def _may_be_active(self, step: ActivateFabric) -> bool:
        """Whether it is active, or Fabric Manager does not say: it may have done what it has not answered."""
        try:
            found = await self._find(step)
        except ClaimError:
            return True
        return found is not None and found.active

    async def _change(self, step: ActivateFabric, work: Callable[[], None]) -> None:
        kept: list[str] = []
        try:
            for address in step.gpus:
                kept += [address] if await self._persistence.release(address) else []
            await self._session.run_closed(work)
        finally:
            await self._restore(dict.fromkeys((*kept, *step.persistent)))

    async def _restore(self, addresses: Iterable[str]) -> None:
        """Let GPUs have their persistence mode; an earlier process may have been killed before it did."""
        for address in addresses:
            await self._persistence.restore(address)
