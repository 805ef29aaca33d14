"""The node's files, read. Every path goes through a `Tree`, so that a simulated machine can stand for the node."""

from __future__ import annotations

import os

import msgspec


class Tree(msgspec.Struct, frozen=True, kw_only=True):
    """Where things are: `sys` and `proc` as this process sees them, `dev` as the host does; `host` is its `/` here."""

    host: str = "/"
    sys: str = "/sys"
    proc: str = "/proc"
    dev: str = "/dev"

    def here(self, host_path: str) -> str:
        """A path of the host, as this process sees it."""
        return host_path if self.host == "/" else self.host.rstrip("/") + host_path


def read_text(path: str) -> str:
    """The file's text without the white space around it; empty when it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def read_link(path: str) -> str:
    """Where a symbolic link leads, as it is written; empty when it is none."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


def list_names(path: str) -> tuple[str, ...]:
    """The directory's entries, sorted; empty when it cannot be read."""
    try:
        return tuple(sorted(os.listdir(path)))
    except OSError:
        return ()
