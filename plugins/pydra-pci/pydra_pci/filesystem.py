"""The node's files, read and written. Every path goes through a `Tree`: a simulated machine can stand for the node."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Annotated, Generic, TypeVar

import msgspec

T = TypeVar("T")

AbsolutePath = Annotated[str, msgspec.Meta(pattern="^/")]


class RootSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a backend that say where the host's files are. The texts are those of its page of settings."""

    host_root: AbsolutePath = msgspec.field(default_factory=lambda: os.environ.get("PYDRA_HOST_ROOT", "/"))
    """Where the host's `/` is mounted. Default: `PYDRA_HOST_ROOT`, if that is set."""
    sys_root: AbsolutePath = "/sys"
    """Where the host's `/sys` is mounted. Changes of the hardware are written to it."""
    proc_root: AbsolutePath = "/proc"
    """Where the host's `/proc` is mounted."""


class Roots(msgspec.Struct, frozen=True, kw_only=True):
    """Where things are: `host` (the node's `/`), `sys` and `proc` as this process sees them, `dev` as the host does."""

    host: str = "/"
    sys: str = "/sys"
    proc: str = "/proc"
    dev: str = "/dev"


class Tree:
    """The node's files. `wrote` is called after each write: simulated hardware reacts there."""

    def __init__(self, roots: Roots, wrote: Callable[[str, str], None] | None = None) -> None:
        self.roots = roots
        self._wrote = wrote

    def sys(self, path: str) -> str:
        """`bus/pci/devices` below /sys, as this process sees it."""
        return os.path.join(self.roots.sys, path)

    def proc(self, path: str) -> str:
        """`sys/kernel/osrelease` below /proc, as this process sees it."""
        return os.path.join(self.roots.proc, path)

    def host_node(self, node: str) -> str:
        """The host's path of the device node that containers have at `/dev/...`."""
        return os.path.join(self.roots.dev, node.removeprefix("/dev/"))

    def here(self, host_path: str) -> str:
        """A path of the host, as this process sees it."""
        return host_path if self.roots.host == "/" else self.roots.host.rstrip("/") + host_path

    def has_node(self, node: str) -> bool:
        """Whether the host has the device node that containers have at `/dev/...`; a directory is none."""
        path = self.here(self.host_node(node))
        return self.exists(path) and not os.path.isdir(path)

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
        simulated = self._wrote is not None
        draft = f"{path}.draft" if simulated else path  # who is killed here leaves the text of before, as in a kernel
        with open(draft, "w", encoding="utf-8") as file:
            file.write(text)
        if self._wrote is not None:
            os.replace(draft, path)
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


class ParsedFile(Generic[T]):
    """What a file says, parsed again when the file has changed."""

    def __init__(self, parse: Callable[[str], T]) -> None:
        self._parse = parse
        self._known: tuple[object, T] | None = None

    def read(self, path: str) -> T | None:
        """What it says now; None when it cannot be read."""
        try:
            found = os.stat(path)
            signature = path, found.st_mtime_ns, found.st_size
            if self._known is None or self._known[0] != signature:
                with open(path, encoding="utf-8", errors="replace") as file:
                    self._known = signature, self._parse(file.read())
        except OSError:
            return None
        return self._known[1]
