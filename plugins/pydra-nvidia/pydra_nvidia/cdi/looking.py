"""A look into the driver's root that notes where it looked.

What was found stays true as long as the folders that were looked into are unchanged: then their signs are the same.
"""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Mapping
from typing import TypeAlias

from pydra_nvidia.host.driver_root import DriverRoot

Sign: TypeAlias = tuple[int, int, int] | None
"""Which folder it is, and when its entries last changed, in nanoseconds since 1970; None where there is none."""


class Look:
    """One look. Paths are inside the root; those that `find` gives have no links. Nothing raises OSError."""

    def __init__(self, root: DriverRoot) -> None:
        self.root = root
        self._seen: dict[str, Sign] = {}
        self._names: dict[str, tuple[str, ...]] = {}
        self._found: dict[str, str | None] = {}

    @property
    def seen(self) -> Mapping[str, Sign]:
        """The folders that were looked into, each with its sign from before the look."""
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
            self._seen[folder] = read_sign(self.root, folder)

    def _mode(self, found: str) -> int:
        try:
            return os.lstat(self.root.path_here(found)).st_mode
        except OSError:
            return 0


def read_sign(root: DriverRoot, folder: str) -> Sign:
    """The folder's sign, now."""
    found = root.resolve(folder)
    if found is None:
        return None
    try:
        status = os.stat(root.path_here(found))
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns
