"""Applies and undoes the step of passthrough: what NVML and nvidia-persistenced have of a GPU is let go of first."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from pydra import Claim, ClaimError, LeftBehind
from pydra_nvidia.host.driver_root import find_driver_root
from pydra_nvidia.host.kernel_driver import read_gpu_information
from pydra_nvidia.host.persistenced import Persistenced
from pydra_nvidia.nvml.maintenance_gate import InMaintenance
from pydra_nvidia.nvml.persistence import PersistenceMode
from pydra_nvidia.nvml.session import NvmlSession
from pydra_nvidia.settings import Settings
from pydra_nvidia.steps import BindVfio
from pydra_nvidia.waiting import left
from pydra_pci import FunctionState, KernelWaits, KernelWork, Loader, Tree, VfioBinder, find_others

DEADLINE = "PYDRA_NVIDIA_VFIO_IDLE_DEADLINE"
_PERSISTENCED = "nvidia-persiste"
"""What the kernel keeps of its name."""


class BindVfioApplier:
    """`load` loads kernel modules; without one, the node's own modprobe does. `kernel` limits what it waits for."""

    def __init__(
        self,
        tree: Tree,
        settings: Settings,
        session: NvmlSession,
        load: Loader | None = None,
        kernel: KernelWork | None = None,
    ) -> None:
        self._tree = tree
        self._deadline = settings.vfio_idle_deadline
        self._session = session
        self._binder = VfioBinder(tree, variable=DEADLINE, left=left, load=load, kernel=kernel, advise=_advise)
        persistenced = Persistenced(tree, partial(find_driver_root, tree, settings))
        self._persistence = PersistenceMode(tree, session, persistenced)

    async def apply(self, step: BindVfio, _result: Any, claim: Claim, /) -> bool:
        """Bind the function. Raises ClaimError with nothing changed; LeftBehind when some of it is, or was before."""
        ours = {one.step.address for one in claim.steps if isinstance(one.step, BindVfio)}
        try:
            await self._binder.apply(step, ours, partial(self._take, step))
        except InMaintenance as error:
            raise LeftBehind(str(error)) from error  # its persistence mode may be off
        return True

    async def undo(self, step: BindVfio, _result: Any, _claim: Claim, /) -> None:
        """Give the function back to the driver it had. Raises DeviceBusy while a guest has it, KernelRefused."""
        await self._binder.undo(step, self._session.run_closed, deadline=left(self._deadline))
        if step.persistence:
            await self._persistence.restore(step.address)

    async def _take(self, step: BindVfio, found: FunctionState, driver: str) -> None:
        use = await self._persistence.read_use(step.address) if found.driver else None
        if use is not None and use.partitioned:
            raise ClaimError(f"{step.address}: the GPU is in MIG mode, or will be; it is passed through without only")
        minor = await asyncio.to_thread(self._read_minor, step.address) if use is None else use.minor
        nodes = () if minor is None or not found.driver else (f"/dev/nvidia{minor}",)
        persistent = bool(found.driver) and await self._persistence.release(step.address)
        try:
            await self._binder.bind(
                step,
                driver,
                nodes=nodes,
                find_others=partial(self._find_others, step.address, nodes),
                run_closed=self._session.run_closed,
                deadline=left(self._deadline),
            )
        except KernelWaits:
            raise  # another call to the driver of this GPU would wait as long
        except BaseException:
            if persistent:
                await self._persistence.restore(step.address)
            raise

    async def _find_others(self, address: str, nodes: Collection[str]) -> Mapping[int, str]:
        """Who uses the GPU beside this process."""
        use = await self._persistence.read_use(address) if nodes else None
        return await asyncio.to_thread(find_others, self._tree, nodes, use.processes if use is not None else ())

    def _read_minor(self, address: str) -> int | None:
        """For a GPU that the driver has and NVML cannot see."""
        minor = read_gpu_information(self._tree, address).get("Device Minor", "")
        return int(minor) if minor.isdecimal() else None


def _advise(users: Mapping[int, str]) -> str:
    if _PERSISTENCED not in users.values():
        return ""
    return (
        "; nvidia-persistenced is asked to release the GPU where its socket is found, below the driver's root or"
        " PYDRA_HOST_ROOT: mount the host's / there, or stop the daemon"
    )
