"""The node's files, read and written, and paths inside another root directory.

Every path of the node goes through a `Tree`: another can stand for it. Links inside a root are followed inside it, as
they would be after a chroot: a driver that is installed below /run/nvidia/driver has links to `/usr/lib/...` that mean
its own files; followed blindly they end in this process's file system.
"""

from __future__ import annotations

import errno
import os
import posixpath
import re
import stat
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeAlias, TypeVar

import msgspec

T = TypeVar("T")

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


def read_memory(tree: Tree) -> int | None:
    """The node's memory in KiB; None where it is not told."""
    found = re.search(r"^MemTotal:\s+(\d+) kB", tree.read(tree.proc("meminfo")) or "", re.MULTILINE)
    return int(found[1]) if found else None


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


MOST_LINKS = 40
"""As the kernel follows before it says ELOOP."""


Links: TypeAlias = dict[str, str | None]
"""Paths inside a root, and where they lead: empty for what is not a link, None if nothing is there."""


def resolve(root: str, path: str, known: Links | None = None) -> str | None:
    """`path` inside `root`, with all links followed inside it; None when nothing is there.

    The answer is absolute inside the root: `/usr/lib64/libcuda.so.580.105.08`. `known` keeps what was read for the
    other paths of one look, which have most folders in common.
    """
    here = root.rstrip("/")
    known = {} if known is None else known
    left = path.split("/")[::-1]
    done = ""
    links = 0
    while left:
        part = left.pop()
        if part in ("", "."):
            continue
        if part == "..":
            done = done.rpartition("/")[0]  # above the root is the root
            continue
        place = f"{done}/{part}"
        if place in known:
            target = known[place]
        else:
            try:
                target = os.readlink(f"{here}{place}")
            except OSError as error:
                target = "" if error.errno == errno.EINVAL else None  # EINVAL: there, and no link
            known[place] = target
        if target is None:
            return None
        if not target:
            done = place
            continue
        links += 1
        if links > MOST_LINKS:
            return None
        if target.startswith("/"):
            done = ""
        left += target.split("/")[::-1]
    return done or "/"


def below(root: str, path: str) -> str:
    """`path`, which is absolute inside `root`, as a path outside it."""
    return posixpath.join(root, path.lstrip("/"))


def is_program(path: str) -> bool:
    """Whether a file is there that may be run, by its mode: this process may see files where nothing can be run."""
    mode = read_mode(path)
    return stat.S_ISREG(mode) and bool(mode & 0o111)


def is_socket(path: str) -> bool:
    """Whether a socket is there."""
    return stat.S_ISSOCK(read_mode(path))


def read_mode(path: str) -> int:
    """The mode of what is there, a link's own if it is one; 0 if nothing can be seen."""
    try:
        return os.lstat(path).st_mode
    except OSError:
        return 0


def replace_file(path: str, data: bytes) -> None:
    """Write all of it or nothing. Raises OSError."""
    draft = f"{path}.{os.getpid()}"
    try:
        with open(draft, "wb") as file:
            file.write(data)
        os.replace(draft, path)
    except OSError:
        with suppress(OSError):
            os.unlink(draft)
        raise


class ParsedFile(Generic[T]):
    """What a file says, parsed again when the file has changed."""

    def __init__(self, tree: Tree, parse: Callable[[str], T]) -> None:
        self._tree = tree
        self._parse = parse
        self._known: tuple[object, T] | None = None

    def read(self, path: str) -> T | None:
        """What it says now; None when it cannot be read."""
        try:
            found = os.stat(path)
        except OSError:
            return None
        signature = path, found.st_mtime_ns, found.st_size
        if self._known is None or self._known[0] != signature:
            text = self._tree.read(path)
            if text is None:
                return None
            self._known = signature, self._parse(text)
        return self._known[1]
