"""Gives a GPU another compute partition mode, through the kernel's file for it. Blocks: the driver may take seconds.

Source: the kernel's drivers/gpu/drm/amd/amdgpu/amdgpu_gfx.c: the write returns when KFD has the new nodes, with EBUSY
while a process uses the GPU, EPERM during a reset, EINVAL for a mode that does not go with the memory mode. What uses a
GPU is decided by kgd2kfd_check_and_lock_kfd in drivers/gpu/drm/amd/amdkfd/kfd_device.c: with the change of May 2025
("allow compute partition mode switch with cgroup exclusions") a process that has /dev/kfd open counts for the GPUs
whose render nodes it may open, which in a container are those of its claims; before it, for all GPUs of the node.
"""

from __future__ import annotations

import errno
import logging

from pydra import ClaimError, LeftBehind
from pydra_amd.host.amdgpu import BOUND, COMPUTE, KFD_NODE, has_fallen, read_mode
from pydra_amd.host.kfd import PROCESSES, read_processes
from pydra_pci import Tree

_log = logging.getLogger(__name__)

_NAMED = 10
"""So many processes are named in an error."""


class GpuBusy(ClaimError):
    """Processes use the GPU whose mode is to change."""

    reason = "GpuBusy"


class ModeRefused(ClaimError):
    """The driver did not change the mode."""

    reason = "ModeRefused"


class ModeUncertain(LeftBehind):
    """The driver did not change the mode as it was asked to, and it may not be as before either."""

    reason = "ModeRefused"


class GpuGone(ClaimError):
    """The driver does not have the GPU any more, or what it shows of it cannot be used."""

    reason = "GpuGone"


def set_compute_partition(tree: Tree, address: str, compute: str) -> None:
    """Set the mode, unless the GPU has it.

    Raises:
        GpuGone: there is nothing whose mode could change.
        GpuBusy: a process uses the GPU; the mode is as it was.
        ModeRefused: the mode is as it was; with what the driver answered, and who can change that.
        ModeUncertain: the mode may be another than before.
    """
    if not tree.exists(tree.sys(f"{BOUND}/{address}")) or has_fallen(tree, address):
        raise GpuGone(
            f"GPU {address} is gone: it is not bound to amdgpu, or does not answer on the PCI bus; "
            "the kernel's log says why"
        )
    found = read_mode(tree, address)
    if found is None:
        raise ModeRefused(f"GPU {address} reports no mode: it is being reset, or cannot be partitioned")
    if found.compute == compute:
        return
    path = tree.sys(f"{BOUND}/{address}/{COMPUTE}")
    try:
        tree.write(path, compute.upper())
    except OSError as error:
        if not tree.exists(tree.sys(f"{BOUND}/{address}")) or has_fallen(tree, address):
            raise ModeUncertain(
                f"GPU {address} went away while its mode was set to {compute} ({error.strerror}): it fell off the PCI "
                "bus or lost the driver, and the kernel's log says why; delete the pod to have another GPU"
            ) from error
        if error.errno == errno.EBUSY:
            raise GpuBusy(
                f"GPU {address} is in use, so its mode cannot change from {found.compute} to {compute}; "
                f"{name_users(tree)}; end what uses it, monitoring agents too; it is tried again"
            ) from error
        failed = ModeRefused if read_mode(tree, address) == found else ModeUncertain
        raise failed(f"writing {compute.upper()} to {path} failed: {explain(error)}") from error
    if (after := read_mode(tree, address)) is None or after.compute != compute:
        failed = ModeRefused if after == found else ModeUncertain
        raise failed(f"GPU {address} is in the mode {after} after {compute} was set; the kernel's log says why")
    _log.info("the mode of GPU %s changed from %s to %s", address, found, after)


def name_users(tree: Tree) -> str:
    """By the host's pids: in the agent's container they may mean other processes, so that names are not looked up."""
    pids = read_processes(tree)
    if not pids:
        return f"no process is in {tree.sys(PROCESSES)}: one that has just ended, or something in the kernel, uses it"
    more = f" and {len(pids) - _NAMED} more" if len(pids) > _NAMED else ""
    named = ", ".join(map(str, pids[:_NAMED]))
    return f"on this host these processes have {KFD_NODE} open: {named}{more} (`ps -p` shows what they are)"


def explain(error: OSError) -> str:
    """What the kernel answered to a write, and who can change that."""
    text = error.strerror or str(error)
    if error.errno == errno.EPERM:
        return f"{text}; the driver answers that while the GPU is reset, and it is tried again"
    if error.errno in (errno.EACCES, errno.EROFS):
        return f"{text}; PYDRA_AMD_SYS_ROOT must be a place where the agent has the host's /sys writable"
    if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
        return f"{text}; the driver does not allow this mode now: a virtual machine's guest has none of its own"
    return f"{text}; the kernel's log says why, and a GPU that goes on failing needs a reset, or the node a reboot"
