"""Files that answer what is written to them, as those of a kernel do: nobody opens one again before the reaction.

The kernel asks the test before it opens such a file (fanotify(7), FAN_OPEN_PERM), for processes in containers too, so
that a reaction never comes after the look of the process that wrote.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_CLASS_CONTENT, _CLOEXEC = 0x04, 0x01
_MARK_ADD = 0x01
_OPEN_PERM = ctypes.c_uint64(0x00010000)
_ALLOW = 1
_EVENT = struct.Struct("=IBBHQii")
"""struct fanotify_event_metadata; its last two are a descriptor of the file and the process that opens it."""

_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def react_to_writes(paths: Iterable[Path], react: Callable[[Path, str], None]) -> Iterator[Callable[[], None]]:
    """Call `react(path, text)`, from a thread, for each new text before anything opens the file again.

    `react` may replace the file, but not open it. The body gets what is to be called when something else has replaced
    the files. Raises OSError without root, or where the kernel does not ask.
    """
    paths = tuple(paths)
    watch = _check(_libc.fanotify_init(_CLASS_CONTENT | _CLOEXEC, os.O_RDONLY | os.O_CLOEXEC))
    found: dict[tuple[int, int], tuple[Path, str]] = {}

    def mark(path: Path) -> None:
        text = path.read_text()
        _check(_libc.fanotify_mark(watch, _MARK_ADD, _OPEN_PERM, -100, os.fsencode(path)))
        found[_identify(os.stat(path))] = path, text

    def answer(opened: int) -> None:
        try:
            path, before = found[_identify(os.fstat(opened))]
            text = os.pread(opened, 4096, 0).decode()
            if text not in ("", before):  # empty between the truncation and the write of one writer
                react(path, text)
                with suppress(FileNotFoundError):  # its driver was unloaded meanwhile
                    mark(path)
        finally:
            os.write(watch, struct.pack("=iI", opened, _ALLOW))
            os.close(opened)

    def serve(ended: int) -> None:
        while ended not in select.select([watch, ended], [], [])[0]:
            events = os.read(watch, 64 * _EVENT.size)
            for _, _, _, _, _, opened, _ in _EVENT.iter_unpack(events):
                answer(opened)

    def mark_all() -> None:
        for path in paths:
            mark(path)

    mark_all()
    ended, end = os.pipe()
    thread = threading.Thread(target=serve, args=(ended,))
    thread.start()
    try:
        yield mark_all
    finally:
        os.close(end)
        thread.join()
        os.close(ended)
        os.close(watch)  # those that still wait are allowed


def _identify(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _check(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"fanotify(7): {os.strerror(ctypes.get_errno())}")
    return result
