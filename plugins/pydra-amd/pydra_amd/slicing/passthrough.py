"""Takes GPUs from amdgpu for guests, and gives them back: who uses a GPU is told by its nodes, and by KFD."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial

from msgspec.structs import replace

from pydra import AllocatedDevice, ClaimError, time_left
from pydra_amd.claim_config import Iommu, VfioDeviceConfig
from pydra_amd.host.amdgpu import list_nodes, read_machine
from pydra_amd.host.kfd import read_users
from pydra_amd.models import AMDGPU
from pydra_amd.offering import Offered, OfferedFunction
from pydra_amd.slicing.compute_mode import GpuGone
from pydra_amd.steps import BindVfio
from pydra_pci import (
    FunctionState,
    KernelWork,
    Loader,
    PciFunction,
    Tree,
    VfioBinder,
    VfioHost,
    find_problems,
    find_users,
    is_vfio,
    own_pid,
    plan_binding,
    read_command,
)

DEADLINE = "PYDRA_AMD_VFIO_IDLE_DEADLINE"

_AFTER_SECONDS = 5.0
"""Of the call's time, to report who uses the GPU instead of a timeout."""


def plan_passthrough(
    wanted: Iterable[tuple[AllocatedDevice, Offered | OfferedFunction]], host: VfioHost
) -> tuple[BindVfio, ...]:
    """The steps for the functions of a claim. Pure.

    Raises ClaimError: what stands in the way of each function, and who can remove it.
    """
    functions = [(device, found) for device, found in wanted if isinstance(found, OfferedFunction)]
    if problems := [text for device, one in functions for text in _find_problems(device, one.function, host)]:
        raise ClaimError("; ".join(problems))
    return tuple(_plan_step(one) for device, one in functions if not device.admin_access)


def _plan_step(offered: OfferedFunction) -> BindVfio:
    step = plan_binding(offered.function)
    mode = offered.gpu.mode if offered.gpu else None
    return BindVfio(
        address=step.address,
        before=step.before,
        target=step.target,
        compute=mode.compute if mode and step.before != step.target else "",
        devices=(offered.name,),
    )


def _find_problems(device: AllocatedDevice, function: PciFunction, host: VfioHost) -> Iterator[str]:
    where = f"{device.device} ({function.address})"
    # Virtual functions are made for guests, and what made them leaves them to whom binds them.
    for problem in find_problems(replace(function, is_virtual=False), host, driver=AMDGPU):
        yield f"{where}: {problem}"
    if device.admin_access and not is_vfio(function.driver):
        yield f"{where}: admin access only looks, and no claim has the function passed through now"
    if read_policy(device) == "RequireIommuFD" and not host.iommufd:
        yield f"{where}: the claim requires iommufd, and this node has no /dev/iommu; ask for PreferIommuFD"


def read_policy(device: AllocatedDevice) -> str:
    """Which interface to the IOMMU the claim wants."""
    config = device.config(VfioDeviceConfig) or VfioDeviceConfig()
    return (config.iommu or Iommu()).backend_policy


class Passthrough:
    """`deadline`: how many seconds the users of a GPU are waited for. AMD's library must be closed meanwhile."""

    def __init__(
        self, tree: Tree, deadline: float, *, load: Loader | None = None, kernel: KernelWork | None = None
    ) -> None:
        self._tree = tree
        self._deadline = deadline
        self._binder = VfioBinder(tree, variable=DEADLINE, left=_left, load=load, kernel=kernel)

    async def apply(self, step: BindVfio, ours: Collection[str]) -> None:
        """Bind the function; `ours` are the addresses that the same claim passes through. Raises ClaimError."""
        await self._binder.apply(step, ours, partial(self._take, step))

    async def undo(self, step: BindVfio) -> None:
        """Give the function back to the driver it had. Raises DeviceBusy while a guest has it, KernelRefused."""
        if step.before != step.target:
            await self._binder.undo(step, _run, deadline=_left(self._deadline))

    async def _take(self, step: BindVfio, found: FunctionState, driver: str) -> None:
        gpu = (await asyncio.to_thread(read_machine, self._tree)).find(step.address) if found.driver else None
        if found.driver and gpu is None:
            raise GpuGone(
                f"GPU {step.address} is bound to {found.driver}, which does not show it any more: who uses it cannot "
                "be told, and the kernel would wait for them without end; the kernel's log says why"
            )
        partitions = gpu.partitions if gpu else ()
        nodes = sorted({node for one in partitions for node in list_nodes(one)[1:]})
        numbers = [one.kfd_node for one in partitions]
        await self._binder.bind(
            step,
            driver,
            nodes=nodes,
            find_others=lambda: asyncio.to_thread(self._find_users, nodes, numbers),
            run_closed=_run,
            deadline=_left(self._deadline),
        )

    def _find_users(self, nodes: Collection[str], numbers: Collection[int]) -> Mapping[int, str]:
        """Who has a node of the GPU open, and who computes on it as KFD has it. Blocks."""
        users = find_users(self._tree, nodes)
        for pid in read_users(self._tree, numbers):
            users.setdefault(pid, read_command(self._tree, pid))
        users.pop(own_pid(self._tree) or 0, None)
        return users


async def _run(work: Callable[[], Mapping[int, str]]) -> Mapping[int, str]:
    return await asyncio.to_thread(work)


def _left(seconds: float) -> float:
    return max(min(seconds, time_left() - _AFTER_SECONDS), 0.0)
