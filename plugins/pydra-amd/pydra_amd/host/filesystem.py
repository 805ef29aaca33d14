"""The kernel's files, read and written. Every path of the node goes through a `Tree`: another can stand for it."""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec


class Roots(msgspec.Struct, frozen=True, kw_only=True):
    """`host` (the node's `/`) and `sys` as this process sees them, `dev` as the host does."""

    host: str = "/"
    sys: str = "/sys"
    dev: str = "/dev"


class Tree:
    """The node's files. `wrote` is told of each write, after it: simulated hardware reacts there."""

    def __init__(self, roots: Roots, wrote: Callable[[str, str], None] | None = None) -> None:
        self.roots = roots
        self._wrote = wrote

    def sys(self, path: str) -> str:
        """`bus/pci/devices` below /sys, as this process sees it."""
        return os.path.join(self.roots.sys, path)

    def host_node(self, node: str) -> str:
        """The host's path of the node that containers have at `/dev/...`."""
        return os.path.join(self.roots.dev, node.removeprefix("/dev/"))

    def here(self, host_path: str) -> str:
        """A path of the host, as this process sees it."""
        return host_path if self.roots.host == "/" else self.roots.host.rstrip("/") + host_path

    def read(self, path: str) -> str:
        """The file's text without the white space around it; empty when it cannot be read."""
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                return file.read().strip()
        except OSError:
            return ""

    def read_bytes(self, path: str, size: int) -> bytes:
        """The first bytes of the file; none when it cannot be read."""
        try:
            with open(path, "rb", buffering=0) as file:
                return file.read(size)
        except OSError:
            return b""

    def write(self, path: str, text: str) -> None:
        """Tell the kernel; raises OSError with what it answers."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        if self._wrote is not None:
            self._wrote(path, text)

    def link(self, path: str) -> str:
        """Where a symbolic link leads, as it is written; empty when it is none."""
        try:
            return os.readlink(path)
        except OSError:
            return ""

    def names(self, path: str) -> tuple[str, ...]:
        """The directory's entries, sorted; empty when it cannot be read."""
        try:
            return tuple(sorted(os.listdir(path)))
        except OSError:
            return ()

    def exists(self, path: str) -> bool:
        """Whether something is there, followed through links."""
        return os.path.exists(path)
