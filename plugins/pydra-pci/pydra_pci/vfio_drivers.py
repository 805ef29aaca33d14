"""Which driver a function is bound to for passthrough, and how the kernel gets it.

Some devices need a variant of vfio-pci (GB200's GPUs have memory that only nvgrace_gpu_vfio_pci shows to a guest). The
kernel says which: such drivers have aliases `vfio_pci:` in modules.alias, and bind by driver_override only.
Source: the kernel's scripts/mod/file2alias.c and drivers/vfio/pci; libvirt and NVIDIA's driver choose alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import msgspec

from pydra import ClaimError
from pydra_pci.filesystem import ParsedFile, Tree
from pydra_pci.functions import VFIO_PCI

Loader: TypeAlias = Callable[[str], Awaitable[None]]
"""Loads a kernel module by name; raises DriverUnavailable."""

_IDS = "".join(rf"{name}([0-9A-F]+|\*)" for name in ("v", "d", "sv", "sd", "bc", "sc", "i"))
_ALIAS = re.compile(rf"alias\s+vfio_pci:{_IDS}\s+(\S+)")
_MODALIAS = re.compile(rf"pci:{_IDS}")


class DriverUnavailable(ClaimError):
    """The kernel of this node does not have the driver that passthrough needs."""

    reason = "DriverUnavailable"


class Alias(msgspec.Struct, frozen=True):
    """A module, and the ids of the functions it is for: `*` is any."""

    ids: tuple[str, ...]
    module: str


class VfioDrivers:
    """The drivers for passthrough of the running kernel."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._file = ParsedFile(parse_aliases)

    def choose(self, modalias: str) -> str:
        """The driver for the function with this modalias; vfio-pci when the kernel has no better one."""
        release = self._tree.read(self._tree.proc("sys/kernel/osrelease"))
        path = self._tree.here(f"/lib/modules/{release}/modules.alias")
        return choose_driver(modalias, self._file.read(path) or ())


def parse_aliases(text: str) -> tuple[Alias, ...]:
    """The lines of modules.alias that are about passthrough, in their order."""
    lines = (line for line in text.splitlines() if " vfio_pci:" in line)
    matches = (_ALIAS.fullmatch(line.strip()) for line in lines)
    return tuple(Alias(match.groups()[:-1], match[8]) for match in matches if match)


def choose_driver(modalias: str, aliases: Sequence[Alias]) -> str:
    """The module whose alias says most about the function, the first of equals; vfio-pci when none fits."""
    match = _MODALIAS.fullmatch(modalias.strip())
    if match is None:
        return VFIO_PCI
    ids = match.groups()
    fitting = (one for one in aliases if all(want in ("*", has) for want, has in zip(one.ids, ids, strict=True)))
    best = min(fitting, key=lambda one: one.ids.count("*"), default=None)
    return VFIO_PCI if best is None or is_same(best.module, VFIO_PCI) else best.module


def is_same(driver: str, other: str) -> bool:
    """Whether both are one driver: a module has underscores where its driver may have dashes."""
    return driver.replace("_", "-") == other.replace("_", "-")


def find_driver(tree: Tree, name: str) -> str | None:
    """The driver as the kernel spells it; None when it is not loaded."""
    loaded = tree.names(tree.sys("bus/pci/drivers"))
    return next((one for one in (name, *loaded) if one in loaded and is_same(one, name)), None)


async def require_driver(tree: Tree, name: str, load: Loader) -> str:
    """The same, loaded when it is not; raises DriverUnavailable."""
    if (found := await asyncio.to_thread(find_driver, tree, name)) is not None:
        return found
    await load(name)
    if (found := await asyncio.to_thread(find_driver, tree, name)) is not None:
        return found
    raise DriverUnavailable(f"the kernel module {name} is loaded, but brings no PCI driver of that name")


def modprobe_in(host_root: str, seconds: float = 15.0) -> Loader:
    """Loads modules with the node's own modprobe, so that its blacklists and options count."""

    async def load(module: str) -> None:
        if problem := await run_modprobe(host_root, [module], seconds):
            raise DriverUnavailable(
                f"this node has no driver {module} for passthrough, and loading it failed: {problem};"
                f" have it loaded at boot, with a line `{module}` in a file below /etc/modules-load.d"
            )

    return load


async def run_modprobe(host_root: str, arguments: Sequence[str], seconds: float) -> str:
    """Run the node's own modprobe, in the node's root. Why it failed; empty when it did not."""
    command = [*([] if host_root == "/" else ["chroot", host_root]), "modprobe", *arguments]
    line = " ".join(command)
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/bin", "/sbin", "/bin"])
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PATH": path},
        )
    except OSError as error:
        return f"{line}: {error.strerror}"
    try:
        _, told = await asyncio.wait_for(process.communicate(), seconds)
    except TimeoutError:
        return f"{line} did not end within {seconds:g} s"
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            with contextlib.suppress(TimeoutError):  # in the kernel, where no signal reaches it
                await asyncio.wait_for(process.wait(), 1.0)
    words = " ".join(told.decode("utf-8", "replace").split())
    return "" if process.returncode == 0 else f"{line} ended with {process.returncode}: {words or 'it says nothing'}"
