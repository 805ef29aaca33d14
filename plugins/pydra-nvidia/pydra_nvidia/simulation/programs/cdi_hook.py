"""nvidia-cdi-hook: makes links in a container's root before it starts. Standard library only.

Run by a container runtime with the container's state on its standard input. What only a real driver needs (the
linker's cache, CUDA's compatibility libraries, the mask over /proc/driver/nvidia/params) is left.
Source: NVIDIA container toolkit 1.19, cmd/nvidia-cdi-hook; OCI runtime specification, "POSIX-platform Hooks".
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any


class Refused(Exception):
    """The hook fails, and so does the container."""


def run(arguments: Sequence[str], state: Mapping[str, Any]) -> None:
    """Make the links that a hook asks for; raises Refused."""
    if not arguments:
        raise Refused("no hook is named")
    if arguments[0] != "create-symlinks":
        return
    root = find_root(state)
    for option, link in zip(arguments[1::2], arguments[2::2], strict=True):
        target, found, path = link.partition("::")
        if option != "--link" or not found:
            raise Refused(f"invalid symlink specification {option} {link}")
        make_link(root, target, path)


def find_root(state: Mapping[str, Any]) -> str:
    """The container's root, from its bundle."""
    try:
        bundle = str(state["bundle"])
        with open(os.path.join(bundle, "config.json"), encoding="utf-8") as file:
            path = str(json.load(file)["root"]["path"])
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise Refused(f"failed to determine container root: {error!r}") from error
    return os.path.join(bundle, path)


def make_link(root: str, target: str, path: str) -> None:
    """A link at `path` in the container; there already is fine. Links on the way lead inside the root."""
    folder = _resolve(root, os.path.dirname(path))
    os.makedirs(folder, exist_ok=True)
    full = os.path.join(folder, os.path.basename(path))
    if os.path.islink(full) and os.readlink(full) == target:
        return
    if os.path.lexists(full):
        os.unlink(full)
    os.symlink(target, full)


def _resolve(root: str, path: str) -> str:
    done = "/"
    left = [part for part in path.split("/") if part]
    for _ in range(256):
        if not left:
            break
        part = left.pop(0)
        done = os.path.dirname(done) if part == ".." else os.path.join(done, part)
        full = root + done
        if os.path.islink(full):
            target = os.readlink(full)
            done = "/" if target.startswith("/") else os.path.dirname(done)
            left = [part for part in target.split("/") if part not in ("", ".")] + left
    return root + done


def main(_facts: Mapping[str, str]) -> int:
    """Run the hook that the arguments name, for the container whose state is on standard input; its status."""
    try:
        text = "" if sys.stdin.isatty() else sys.stdin.read()
        run(sys.argv[1:], json.loads(text) if text.strip() else {})
    except (Refused, ValueError, OSError) as error:
        print(f"nvidia-cdi-hook: {error}", file=sys.stderr)  # noqa: T201 - it is a program
        return 1
    return 0
