"""Files as values, and what brings a directory from one set of them to another.

A set maps paths below the tree's root to what is there, in a notation that is small to keep: a letter for the kind,
then the text. A simulator may have kinds of its own, whose content is made from the text when the file is written. What
others changed in the tree stays as it is, until the same file has to change here.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import TypeAlias

Files: TypeAlias = dict[str, str]
Contents: TypeAlias = Mapping[str, Callable[[str], bytes]]
"""What makes the content of a file from its text, by the letter of its kind."""

NODE_MODE = 0o666
_NULL_DEVICE = os.makedev(1, 3)


def text(content: object) -> str:
    """A file of the kernel, or of the host; ends in a new line."""
    return f"t{content}\n"


def exact(content: str) -> str:
    """A file with just this."""
    return f"t{content}"


def program(content: str) -> str:
    """A file that can be run."""
    return f"x{content}"


def link(target: str) -> str:
    """A symbolic link."""
    return f"l{target}"


def device() -> str:
    """A device node; a plain file where this process may make none.

    It has the numbers of /dev/null, so that a container runtime can hand it to a real container.
    """
    return "c"


def socket() -> str:
    """A socket that nobody listens to."""
    return "s"


def folder() -> str:
    """An empty directory, for what others put there. A file's own directory need not be named."""
    return "d"


def change_files(
    root: str, before: Mapping[str, str], after: Mapping[str, str], contents: Contents = MappingProxyType({})
) -> None:
    """Make the files below `root` those of `after`, where they were those of `before`; raises OSError.

    `contents` has the kinds of the simulator. Links go first and come last: a function is on the bus after its files
    are there, and until they go.
    """
    gone = [
        path for path, entry in before.items() if entry != after.get(path) and _is_in_the_way(entry, after.get(path))
    ]
    for path in sorted(gone, key=lambda one: before[one][0] != "l"):
        _remove(root, path)
    _prune(root, gone, keep=after)
    made = {""}
    os.makedirs(root, exist_ok=True)
    come = [path for path, entry in after.items() if before.get(path) != entry]
    for path in sorted(come, key=lambda one: after[one][0] == "l"):
        _make_folder(root, path.rpartition("/")[0], made)
        _make(f"{root}/{path}", after[path], contents)


def _make_folder(root: str, path: str, made: set[str]) -> None:
    """`made` has what is there already, so that the kernel is asked for each directory once."""
    if path not in made:
        _make_folder(root, path.rpartition("/")[0], made)
        with suppress(FileExistsError):
            os.mkdir(f"{root}/{path}")
        made.add(path)


def _is_in_the_way(before: str, after: str | None) -> bool:
    """A directory cannot be replaced by a file, nor a file by a directory."""
    return after is None or "d" in (before[0], after[0])


def _make(path: str, entry: str, contents: Contents) -> None:
    kind, content = entry[0], entry[1:]
    if kind == "l":
        _replace(path, lambda draft: os.symlink(content, draft))
    elif kind == "c":
        _replace(path, _make_device)
    elif kind == "s":
        _replace(path, lambda draft: os.mknod(draft, stat.S_IFSOCK | NODE_MODE))
    elif kind == "d":
        os.makedirs(path, exist_ok=True)
    else:
        written = contents.get(kind, str.encode)(content)
        _replace(path, lambda draft: _write(draft, written, 0o755 if kind == "x" else 0o644))


def _write(path: str, content: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        os.write(descriptor, content)
    finally:
        os.close(descriptor)


def _make_device(path: str) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | NODE_MODE, _NULL_DEVICE)
    except PermissionError:
        with open(path, "wb"):
            pass
    os.chmod(path, NODE_MODE)


def _replace(path: str, make: Callable[[str], None]) -> None:
    """What is new is made in place; what is there is replaced, since somebody may be reading it."""
    try:
        make(path)
    except FileExistsError:
        draft = f"{path}.draft"
        with suppress(FileNotFoundError):
            os.unlink(draft)
        make(draft)
        os.replace(draft, path)


def _remove(root: str, path: str) -> None:
    full = os.path.join(root, path)
    try:
        os.unlink(full)
    except (FileNotFoundError, NotADirectoryError):
        return
    except IsADirectoryError:
        with suppress(OSError):
            os.rmdir(full)


def _prune(root: str, gone: list[str], *, keep: Mapping[str, str]) -> None:
    """Remove the directories that nothing is in any more, and that are not wanted as such."""
    parents = {os.path.dirname(path) for path in gone}
    while parents:
        above = set()
        for parent in sorted(parents, key=len, reverse=True):
            with suppress(OSError):  # in use by something else
                if parent and keep.get(parent) != folder():
                    os.rmdir(os.path.join(root, parent))
                    above.add(os.path.dirname(parent))
        parents = above
