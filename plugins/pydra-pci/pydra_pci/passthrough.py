"""The step of passthrough: plans it, carries it out, undoes it; what a killed process left half-way too.

What the vendor's own driver and library have to do with it is the backend's: it says who uses the function beside the
processes that have its nodes open, and runs the binding while this process has nothing of it open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import TypeAlias

import msgspec

from pydra import ClaimError, LeftBehind
from pydra_pci.binding import (
    FunctionState,
    KernelWork,
    bind_function,
    find_strangers,
    give_back,
    list_nodes,
    read_function,
    require_nodes,
)
from pydra_pci.filesystem import Tree
from pydra_pci.functions import PciFunction, is_vfio
from pydra_pci.processes import advise_nothing, find_users, require_all_seen, wait_until_idle
from pydra_pci.vfio_drivers import Loader, is_same, modprobe_in, require_driver


class BindVfio(msgspec.Struct, frozen=True, kw_only=True, tag_field="step", tag="bind-vfio"):
    """Take the function from its kernel driver and bind it to vfio-pci or a variant. Undone by giving it back.

    `before` is the driver that has it, empty for none; the same as `target` where somebody else bound it to that, who
    keeps it so. `override` is its driver_override before, empty for none. `holds` are the claim's devices of it.
    """

    address: str
    before: str
    target: str
    override: str = ""
    holds: tuple[str, ...] | None = None

    @property
    def key(self) -> str:
        """The function and the driver that it gets."""
        return f"{self.address}/{self.target}"

    def __str__(self) -> str:
        return f"bind-vfio {self.address} to {self.target}"


class VfioHost(msgspec.Struct, frozen=True, kw_only=True):
    """What the node can do for passthrough: an IOMMU that is on, the iommufd device."""

    iommu: bool = False
    iommufd: bool = False


def read_vfio_host(tree: Tree) -> VfioHost:
    """An IOMMU is on when the kernel has put devices into groups; iommufd has a device of its own."""
    return VfioHost(iommu=bool(tree.names(tree.sys("kernel/iommu_groups"))), iommufd=tree.has_node("/dev/iommu"))


def is_begun(function: PciFunction, step: BindVfio | None) -> bool:
    """Whether the function is on its way by this step of some claim, half-way or arrived."""
    return step is not None and (function.driver in ("", step.before) or is_vfio(function.driver))


def plan_binding(function: PciFunction, begun: BindVfio | None = None) -> BindVfio:
    """The step for the function; `begun` is that of a claim that has it already. Pure.

    A function that is on its way keeps its step, so that the plan of a claim is the same before and after it was
    carried out. One that is bound for passthrough without a step is so by the admin's doing, who keeps it so.
    """
    if begun is not None and is_begun(function, begun):
        return begun
    if is_vfio(function.driver):
        return BindVfio(address=function.address, before=function.driver, target=function.driver)
    return BindVfio(
        address=function.address, before=function.driver, target=function.vfio_driver, override=function.override
    )


class Owner(msgspec.Struct, frozen=True):
    """The `claim`, by name, that a function is passed through for; `left_over`: it has ended."""

    claim: str
    left_over: bool = False


def find_problems(
    function: PciFunction,
    host: VfioHost,
    *,
    driver: str,
    functions: Iterable[PciFunction],
    owners: Mapping[str, Owner],
    admin: bool = False,
) -> Iterator[str]:
    """What stands in the way of passing the function through, and who can remove it; `driver` is the vendor's own.

    `owners` are other claims by the addresses of what they pass through, of the node's `functions`. With `admin` access
    a claim only looks at what another one has.
    """
    group = () if admin else (one for one in functions if one.group == function.group)
    mates = (one for one in group if one.address != function.address)
    owner = next((owners[one.address] for one in mates if one.address in owners), None)
    if not host.iommu:
        yield (
            "this node has no IOMMU that is on; switch it on in the firmware (VT-d, AMD-Vi) and the kernel"
            " (intel_iommu=on or amd_iommu=on)"
        )
    elif not function.group:
        yield "the function is in no IOMMU group, so no guest can be given it"
    elif owner is not None and owner.left_over:
        yield (
            f"it is in IOMMU group {function.group}, of which claim {owner.claim}, which has ended, had another"
            " function that cannot be given back yet; the agent tries again, and `pydra doctor` on the node says why"
        )
    elif owner is not None:
        yield (
            f"it is in IOMMU group {function.group}, of which claim {owner.claim} has another function, and only one"
            " guest can have a group; request both in one claim, or wait until that claim has ended"
        )
    if function.has_virtual:
        yield "virtual functions of it exist; the admin can remove them by writing 0 to its sriov_numvfs"
    if not is_vfio(function.driver) and function.driver not in ("", driver):
        yield (
            f"the function is bound to {function.driver}, which keeps it; allowed: {driver}, vfio-pci or its"
            " variants, no driver"
        )
    if admin and not is_vfio(function.driver):
        yield "admin access only looks, and no claim has the function passed through now"


Users: TypeAlias = Mapping[int, str]
"""Command names of processes, by pid."""

RunClosed: TypeAlias = Callable[[Callable[[], Users]], Awaitable[Users]]
"""Runs blocking work while this process has nothing of the vendor's hardware open."""


