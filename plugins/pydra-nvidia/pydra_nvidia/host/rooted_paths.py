"""Paths inside another root directory.

Links inside a root are followed inside it, as they would be after a chroot: a driver that is installed below
/run/nvidia/driver has links to `/usr/lib/...` that mean its own files; followed blindly they end in this process's file
system.
"""

from __future__ import annotations

import errno
import os
import posixpath
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
