"""Searches folders of the driver for files, programs and sockets, and notices when they change."""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Iterable
from typing import TypeAlias

from pydra_nvidia.host.driver_root import DriverRoot
from pydra_nvidia.host.rooted_paths import Links, resolve

FolderStamp: TypeAlias = tuple[int, int, int] | None
"""Which folder it is, and when its entries last changed, in nanoseconds since 1970; None where there is none."""
SETTLED_SECONDS = 2.0
"""The time in a stamp counts in ticks of the file system: only after that long the next change surely has another."""


class FileSearch:
    """One search. Paths are inside the root; those that `find` gives have no links. Nothing raises OSError.

    `seen` are the folders that were looked into, each with its stamp from before the search.
    """

    def __init__(self, root: DriverRoot) -> None:
        self.root = root
        self.seen: dict[str, FolderStamp] = {}
        self._links: Links = {}
        self._names: dict[str, tuple[str, ...]] = {}
        self._found: dict[str, str | None] = {}

    def find(self, path: str) -> str | None:
        """Where the path leads; None when nothing is there."""
        if path not in self._found:
            self._note(posixpath.dirname(path))
            found = resolve(self.root.here, path, self._links)
            if found is not None:
                self._note(posixpath.dirname(found))
            self._found[path] = found
        return self._found[path]

    def find_file(self, path: str) -> str | None:
        """Where the path leads, if to a regular file."""
        found = self.find(path)
        return found if found is not None and stat.S_ISREG(read_mode(self.root.path_here(found))) else None

    def find_program(self, path: str) -> str | None:
        """Where the path leads, if to a file that may be run."""
        found = self.find(path)
        return found if found is not None and is_program(self.root.path_here(found)) else None

    def find_socket(self, path: str) -> str | None:
        """Where the path leads, if to a socket."""
        found = self.find(path)
        return found if found is not None and is_socket(self.root.path_here(found)) else None

    def names(self, folder: str) -> tuple[str, ...]:
        """What is in the folder, sorted; empty when it cannot be read."""
        if folder not in self._names:
            self._note(folder)
            found = resolve(self.root.here, folder, self._links)
            try:
                self._names[folder] = () if found is None else tuple(sorted(os.listdir(self.root.path_here(found))))
            except OSError:
                self._names[folder] = ()
        return self._names[folder]

    def _note(self, folder: str) -> None:
        if folder not in self.seen:
            self.seen[folder] = read_stamp(self.root, folder, self._links)


def read_stamps(root: DriverRoot, folders: Iterable[str]) -> dict[str, FolderStamp]:
    """The folders' stamps, now."""
    links: Links = {}
    return {folder: read_stamp(root, folder, links) for folder in folders}


def read_stamp(root: DriverRoot, folder: str, links: Links) -> FolderStamp:
    """The folder's stamp; `links` are those that were followed in the same look."""
    found = resolve(root.here, folder, links)
    if found is None:
        return None
    try:
        status = os.stat(f"{root.here.rstrip('/')}{found}")
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns


def is_settled(changed: int, now: float) -> bool:
    """Whether what changed then, in nanoseconds since 1970, surely has another stamp after its next change."""
    return now - changed / 1e9 >= SETTLED_SECONDS


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
