"""Files as values, and what brings a directory from one set of them to another.

A set maps paths below the tree's root to what is there, in a notation that is small to keep: a letter for the kind,
then the text. What others changed in the tree stays as it is, until the same file has to change here.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeAlias

from pydra_nvidia.simulation.tree.device_numbers import describe_minors

Files: TypeAlias = dict[str, str]

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


def library(soname: str, machine: int) -> str:
    """A shared library with nothing in it but its SONAME; `machine` as the ELF header numbers processors."""
    return f"e{machine} {soname}"


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


def mig_minors() -> str:
    """The file mig-minors, 4322 lines that are always the same."""
    return "m"


def change_files(root: str, before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Make the files below `root` those of `after`, where they were those of `before`; raises OSError.

    Links go first and come last: a function is on the bus after its files are there, and until they go.
    """
    gone = [
        path for path, entry in before.items() if entry != after.get(path) and _is_in_the_way(entry, after.get(path))
    ]
    for path in sorted(gone, key=lambda one: before[one][0] != "l"):
        _remove(root, path)
    _prune(root, gone, keep=after)
    made: set[str] = set()
    come = [path for path, entry in after.items() if before.get(path) != entry]
    for path in sorted(come, key=lambda one: after[one][0] == "l"):
        full = os.path.join(root, path)
        parent = os.path.dirname(full)
        if parent not in made:
            os.makedirs(parent, exist_ok=True)
            made.add(parent)
        _make(full, after[path])


def _is_in_the_way(before: str, after: str | None) -> bool:
    """A directory cannot be replaced by a file, nor a file by a directory."""
    return after is None or "d" in (before[0], after[0])


def _make(path: str, entry: str) -> None:
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
        _write(path, _content(kind, content), 0o755 if kind == "x" else 0o644)


def _content(kind: str, content: str) -> bytes:
    if kind == "e":
        machine, _, soname = content.partition(" ")
        return build_library(soname, int(machine))
    return describe_minors().encode() if kind == "m" else content.encode()


def _write(path: str, content: bytes, mode: int) -> None:
    """A new file is written in place; one that is there is replaced, since somebody may be reading it."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    except FileExistsError:
        draft = f"{path}.draft"
        with open(draft, "wb") as file:
            file.write(content)
        os.chmod(draft, mode)
        os.replace(draft, path)
        return
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


X86_64, AARCH64 = 62, 183

_SHARED_OBJECT = 3
_LOAD, _DYNAMIC, _STACK = 1, 2, 0x6474E551
_READ, _WRITE = 4, 2
_HASH, _STRTAB, _SYMTAB, _STRSZ, _SYMENT, _SONAME = 4, 5, 6, 10, 11, 14
_PAGE = 0x10000
_HEADER_SIZE, _SEGMENT_SIZE, _SYMBOL_SIZE = 64, 56, 24


def build_library(soname: str, machine: int = X86_64) -> bytes:
    """The file; `machine` is the ELF header's number of the processor."""
    strings = b"\0" + soname.encode() + b"\0"
    strings += bytes(-len(strings) % 8)
    symbols = bytes(_SYMBOL_SIZE)  # the one that every table begins with
    hashes = struct.pack("<4I", 1, 1, 0, 0)  # one bucket, one chain, both empty
    at_strings = _HEADER_SIZE + 4 * _SEGMENT_SIZE
    at_symbols = at_strings + len(strings)
    at_hashes = at_symbols + len(symbols)
    end = at_hashes + len(hashes)
    dynamic = b"".join(
        struct.pack("<qQ", tag, value)
        for tag, value in (
            (_SONAME, 1),
            (_HASH, at_hashes),
            (_STRTAB, at_strings),
            (_SYMTAB, at_symbols),
            (_STRSZ, len(strings)),
            (_SYMENT, _SYMBOL_SIZE),
            (0, 0),
        )
    )
    address = end + _PAGE  # what the loader writes to is on a page of its own
    segments = (
        (_LOAD, _READ, 0, 0, 0, end, end, _PAGE),
        (_LOAD, _READ | _WRITE, end, address, address, len(dynamic), len(dynamic), _PAGE),
        (_DYNAMIC, _READ | _WRITE, end, address, address, len(dynamic), len(dynamic), 8),
        (_STACK, _READ | _WRITE, 0, 0, 0, 0, 0, 16),
    )
    identity = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    header = identity + struct.pack(
        "<HHIQQQIHHHHHH", _SHARED_OBJECT, machine, 1, 0, _HEADER_SIZE, 0, 0, _HEADER_SIZE, _SEGMENT_SIZE, 4, 0, 0, 0
    )
    table = b"".join(struct.pack("<IIQQQQQQ", *segment) for segment in segments)
    return header + table + strings + symbols + hashes + dynamic
