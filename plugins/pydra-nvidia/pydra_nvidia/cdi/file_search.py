"""Finds files in the driver's root, and notes the folders that the result depends on.

What was found stays true as long as these folders are unchanged: then their stamps are the same.
"""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Mapping
from typing import TypeAlias

from pydra_nvidia.host.driver_root import DriverRoot

FolderStamp: TypeAlias = tuple[int, int, int] | None
"""Which folder it is, and when its entries last changed, in nanoseconds since 1970; None where there is none."""


SETTLED_SECONDS = 2.0
"""The time in a stamp counts in ticks of the file system: only after that long the next change surely has another."""


class FileSearch:
    """One search. Paths are inside the root; those that `find` gives have no links. Nothing raises OSError."""

    def __init__(self, root: DriverRoot) -> None:
        self.root = root
        self._seen: dict[str, FolderStamp] = {}
        self._names: dict[str, tuple[str, ...]] = {}
        self._found: dict[str, str | None] = {}

    @property
    def seen(self) -> Mapping[str, FolderStamp]:
        """The folders that were looked into, each with its stamp from before the search."""
        return self._seen

    def find(self, path: str) -> str | None:
        """Where the path leads; None when nothing is there."""
        if path not in self._found:
            self._note(posixpath.dirname(path))
            found = self.root.resolve(path)
            if found is not None:
                self._note(posixpath.dirname(found))
            self._found[path] = found
        return self._found[path]

    def find_file(self, path: str) -> str | None:
        """Where the path leads, if to a regular file."""
        found = self.find(path)
        return found if found is not None and stat.S_ISREG(self._mode(found)) else None

    def find_program(self, path: str) -> str | None:
        """Where the path leads, if to a file that may be run."""
        found = self.find_file(path)
        return found if found is not None and self._mode(found) & 0o111 else None

    def find_socket(self, path: str) -> str | None:
        """Where the path leads, if to a socket."""
        found = self.find(path)
        return found if found is not None and stat.S_ISSOCK(self._mode(found)) else None

    def names(self, folder: str) -> tuple[str, ...]:
        """What is in the folder, sorted; empty when it cannot be read."""
        if folder not in self._names:
            self._note(folder)
            found = self.root.resolve(folder)
            try:
                self._names[folder] = () if found is None else tuple(sorted(os.listdir(self.root.path_here(found))))
            except OSError:
                self._names[folder] = ()
        return self._names[folder]

    def _note(self, folder: str) -> None:
        if folder not in self._seen:
            self._seen[folder] = read_stamp(self.root, folder)

    def _mode(self, found: str) -> int:
        try:
            return os.lstat(self.root.path_here(found)).st_mode
        except OSError:
            return 0


def read_stamp(root: DriverRoot, folder: str) -> FolderStamp:
    """The folder's stamp, now."""
    found = root.resolve(folder)
    if found is None:
        return None
    try:
        status = os.stat(root.path_here(found))
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns


def is_settled(changed: int, now: float) -> bool:
    """Whether what changed then, in nanoseconds since 1970, surely has another stamp after its next change."""
    return now - changed / 1e9 >= SETTLED_SECONDS
