"""Unloads and loads amdgpu, the kernel module, by the node's own modprobe: its options and blacklists count."""

from __future__ import annotations

from pydra import LeftBehind, time_left
from pydra_amd.models import AMDGPU
from pydra_pci import Tree, run_modprobe

MODULE = f"module/{AMDGPU}"

_AFTER_SECONDS = 3.0
"""Of the call's time, to report what modprobe said instead of a timeout."""


class DriverReloadFailed(LeftBehind):
    """The driver could not be unloaded or loaded, or still is."""

    reason = "DriverReloadFailed"


class DriverModule:
    """The module of a node whose root is where `tree` sees it."""

    def __init__(self, tree: Tree) -> None:
        self._root = tree.roots.host

    async def unload(self) -> None:
        """Take the driver from all GPUs. Raises DriverReloadFailed; where that is so, it may be loaded as before."""
        await self._run("-r", AMDGPU)

    async def load(self) -> None:
        """Give the GPUs the driver; nothing to do is fine. Raises DriverReloadFailed."""
        await self._run(AMDGPU)

    async def _run(self, *arguments: str) -> None:
        """What goes on in the kernel cannot be ended: it goes on there."""
        if problem := await run_modprobe(self._root, arguments, max(time_left() - _AFTER_SECONDS, 0.0)):
            raise DriverReloadFailed(
                f"{problem}; the kernel's log says more, and PYDRA_AMD_RELOAD_DEADLINE is how long it may take"
            )


def is_loaded(tree: Tree) -> bool:
    """Whether the kernel has the driver, and all of it: while it comes or goes, GPUs are missing that are not gone."""
    state = tree.read(tree.sys(f"{MODULE}/initstate"))  # which a driver that is part of the kernel does not have
    return tree.exists(tree.sys(MODULE)) and state in ("live", "")


def is_in_use(tree: Tree) -> bool:
    """Whether something has a node of the driver open, or the kernel itself uses it, such as a console."""
    return tree.read(tree.sys(f"{MODULE}/refcnt")) not in ("", "0")
