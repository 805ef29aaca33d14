"""Paths inside another root directory, what kind of file is there, and files that are replaced at once.

Links inside a root are followed inside it, as they would be after a chroot: a driver that is installed below
/run/nvidia/driver has links to `/usr/lib/...` that mean its own files; followed blindly they end in this process's file
system.
"""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from contextlib import suppress
from typing import TypeAlias

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