class VfioBinder:
    """Binds functions for passthrough, and gives them back.

    `variable` is the setting by which the admin lets it wait longer for the users of a device. `load` loads kernel
    modules; without one, the node's own modprobe does. `kernel` limits what it waits for, and `left` how much of some
    seconds the call still has. `advise` says what else to do about users of a device.
    """

    def __init__(
        self,
        tree: Tree,
        *,
        variable: str,
        left: Callable[[float], float],
        load: Loader | None = None,
        kernel: KernelWork | None = None,
        advise: Callable[[Users], str] = advise_nothing,
    ) -> None:
        self._tree = tree
        self._variable = variable
        self._left = left
        self._load = load or modprobe_in(tree.roots.host)
        self._kernel = kernel or KernelWork()
        self._advise = advise

    async def apply(
        self,
        step: BindVfio,
        ours: Collection[str],
        take: Callable[[FunctionState, str], Awaitable[None]],
    ) -> None:
        """Have the function bound as the step says; `ours` are the addresses that the same claim passes through.

        `take` is called with the function and the loaded driver where there is something to do: it calls `bind`.
        Raises ClaimError with nothing changed; LeftBehind when some of it is, or was before.
        """
        found = await asyncio.to_thread(read_function, self._tree, step.address)
        if step.before == step.target:
            _check_kept(found, step)
            return
        self._kernel.require_none(step.address)
        try:
            _check(found, step)
            await asyncio.to_thread(self._refuse_strangers, found, ours)
            if is_same(found.driver, step.target):
                await asyncio.to_thread(require_nodes, self._tree, step.address)
                return
            if found.driver:
                await asyncio.to_thread(require_all_seen, self._tree)
            await take(found, await require_driver(self._tree, step.target, self._load))
        except ClaimError as error:
            if _is_seen(found, step):
                raise LeftBehind(str(error)) from error
            raise

    async def bind(
        self,
        step: BindVfio,
        driver: str,
        *,
        nodes: Collection[str],
        find_others: Callable[[], Awaitable[Users]],
        run_closed: RunClosed,
        deadline: float,
    ) -> None:
        """Bind the function to `driver` once nobody has one of `nodes` open, and `find_others` finds nobody else.

        Raises DeviceBusy after `deadline` seconds, KernelRefused, LeftBehind, KernelWaits.
        """

        def bind_if_idle() -> Users:
            # While closed: what this process had open itself is not found, and stays closed.
            users = find_users(self._tree, nodes)
            if not users:
                work = partial(bind_function, self._tree, step.address, driver, step.before, step.override)
                self._run(step.address, work)
            return users

        async def attempt() -> Users:
            return await find_others() or await run_closed(bind_if_idle)

        await self._wait(attempt, what=f"GPU {step.address}", deadline=deadline)

    async def undo(self, step: BindVfio, run_closed: RunClosed, *, deadline: float) -> None:
        """Give the function back to the driver it had. Raises DeviceBusy while a guest has it, KernelRefused."""
        if step.before == step.target:
            return
        self._kernel.require_none(step.address)
        found = await asyncio.to_thread(read_function, self._tree, step.address)
        if not _is_seen(found, step):
            return
        nodes = list_nodes(self._tree, found) if is_same(found.driver, step.target) else ()

        def give_back_if_idle() -> Users:
            users = find_users(self._tree, nodes)
            if not users:
                work = partial(give_back, self._tree, step.address, step.target, step.before, step.override)
                self._run(step.address, work)
            return users

        async def attempt() -> Users:
            # Closed, because what is opened before the device is there never sees it.
            users = await asyncio.to_thread(find_users, self._tree, nodes)
            return users or await run_closed(give_back_if_idle)

        await self._wait(attempt, what=f"function {step.address}", deadline=deadline)

    def _run(self, address: str, work: Callable[[], None]) -> None:
        self._kernel.run(address, work, self._left(self._kernel.limit))

    async def _wait(self, attempt: Callable[[], Awaitable[Users]], *, what: str, deadline: float) -> None:
        await wait_until_idle(attempt, what=what, variable=self._variable, deadline=deadline, advise=self._advise)

    def _refuse_strangers(self, function: FunctionState, ours: Collection[str]) -> None:
        if strangers := find_strangers(self._tree, function, ours):
            raise ClaimError(
                f"{function.address} shares IOMMU group {function.group} with {', '.join(strangers)}, so no guest could"
                " open it; the admin can bind those to vfio-pci, or take them from their drivers"
            )


def _check_kept(found: FunctionState, step: BindVfio) -> None:
    if not is_same(found.driver, step.target):
        raise ClaimError(
            f"{step.address} was bound to {step.target} and is now bound to {found.driver or 'no driver'}; try again"
        )


def _check(found: FunctionState, step: BindVfio) -> None:
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


def _is_seen(found: FunctionState, step: BindVfio) -> bool:
    """Whether something of the step is to be seen: the driver, or an override that binding or giving back wrote.

    A function that merely has no driver is somebody else's business: the admin's, or that of a module being reloaded.
    """
    taken = is_same(found.driver, step.target) or is_same(found.override, step.target)
    returning = found.override == step.before != step.override and found.driver in ("", step.before)
    return found.present and (taken or returning)
