"""Files and directories that containers write to as well: what they may leave there is not followed, nor waited for."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def hold_clients_file(path: str) -> Iterator[int]:
    """A descriptor of a file in a directory that containers write to: /proc/self/fd opens it. Raises OSError.

    A link is not followed. Anything but a regular file is not opened: a pipe would wait for a writer, and some devices
    act when they are opened.
    """
    place = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(place).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        yield place
    finally:
        os.close(place)


def read_clients_file(path: str, limit: int) -> bytes:
    """The first `limit` bytes of such a file. Raises OSError."""
    with hold_clients_file(path) as place, open(f"/proc/self/fd/{place}", "rb") as file:
        return file.read(limit)


def remove_clients_directory(path: str) -> None:
    """Remove a directory that containers wrote to, with all that is in it. Raises OSError; FileNotFoundError for none.

    They may have made it deeper than Python can recurse, or have descriptors open; so what is below a directory in it
    is moved up before that is removed.
    """
    top = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        while directories := [name for name in os.listdir(top) if not _unlink(name, top)]:
            for name in directories:
                inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
                try:
                    for below in os.listdir(inner):
                        if not _unlink(below, inner):
                            os.rename(below, secrets.token_hex(16), src_dir_fd=inner, dst_dir_fd=top)
                finally:
                    os.close(inner)
                os.rmdir(name, dir_fd=top)
    except FileNotFoundError as error:
        raise OSError(errno.ENOTEMPTY, "a container removed something in it meanwhile", path) from error
    finally:
        os.close(top)
    os.rmdir(path)


def _unlink(name: str, directory: int) -> bool:
    """Whether it is gone, since it was not a directory."""
    try:
        os.unlink(name, dir_fd=directory)
    except IsADirectoryError:
        return False
    return True
