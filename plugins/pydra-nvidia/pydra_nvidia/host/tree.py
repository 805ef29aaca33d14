"""The kernel's files, read and written. Every path of the node goes through a `Tree`: another can stand for it."""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec

_FIRST_NAMESPACES = {"pid": "pid:[4026531836]", "cgroup": "cgroup:[4026531835]"}
"""Those of the node itself. Source: the kernel's include/linux/proc_ns.h. A kernel without namespaces of a kind has no
link for it, and all that runs there is the node's own."""


class Roots(msgspec.Struct, frozen=True, kw_only=True):
    """Where things are, as this process sees them: `host` is the node's `/`."""

    host: str = "/"
    sys: str = "/sys"
    proc: str = "/proc"


class Tree:
    """The node's files. `wrote` is told of each write, after it: simulated hardware reacts there."""

    def __init__(self, roots: Roots, wrote: Callable[[str, str], None] | None = None) -> None:
        self.roots = roots
        self._wrote = wrote

    def sys(self, path: str) -> str:
        """`bus/pci/devices` below /sys, as this process sees it."""
        return os.path.join(self.roots.sys, path)

    def proc(self, path: str) -> str:
        """`driver/nvidia/version` below /proc, as this process sees it."""
        return os.path.join(self.roots.proc, path)

    def here(self, host_path: str) -> str:
        """A path of the host, as this process sees it."""
        return host_path if self.roots.host == "/" else self.roots.host.rstrip("/") + host_path

    def read(self, path: str) -> str | None:
        """The file's text without the white space around it; None when it cannot be read."""
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                return file.read().strip()
        except OSError:
            return None

    def write(self, path: str, text: str) -> None:
        """Tell the kernel; raises OSError with what it answers."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        if self._wrote is not None:
            self._wrote(path, text)

    def link(self, path: str) -> str | None:
        """Where a symbolic link leads, as it is written; None when it is none."""
        try:
            return os.readlink(path)
        except OSError:
            return None

    def names(self, path: str) -> tuple[str, ...]:
        """The directory's entries, sorted; empty when it cannot be read."""
        try:
            return tuple(sorted(os.listdir(path)))
        except OSError:
            return ()

    def exists(self, path: str) -> bool:
        """Whether something is there, followed through links."""
        return os.path.exists(path)


def shows_all_processes(tree: Tree) -> bool:
    """Whether the tree's /proc has the processes of the whole node."""
    shown = tree.link(tree.proc("1/ns/pid")) or tree.link(tree.proc("self/ns/pid"))
    return shown in (None, _FIRST_NAMESPACES["pid"])


def find_own_namespaces(tree: Tree) -> tuple[str, ...]:
    """The kinds of namespaces, of `pid` and `cgroup`, that this process does not have from the node."""
    return tuple(
        kind
        for kind, first in _FIRST_NAMESPACES.items()
        if tree.link(tree.proc(f"self/ns/{kind}")) not in (None, first)
    )
