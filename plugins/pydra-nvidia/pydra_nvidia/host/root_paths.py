"""Paths inside another root directory, whose links are followed inside it, as they would be after a chroot.

A driver that is installed below /run/nvidia/driver has links to `/usr/lib/...` that mean its own files; followed
blindly they end in this process's file system.
"""

from __future__ import annotations

import errno
import os
import posixpath

MOST_LINKS = 40
"""As the kernel follows before it says ELOOP."""


def resolve(root: str, path: str) -> str | None:
    """`path` inside `root`, with all links followed inside it; None when nothing is there.

    The answer is absolute inside the root: `/usr/lib64/libcuda.so.580.105.08`.
    """
    here = root.rstrip("/")
    left = [part for part in reversed(path.split("/")) if part not in ("", ".")]
    done = ""
    links = 0
    while left:
        part = left.pop()
        if part == "..":
            done = done.rpartition("/")[0]  # above the root is the root
            continue
        try:
            target = os.readlink(f"{here}{done}/{part}")
        except OSError as error:
            if error.errno != errno.EINVAL:  # EINVAL: there, and no link
                return None
            done = f"{done}/{part}"
            continue
        links += 1
        if links > MOST_LINKS:
            return None
        if target.startswith("/"):
            done = ""
        left.extend(step for step in reversed(target.split("/")) if step not in ("", "."))
    return done or "/"


def below(root: str, path: str) -> str:
    """`path`, which is absolute inside `root`, as a path outside it."""
    return posixpath.join(root, path.lstrip("/"))
