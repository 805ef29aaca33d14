"""Gives the GPUs of the node another memory mode, for which the driver is reloaded.

The kernel's file takes a request for all GPUs of the hive. The driver passes it to them when it is unloaded, and they
have the mode when it is loaded again. A request cannot be taken back, and one that is not carried out waits for the
next reload, for any reason; so it is not made while something uses the driver.
Source: the kernel's drivers/gpu/drm/amd/amdgpu/amdgpu_gmc.c (current_memory_partition_store) and amdgpu_xgmi.c.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from pydra import set_status
from pydra_amd.host.amdgpu import BOUND, MEMORY, read_memory_modes, read_mode
from pydra_amd.host.driver_reload import DriverModule, DriverReloadFailed, is_in_use, is_loaded
from pydra_amd.host.kfd import read_processes
from pydra_amd.modes.compute_partition import GpuBusy, GpuGone, ModeRefused, ModeUncertain, explain, name_users
from pydra_pci import Tree

_log = logging.getLogger(__name__)


async def set_memory_partitions(tree: Tree, driver: DriverModule, targets: Mapping[str, str]) -> None:
    """Have the GPUs, by address, in these memory modes; those that do not offer theirs keep what they have.

    Loads the driver if it is not loaded, and ends without a reload if no mode differs.

    Raises:
        GpuBusy: something uses a GPU of the node; nothing has changed.
        ModeRefused: the driver does not take the request.
        ModeUncertain: the GPUs have another mode after the reload.
        GpuGone: a GPU did not come back with the driver.
        DriverReloadFailed: with what modprobe said.
    """
    if not await asyncio.to_thread(is_loaded, tree):
        set_status("loading amdgpu, which is not loaded, or waiting for who does")
        await driver.load()
    changing = await asyncio.to_thread(_request, tree, targets)
    if not changing:
        return
    modes = ", ".join(sorted({f"{found} to {targets[address]}" for address, found in changing.items()}))
    set_status(f"reloading amdgpu for all GPUs of the node, whose memory mode changes from {modes}")
    _log.info("the memory mode changes from %s (GPUs: %d): amdgpu is reloaded", modes, len(changing))
    try:
        await driver.unload()
    except DriverReloadFailed as error:
        if "in use" in str(error) and await asyncio.to_thread(is_loaded, tree):
            raise GpuBusy(
                f"the memory mode cannot change from {modes}: {error}; end what uses a GPU of this node, monitoring "
                "agents too; it is tried again. The change waits for the next time that somebody reloads amdgpu"
            ) from error
        raise
    await driver.load()
    for address in changing:
        mode = await asyncio.to_thread(read_mode, tree, address)
        if mode is None:
            raise GpuGone(f"GPU {address} is gone: amdgpu does not have it after it was reloaded")
        if mode.memory != targets[address]:
            raise ModeUncertain(
                f"GPU {address} is in the mode {mode} after amdgpu was reloaded for the memory mode "
                f"{targets[address]}; the kernel's log says why"
            )


def _request(tree: Tree, targets: Mapping[str, str]) -> dict[str, str]:
    """Ask the driver for the modes that differ. The modes that these GPUs have. Raises GpuBusy, ModeRefused. Blocks."""
    changing: dict[str, str] = {}
    for address, target in targets.items():
        mode = read_mode(tree, address)
        if mode is not None and mode.memory != target and target in read_memory_modes(tree, address):
            changing[address] = mode.memory
    if changing and (read_processes(tree) or is_in_use(tree)):
        target = targets[next(iter(changing))]
        raise GpuBusy(
            f"a GPU of this node is in use, so amdgpu cannot be reloaded for the memory mode {target}; "
            f"{name_users(tree)}; end what uses it, monitoring agents too; it is tried again"
        )
    for address in changing:
        path, target = tree.sys(f"{BOUND}/{address}/{MEMORY}"), targets[address].upper()
        try:
            tree.write(path, target)
        except OSError as error:
            raise ModeRefused(f"writing {target} to {path} failed: {explain(error)}") from error
    return changing
