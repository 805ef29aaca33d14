"""Files that are whole or absent: replaced by a rename, durable when asked, with the mode asked for.

Knows nothing of what is in them. All functions block and run in a worker thread; they raise OSError,
and `explain` turns one into words for whoever runs the node.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeAlias

Step: TypeAlias = Callable[[str], None]
"""Called with the name of a step just before it is done; crash tests kill the process there."""

_PARENT_MODE = 0o755

_ADVICE = {
    errno.ENOSPC: "the disk is full: free some space; it will be tried again, and nothing was lost",
    errno.EDQUOT: "the quota is used up: raise it or free some space; it will be tried again, and nothing was lost",
    errno.EROFS: "the file system is read-only: mount it writable for the agent (after an I/O error: check the disk)",
    errno.EACCES: "permission denied: run the agent as root, and give its container the host's directory writable",
    errno.EPERM: "not permitted: run the agent as root, and give its container the host's directory writable",
    errno.ENOENT: "the directory is gone: give the agent's container the host's directory and restart the agent",
    errno.EIO: "the disk failed to read or write: check the kernel's log and replace it",
    errno.EMFILE: "too many open files: raise the agent's limit of open files",
    errno.ENAMETOOLONG: "the name is too long for the file system",
}


FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""What the disk says when it has no room."""


def no_step(step: str) -> None:
    """The step hook of production: nothing."""


def explain(error: OSError, doing: str) -> str:
    """`doing` failed: what was found, and what to do about it."""
    found = (error.strerror or str(error)).lower()
    advice = _ADVICE.get(error.errno or 0, "")
    return f"{doing} failed: {advice or found} (errno {errno.errorcode.get(error.errno or 0, error.errno)})"


def make_directory(path: str, mode: int) -> None:
    """Create the directory with this mode, whatever the umask, and missing parents open to all; durable.

    Directories that are there are left alone.
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
        with opened(parent) as directory:
            os.fsync(directory)


def temporary_name(name: str) -> str:
    """A name for a file that will be renamed to `name`: hidden, unique, and never taken for a finished file."""
    return f".{name}.{secrets.token_hex(4)}.tmp"


def is_temporary(name: str, ending: str) -> bool:
    """Whether a name was made by `temporary_name` for a file whose name ends so."""
    kept, _, token = name.removesuffix(".tmp").rpartition(".")
    return name.startswith(".") and name.endswith(".tmp") and kept.endswith(ending) and len(token) == 8


def replace_file(directory: int, name: str, content: bytes, *, mode: int, durable: bool, step: Step = no_step) -> None:
    """Put `content` under `name` in the directory of this descriptor: the old file, or the new one, nothing between.

    `durable`: it survives a loss of power once this has returned. On an error nothing is left behind.
    """
    temporary = temporary_name(name)
    step("create")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, mode, dir_fd=directory)
    try:
        try:
            step("chmod")
            os.fchmod(descriptor, mode)
            step("write")
            write_all(descriptor, content, step)
            if durable:
                step("fsync")
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        step("rename")
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with suppress(OSError):
            remove_file(directory, temporary)
        raise
    step("renamed")
    if durable:
        step("fsync directory")
        os.fsync(directory)


def write_file(path: str, content: bytes, *, mode: int, durable: bool, step: Step = no_step) -> None:
    """Put `content` at `path` as a whole: the old file, or the new one, never a part. The directory must exist.

    The temporary file has one name, so that only one writer at a time may write one path. `durable`: the file outlives
    a loss of power once this has returned.

    Raises:
        OSError: as the system calls raise it; nothing is left behind, and the old file is as it was.
    """
    temporary = f"{path}.tmp"
    step("create")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        try:
            step("write")
            os.fchmod(descriptor, mode)
            if os.write(descriptor, content) < len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), temporary)
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        step("rename")
        os.rename(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    step("renamed")
    if durable:
        flush_directory(os.path.dirname(path))


def flush_directory(path: str) -> None:
    """Make the directory's entries outlive a loss of power."""
    with opened(path) as directory:
        os.fsync(directory)


def read_regular_file(path: str, limit: int) -> bytes:
    """The content of a regular file of at most `limit` bytes.

    Raises:
        OSError: as `open` and `read` raise it; ELOOP for a link, EINVAL for no regular file, EFBIG when it is longer.
    """
    # Not blocking: to open a named pipe would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        if status.st_size > limit:
            raise OSError(errno.EFBIG, f"{status.st_size} bytes, at most {limit} are read", path)
        return os.read(descriptor, limit)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, content: bytes, step: Step = no_step) -> None:
    """Write everything; the kernel may take less than it is given."""
    view = memoryview(content)
    while view:
        written = os.write(descriptor, view)
        view = view[written:]
        step("written")


def remove_file(directory: int, name: str) -> None:
    """Remove the file; that it is gone already is as good."""
    try:
        os.unlink(name, dir_fd=directory)
    except FileNotFoundError:
        return


@contextmanager
def opened(path: str) -> Iterator[int]:
    """A descriptor of the directory, for the functions here."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read_file(directory: int, name: str, limit: int) -> bytes:
    """The content of a regular file of at most `limit` bytes.

    Raises:
        OSError: as `open` and `read` raise it; ELOOP for a link, EINVAL for what is no file, EFBIG when it is longer.
    """
    # Not blocking: to open a named pipe would wait for a writer.
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", name)
        if status.st_size > limit:
            raise OSError(errno.EFBIG, f"{status.st_size} bytes, at most {limit} are read", name)
        content = b""
        while len(content) < status.st_size and (more := os.read(descriptor, status.st_size - len(content))):
            content += more
        return content
    finally:
        os.close(descriptor)
