"""Unix sockets on disk: bound without an open moment, replaced when stale, removed only while they are ours.

Servers get the bound socket; they never see the path.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pydra.errors import SettingsError
from pydra.kubelet.names import MAX_SOCKET_PATH, excess_bytes

SOCKET_MODE = 0o600
BACKLOG = 128


class BoundSocket:
    """A listening socket and the file that leads to it."""

    def __init__(self, path: str, sock: socket.socket) -> None:
        self.path = path
        self.sock = sock
        self._identity = _identity(path)

    def is_intact(self) -> bool:
        """Whether the path still leads to this socket; not so once somebody removed or replaced the file."""
        return _identity(self.path) == self._identity is not None

    def remove(self) -> None:
        """Remove the file, if it is still ours: during a rolling update it may be somebody else's by now."""
        if self.is_intact():
            with suppress(FileNotFoundError):
                os.unlink(self.path)


def bind_socket(path: str) -> BoundSocket:
    """Bind and listen at the path, open to its owner (the kubelet is root) and nobody else, whatever the umask.

    A socket file that nobody listens at, such as a killed process leaves, is replaced.

    Raises:
        SettingsError: the path is too long for a socket.
        OSError: EADDRINUSE when a living process listens there, EEXIST when it is no socket, EAGAIN when another
            instance is at this moment making a socket in the directory; else what the kernel says.
    """
    if excess := excess_bytes(path):
        raise SettingsError([f"{path} is {excess} bytes too long for a Unix socket, which can have {MAX_SOCKET_PATH}"])
    with _exclusive(os.path.dirname(path)):
        _remove_stale(path)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            # On Linux the file takes its mode from the socket's own, less the umask: there is no moment in which the
            # path is there and open. The second call undoes an umask that took away from the owner.
            os.fchmod(sock.fileno(), SOCKET_MODE)
            sock.bind(path)
            os.chmod(path, SOCKET_MODE)
            sock.listen(BACKLOG)
        except BaseException:
            sock.close()
            raise
        return BoundSocket(path, sock)


@contextmanager
def _exclusive(directory: str) -> Iterator[None]:
    """Keep other instances from looking at the same stale file, and from taking our new socket for one."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OSError(errno.EAGAIN, "another instance is making its socket there", directory) from error
        yield
    finally:
        os.close(descriptor)


def _remove_stale(path: str) -> None:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(errno.EEXIST, "there is something else than a socket; move it away", path)
    if _is_listened_at(path):
        raise OSError(errno.EADDRINUSE, "another process listens there; stop it, or give it another driver name", path)
    with suppress(FileNotFoundError):
        os.unlink(path)


def _is_listened_at(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        code = probe.connect_ex(path)
    if code in (errno.ECONNREFUSED, errno.ENOENT):
        return False
    # EAGAIN is a full backlog, EPROTOTYPE a socket of another type: both are somebody's.
    if code in (0, errno.EAGAIN, errno.EPROTOTYPE):
        return True
    raise OSError(code, os.strerror(code), path)


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino
