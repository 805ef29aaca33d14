"""What may be on a disk after a loss of power, from the system calls that wrote to it.

The least that POSIX promises, which is less than what ext4 and XFS do: a file's content is certain only from `fsync` of
the file, a name (created, renamed or removed) only from `fsync` of its directory. Of what is not flushed anything may
have been written, in any order: content to its full length, half of it or none; of the changes of names any subset. A
rename is atomic.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.integration.claims.system_calls import Effect

State = Mapping[str, bytes | None]
"""Paths below the root, each with the content of the file, or None for a directory."""


@dataclass(frozen=True, kw_only=True)
class _Change:
    """A change of names, by inode; None is a directory, and `gone` the names that it removes."""

    directories: frozenset[str]
    names: Mapping[str, int | None]
    gone: str = ""


class Disk:
    """A disk with this flushed state, to which effects are applied in order."""

    def __init__(self, state: State) -> None:
        files = [path for path, content in state.items() if content is not None]
        self._flushed = {path: files.index(path) if path in files else None for path in state}
        self._now = dict(self._flushed)
        self._changes: list[_Change] = []
        self._contents = [state[path] or b"" for path in files]
        self._flushed_contents = list(self._contents)

    def apply(self, effect: Effect) -> None:
        """Apply one effect. Raises AssertionError for a call that a replay does not know."""
        path = effect.path
        match effect.call:
            case "openat":
                if path not in self._now:
                    self._contents.append(b"")
                    self._flushed_contents.append(b"")
                    self._change({path: len(self._contents) - 1})
            case "mkdir":
                self._change({path: None})
            case "write":
                self._contents[self._inode(path)] += effect.content
            case "rename":
                self._change({effect.to: self._now[path]}, gone=path)
            case "unlink" | "rmdir":
                self._change({}, gone=path)
            case "fsync" | "fdatasync" if self._now.get(path) is not None:
                self._flushed_contents[self._inode(path)] = self._contents[self._inode(path)]
            case "fsync" | "fdatasync":
                durable = [one for one in self._changes if path in one.directories]
                self._changes = [one for one in self._changes if path not in one.directories]
                self._flushed = _with_changes(self._flushed, durable)
            case unknown:
                raise AssertionError(f"{unknown} is not replayed")

    def now(self) -> State:
        """What programs see while there is power."""
        return {path: None if inode is None else self._contents[inode] for path, inode in self._now.items()}

    def states_after_loss(self) -> Iterator[State]:
        """All states in which the disk may be found."""
        count = len(self._changes)
        for chosen in itertools.product((False, True), repeat=count):
            names = _with_changes(self._flushed, list(itertools.compress(self._changes, chosen)))
            names = {path: inode for path, inode in names.items() if os.path.dirname(path) in {"", *names}}
            variants = [[None] if inode is None else self._variants(inode) for inode in names.values()]
            for contents in itertools.product(*variants):
                yield dict(zip(names, contents, strict=True))

    def _change(self, names: Mapping[str, int | None], *, gone: str = "") -> None:
        directories = frozenset(os.path.dirname(path) or "." for path in (*names, *filter(None, [gone])))
        self._changes.append(_Change(directories=directories, names=names, gone=gone))
        self._now = _with_changes(self._now, self._changes[-1:])

    def _inode(self, path: str) -> int:
        inode = self._now[path]
        assert inode is not None
        return inode

    def _variants(self, inode: int) -> list[bytes]:
        flushed, content = self._flushed_contents[inode], self._contents[inode]
        return list(dict.fromkeys([flushed, content, content[: (len(flushed) + len(content)) // 2]]))


def _with_changes(names: Mapping[str, int | None], changes: Sequence[_Change]) -> dict[str, int | None]:
    found = dict(names)
    for change in changes:
        found.pop(change.gone, None)
        found.update(change.names)
    return found


def write_state(state: State, root: Path) -> None:
    """Create the directories and files of a state below `root`."""
    for path, content in sorted(state.items()):
        if content is None:
            (root / path).mkdir(parents=True, exist_ok=True)
        else:
            (root / path).write_bytes(content)
