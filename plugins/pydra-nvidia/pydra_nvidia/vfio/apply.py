"""Applies and undoes the step of passthrough: binds functions for it, and gives them back.

What a killed process left half-way is completed, or undone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from functools import partial

from pydra import ClaimError
from pydra_nvidia.deadlines import left_since_begin
from pydra_nvidia.host.driver_root import find_driver_root
from pydra_nvidia.host.filesystem import Tree
from pydra_nvidia.host.kernel_driver import read_gpu_information
from pydra_nvidia.host.persistenced import Persistenced, PersistenceFailed
from pydra_nvidia.nvml.errors import STALE, NvmlError
from pydra_nvidia.nvml.gpus import Use, read_use, set_persistence
from pydra_nvidia.nvml.session import NvmlSession
from pydra_nvidia.settings import Settings
from pydra_nvidia.steps import BindVfio, Entry, LeftBehind
from pydra_nvidia.vfio.binding import (
    Function,
    KernelWaits,
    KernelWork,
    bind_function,
    find_strangers,
    give_back,
    list_nodes,
    read_function,
    require_nodes,
)
from pydra_nvidia.vfio.device_users import find_users, own_pid, read_command, require_all_seen, wait_until_idle
from pydra_nvidia.vfio.drivers import Loader, is_same, modprobe_in, require_driver

DEADLINE = "PYDRA_NVIDIA_VFIO_IDLE_DEADLINE"

_log = logging.getLogger(__name__)


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
        self._load = load or modprobe_in(settings.host_root)
        self._kernel = kernel or KernelWork()
        self._persistenced = Persistenced(tree, partial(find_driver_root, tree, settings))

    async def apply(self, step: BindVfio, entry: Entry, /) -> None:
        """Bind the function. Raises ClaimError with nothing changed; LeftBehind when some of it is, or was before."""
        found = await asyncio.to_thread(read_function, self._tree, step.address)
        if step.before == step.target:
            _check_kept(found, step)
            return
        self._kernel.require_none(step.address)
        try:
            _check(found, step)
            ours = {one.address for one in entry.steps if isinstance(one, BindVfio)}
            await asyncio.to_thread(self._refuse_strangers, found, ours)
            if is_same(found.driver, step.target):
                await asyncio.to_thread(require_nodes, self._tree, step.address)
            else:
                await self._bind(step, found)
        except LeftBehind:
            raise
        except ClaimError as error:
            if _is_begun(found, step):
                raise LeftBehind(str(error)) from error
            raise

    async def undo(self, step: BindVfio, _entry: Entry, /) -> None:
        """Give the function back to the driver it had. Raises DeviceBusy while a guest has it, KernelRefused."""
        if step.before == step.target:
            return
        self._kernel.require_none(step.address)
        found = await asyncio.to_thread(read_function, self._tree, step.address)
        if _is_begun(found, step):
            await self._give_back(step, found)
        if step.persistence:
            await self._keep_persistent(step.address)

    async def _bind(self, step: BindVfio, found: Function) -> None:
        if found.driver:
            await asyncio.to_thread(require_all_seen, self._tree)
        driver = await require_driver(self._tree, step.target, self._load)
        use = await self._read_use(step.address) if found.driver else None
        if use is not None and use.partitioned:
            raise ClaimError(f"{step.address}: the GPU is in MIG mode, or will be; it is passed through without only")
        minor = await asyncio.to_thread(self._read_minor, step.address) if use is None else use.minor
        nodes = () if minor is None or not found.driver else (f"/dev/nvidia{minor}",)

        def bind_if_idle() -> Mapping[int, str]:
            # Within the session's lock: what this process has open itself was closed, and stays so.
            users = find_users(self._tree, nodes)
            if not users:
                work = partial(bind_function, self._tree, step.address, driver, step.before)
                self._kernel.run(step.address, work)
            return users

        async def attempt() -> Mapping[int, str]:
            users = await self._find_others(step.address, nodes)
            return users or await self._session.run_closed(bind_if_idle)

        persistent = use is not None and use.persistent
        try:
            if bool(found.driver) and await asyncio.to_thread(self._release, step.address):
                persistent = True
            if use is not None and use.persistent:
                await self._session.run(lambda nvml: set_persistence(nvml, step.address, on=False))
            deadline = left_since_begin(self._deadline)
            await wait_until_idle(attempt, what=f"GPU {step.address}", variable=DEADLINE, deadline=deadline)
        except KernelWaits:
            raise  # another call to the driver of this GPU would wait as long
        except BaseException:
            if persistent:
                await self._keep_persistent(step.address)
            raise

    async def _give_back(self, step: BindVfio, found: Function) -> None:
        nodes = list_nodes(self._tree, found) if is_same(found.driver, step.target) else ()

        def give_back_if_idle() -> Mapping[int, str]:
            users = find_users(self._tree, nodes)
            if not users:
                work = partial(give_back, self._tree, step.address, step.target, step.before, step.override)
                self._kernel.run(step.address, work)
            return users

        async def attempt() -> Mapping[int, str]:
            # Closed, because a session that is opened before the GPU is there never sees it.
            users = await asyncio.to_thread(find_users, self._tree, nodes)
            return users or await self._session.run_closed(give_back_if_idle)

        deadline = left_since_begin(self._deadline)
        await wait_until_idle(attempt, what=f"function {step.address}", variable=DEADLINE, deadline=deadline)

    async def _find_others(self, address: str, nodes: Collection[str]) -> Mapping[int, str]:
        """Who uses the GPU beside this process."""
        use = await self._read_use(address) if nodes else None
        users = await asyncio.to_thread(find_users, self._tree, nodes)
        pids = use.processes if use is not None else ()
        return await asyncio.to_thread(self._add, users, pids)

    def _add(self, users: dict[int, str], pids: Collection[int]) -> Mapping[int, str]:
        for pid in pids:
            users.setdefault(pid, read_command(self._tree, pid))
        users.pop(own_pid(self._tree) or 0, None)
        return users

    async def _read_use(self, address: str) -> Use | None:
        """None where NVML cannot tell, for want of a driver or its library."""
        try:
            return await self._session.run(lambda nvml: read_use(nvml, address))
        except NvmlError as error:
            if error.code in STALE:
                return None
            raise

    def _release(self, address: str) -> bool:
        """Have nvidia-persistenced release the GPU; whether it kept it."""
        return self._persistenced.keeps(address) and self._persistenced.keep(address, on=False)

    async def _keep_persistent(self, address: str) -> None:
        """By the daemon where one runs. A GPU that is given back without the mode is given back all the same."""
        try:
            if not await asyncio.to_thread(self._persistenced.keep, address, on=True):
                await self._session.run(lambda nvml: set_persistence(nvml, address, on=True))
        except (NvmlError, PersistenceFailed) as error:
            _log.warning("the persistence mode of GPU %s stays off: %s", address, error)

    def _read_minor(self, address: str) -> int | None:
        """For a GPU that the driver has and NVML cannot see."""
        minor = read_gpu_information(self._tree, address).get("Device Minor", "")
        return int(minor) if minor.isdecimal() else None

    def _refuse_strangers(self, function: Function, ours: Collection[str]) -> None:
        if strangers := find_strangers(self._tree, function, ours):
            raise ClaimError(
                f"{function.address} shares IOMMU group {function.group} with {', '.join(strangers)}, so no guest could"
                " open it; the admin can bind those to vfio-pci, or take them from their drivers"
            )


def _check_kept(found: Function, step: BindVfio) -> None:
    if not is_same(found.driver, step.target):
        raise ClaimError(
            f"{step.address} was bound to {step.target} and is now bound to {found.driver or 'no driver'}; try again"
        )


def _check(found: Function, step: BindVfio) -> None:
    """What the plan saw, seen again: time has passed."""
    if not found.present:
        raise ClaimError(f"{step.address} is no longer on the PCI bus")
    if not found.group:
        raise ClaimError(f"{step.address} is in no IOMMU group; the node's IOMMU must be on")
    if found.virtual:
        raise ClaimError(
            f"{found.virtual} virtual functions of {step.address} exist; write 0 to its sriov_numvfs first"
        )
    if found.driver and found.driver != step.before and not is_same(found.driver, step.target):
        raise ClaimError(
            f"{step.address} is bound to {found.driver}, no longer to {step.before or 'no driver'}; try again"
        )


def _is_begun(found: Function, step: BindVfio) -> bool:
    """Whether something of the step is to be seen: the driver, or an override that binding or giving back wrote.

    A function that merely has no driver is somebody else's business: the admin's, or that of a module being reloaded.
    """
    taken = is_same(found.driver, step.target) or is_same(found.override, step.target)
    returning = found.override == step.before != step.override and found.driver in ("", step.before)
    return found.present and (taken or returning)
