"""The kernel module amdgpu, unloaded and loaded by the node's own modprobe: its options and blacklists count."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence

from pydra import ClaimError, time_left
from pydra_pci import Tree

MODULE = "module/amdgpu"

_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_AFTER_SECONDS = 3.0
"""Of the call's time, for what follows."""


class DriverReloadFailed(ClaimError):
    """The driver could not be unloaded or loaded."""

    reason = "DriverReloadFailed"


class DriverModule:
    """The module of a node whose root is where `tree` sees it."""

    def __init__(self, tree: Tree) -> None:
        root = tree.roots.host
        self._prefix = [] if root == "/" else ["chroot", root]

    async def unload(self) -> None:
        """Take the driver from all GPUs. Raises DriverReloadFailed; the driver is then loaded as before."""
        await self._run(["modprobe", "-r", "amdgpu"])

    async def load(self) -> None:
        """Give the GPUs the driver; nothing to do is fine. Raises DriverReloadFailed."""
        await self._run(["modprobe", "amdgpu"])

    async def _run(self, command: Sequence[str]) -> None:
        line = " ".join([*self._prefix, *command])
        try:
            process = await asyncio.create_subprocess_exec(
                *self._prefix,
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                env={**os.environ, "PATH": _PATH},
            )
        except OSError as error:
            raise DriverReloadFailed(f"{line} cannot be started: {error.strerror}") from error
        try:
            async with asyncio.timeout(max(time_left() - _AFTER_SECONDS, 0)):
                _, told = await process.communicate()
        except TimeoutError as error:
            raise DriverReloadFailed(
                f"{line} did not end in time; allow more with the agent's settings prepareDeadline and "
                "unprepareDeadline, such as 180"
            ) from error
        finally:
            if process.returncode is None:  # in the kernel no signal reaches it: it goes on there
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
        if process.returncode:
            words = " ".join(told.decode(errors="replace").split())
            raise DriverReloadFailed(f"{line} failed with {process.returncode}: {words or 'it says nothing'}")


def is_loaded(tree: Tree) -> bool:
    """Whether the kernel has the driver."""
    return tree.exists(tree.sys(MODULE))


def is_in_use(tree: Tree) -> bool:
    """Whether something has a node of the driver open, or the kernel itself uses it, such as a console."""
    return tree.read(tree.sys(f"{MODULE}/refcnt")) not in ("", "0")
