"""Names, binds and removes the driver's Unix sockets.

Servers get the bound socket, not the path. With a pod uid each instance has names of its own, so two can serve
concurrently during a rolling update. The registration socket takes the first of three forms that fits, as in
Kubernetes 1.37's Go library, so names of Go drivers and of pydra look alike in the kubelet's directories; the
service socket uses the same forms.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import socket
import stat
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256

import msgspec

from pydra.api_name_formats import DRIVER_RULE, is_driver_name
from pydra.errors import SettingsError

SOCKET_MODE = 0o600
BACKLOG = 128

MAX_SOCKET_PATH = 107
"""Bytes that Linux leaves for a Unix socket's path: `sockaddr_un.sun_path` has 108, one of them for the end."""

_INSTANCE = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}|(?=[-a-z0-9]*[A-Z_])[-_A-Za-z0-9]{11}"
"""In a socket's name: a pod's uid, a static pod's, or the digest of one. No driver's name has capitals or '_', so
`a.example.com-b-reg.sock` is not taken for a socket of the driver a.example.com."""


class SocketPaths(msgspec.Struct, frozen=True, kw_only=True):
    """Absolute paths: `registration` for the kubelet's watcher, `service` for its calls (`PluginInfo.endpoint`)."""

    registration: str
    service: str


def plan_socket_paths(driver: str, *, registry_directory: str, plugin_directory: str, pod_uid: str = "") -> SocketPaths:
    """Return the paths of the driver's sockets; without a pod uid, plain names that only one instance can use.

    Raises:
        SettingsError: a driver name that is not valid, a directory that is not absolute or is too deep.
    """
    directories = (registry_directory, plugin_directory)
    problems = [
        *(() if is_driver_name(driver) else (f"{driver!r} is not a driver name; it must be {DRIVER_RULE}",)),
        *(
            f"{path!r} is not an absolute path, which the kubelet needs"
            for path in directories
            if not path.startswith("/")
        ),
    ]
    registration = _first_that_fits(registry_directory, _registration_names(driver, pod_uid))
    service = _first_that_fits(plugin_directory, _service_names(driver, pod_uid))
    for directory, path in ((registry_directory, registration), (plugin_directory, service)):
        if is_too_long(path):
            problems.append(
                f"the directory {directory} is too deep: the socket {path} has a path of {len(path.encode())} bytes, "
                f"and Linux allows {MAX_SOCKET_PATH}; choose a directory with a shorter path"
            )
    if problems:
        raise SettingsError(problems)
    return SocketPaths(registration=registration, service=service)


def is_too_long(path: str) -> bool:
    """Return whether the path is too long for a Unix socket."""
    return len(path.encode()) > MAX_SOCKET_PATH


def _registration_names(driver: str, uid: str) -> Sequence[str]:
    if not uid:
        return (f"{driver}-reg.sock",)
    both = _digest(f"{driver}\0{uid}", 16)
    return (f"{driver}-{uid}-reg.sock", f"{driver}-{_digest(uid, 8)}-reg.sock", f"dra-{both}-reg.sock")


def _service_names(driver: str, uid: str) -> Sequence[str]:
    if not uid:
        return ("dra.sock",)
    both = _digest(f"{driver}\0{uid}", 8)
    return (f"dra-{uid}.sock", f"dra-{_digest(uid, 8)}.sock", f"{both}.sock")


def _digest(text: str, size: int) -> str:
    """Return the first bytes of the text's SHA-256 in a form for file names."""
    return urlsafe_b64encode(sha256(text.encode()).digest()[:size]).decode().rstrip("=")


def _first_that_fits(directory: str, names: Sequence[str]) -> str:
    paths = [f"{directory.rstrip('/')}/{name}" for name in names]
    return next((path for path in paths if not is_too_long(path)), paths[-1])


class BoundSocket:
    """A listening socket and the file that leads to it."""

    def __init__(self, path: str, sock: socket.socket) -> None:
        self.path = path
        self.sock = sock
        self._identity = _identity(path)

    def is_intact(self) -> bool:
        """Return whether the path still leads to this socket: somebody may have removed or replaced the file."""
        return _identity(self.path) == self._identity is not None

    def remove(self) -> None:
        """Remove the file if it is still ours: during a rolling update it may belong to another instance."""
        if self.is_intact():
            with suppress(FileNotFoundError):
                os.unlink(self.path)


def bind_socket(path: str) -> BoundSocket:
    """Bind and listen at the path, accessible only to its owner (the kubelet is root), whatever the umask.

    A socket file without a listener, as a killed process leaves it, is replaced.

    Raises:
        SettingsError: the path is too long for a socket.
        OSError: EADDRINUSE when a living process listens there, EEXIST when it is not a socket, EAGAIN when another
            instance is creating a socket in the directory; or another error of the kernel.
    """
    if is_too_long(path):
        raise SettingsError([f"{path} has {len(path.encode())} bytes; a Unix socket can have {MAX_SOCKET_PATH}"])
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
    """Keep other instances from checking the same stale file, and from removing our new socket as stale."""
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
        raise FileExistsError(errno.EEXIST, "is not a socket; move it away", path)
    if is_listened_at(path):
        raise OSError(errno.EADDRINUSE, "another process listens there; stop it, or give it another driver name", path)
    with suppress(FileNotFoundError):
        os.unlink(path)


def find_stale_sockets(driver: str, paths: SocketPaths) -> Mapping[str, tuple[int, int]]:
    """Find the sockets that killed instances of the driver left: paths, each with the identity of its file.

    They have no listener, and a name that `plan_socket_paths` gives to this driver. A name in the registry
    that is only a digest does not show the driver, and is left out.

    Raises:
        OSError: EAGAIN if another instance is creating a socket in the directory; or another error of the kernel.
    """
    name = re.escape(driver)
    stale = {}
    for own, pattern in (
        (paths.registration, rf"{name}(-({_INSTANCE}))?-reg\.sock"),
        (paths.service, rf"dra(-({_INSTANCE}))?\.sock|[-_A-Za-z0-9]{{11}}\.sock"),
    ):
        directory = os.path.dirname(own)
        with _exclusive(directory):
            for found in sorted(os.listdir(directory)):
                path = f"{directory}/{found}"
                if path == own or not re.fullmatch(pattern, found) or not stat.S_ISSOCK(os.lstat(path).st_mode):
                    continue
                identity = _identity(path)
                if identity is not None and not is_listened_at(path):
                    stale[path] = identity
    return stale


def is_listened_at(path: str) -> bool:
    """Return whether a process listens at the path. Raises OSError if that is not known, as for other users."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        code = probe.connect_ex(path)
    if code in (errno.ECONNREFUSED, errno.ENOENT):
        return False
    # EAGAIN is a full backlog, EPROTOTYPE a socket of another type: both have an owner.
    if code in (0, errno.EAGAIN, errno.EPROTOTYPE):
        return True
    raise OSError(code, os.strerror(code), path)


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino
