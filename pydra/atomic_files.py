"""Atomic file writes and safe reads.

A file is replaced by a rename, so it is complete or absent; on request it is flushed. All functions block and raise
OSError, which `explain` turns into a text for the administrator of the node.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress

_PARENT_MODE = 0o755

_ADVICE = {
    errno.ENOSPC: "the disk is full: free some space; it will be tried again, and nothing was lost",
    errno.EDQUOT: "the quota is used up: raise it or free some space; it will be tried again, and nothing was lost",
    errno.EROFS: "the file system is read-only: mount it writable for the agent (after an I/O error: check the disk)",
    errno.EACCES: "permission denied: run the agent as root, and give its container the host's directory writable",
    errno.EPERM: "not permitted: run the agent as root, and give its container the host's directory writable",
    errno.ENOENT: "the directory is gone: give the agent's container the directory of the host",
    errno.EIO: "the disk failed to read or write: check the kernel's log and replace it",
    errno.EMFILE: "too many open files: raise the agent's limit of open files",
    errno.ENAMETOOLONG: "the name is too long for the file system",
}


def explain(error: OSError, doing: str) -> str:
    """Format why `doing` failed, and what to do about it."""
    found = (error.strerror or str(error)).lower()
    advice = _ADVICE.get(error.errno or 0, "")
    return f"{doing} failed: {advice or found} (errno {errno.errorcode.get(error.errno or 0, error.errno)})"


def make_directory(path: str, mode: int) -> None:
    """Create the directory with this mode, whatever the umask, and missing parents readable by all; durable.

    Existing directories are not changed.
    """
    if os.path.isdir(path):
        return
    parent = os.path.dirname(os.path.abspath(path))
    make_directory(parent, _PARENT_MODE)
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
    else:
        os.chmod(path, mode)
        flush_directory(parent)


def write_file(path: str, content: bytes, *, mode: int, durable: bool) -> None:
    """Write `content` to `path` atomically: there is the old file or the new one. The directory must exist.

    The temporary file has a fixed name, so only one writer at a time may write one path. `durable`: the file survives
    a loss of power once this has returned.

    Raises:
        OSError: of the system calls; nothing is left behind, and the old file is unchanged.
    """
    temporary = f"{path}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        try:
            os.fchmod(descriptor, mode)
            if os.write(descriptor, content) < len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), temporary)
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    if durable:
        flush_directory(os.path.dirname(path))


def flush_directory(path: str) -> None:
    """Make the directory's entries survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_regular_file(path: str, limit: int) -> bytes:
    """Read a regular file of at most `limit` bytes.

    Raises:
        OSError: of `open` and `read`; ELOOP for a link, EINVAL for other kinds of files, EFBIG if it is longer.
    """
    # Non-blocking: opening a named pipe would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        if status.st_size > limit:
            raise OSError(errno.EFBIG, f"{status.st_size} bytes, at most {limit} are read", path)
        return os.read(descriptor, status.st_size)  # not `limit`: Python makes a buffer of that size
    finally:
        os.close(descriptor)
