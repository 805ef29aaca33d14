"""Socket files: whose they are, who may use them, and who may take them away."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from pydra.errors import SettingsError
from pydra.kubelet.sockets import bind_socket


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def can_connect(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o277, 0o777], ids=oct)
def test_only_the_owner_may_use_a_socket_whatever_the_umask(root: Path, mask: int) -> None:
    path = root / "dra.sock"
    with umask(mask), closing(bind_socket(str(path)).sock):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert can_connect(path)


def test_what_a_killed_process_left_is_replaced(root: Path) -> None:
    path = root / "dra.sock"
    with closing(bind_socket(str(path)).sock):
        pass
    assert path.exists()
    with closing(bind_socket(str(path)).sock):
        assert can_connect(path)


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM], ids=["stream", "datagram"])
def test_a_living_process_keeps_its_socket(root: Path, kind: socket.SocketKind) -> None:
    path = root / "dra.sock"
    with socket.socket(socket.AF_UNIX, kind) as other:
        other.bind(str(path))
        if kind is socket.SOCK_STREAM:
            other.listen()
        identity = path.stat().st_ino
        with pytest.raises(OSError, match="another process listens there") as caught:
            bind_socket(str(path))
        assert caught.value.errno == errno.EADDRINUSE
        assert path.stat().st_ino == identity


def test_a_living_process_with_a_full_backlog_keeps_its_socket(root: Path) -> None:
    path = root / "dra.sock"
    with socket.socket(socket.AF_UNIX) as other, socket.socket(socket.AF_UNIX) as waiting:
        other.bind(str(path))
        other.listen(0)
        waiting.connect(str(path))
        with pytest.raises(OSError, match="another process listens there"):
            bind_socket(str(path))


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir, lambda path: path.symlink_to("/dev/null")])
def test_what_is_no_socket_is_left_alone(root: Path, make: object) -> None:
    path = root / "dra.sock"
    make(path)  # type: ignore[operator]
    with pytest.raises(FileExistsError, match="is not a socket"):
        bind_socket(str(path))
    assert os.path.lexists(path)


def test_two_instances_do_not_make_sockets_in_one_directory_at_the_same_moment(root: Path) -> None:
    descriptor = os.open(root, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError, match="another instance is making its socket there"):
            bind_socket(str(root / "dra.sock"))
    finally:
        os.close(descriptor)
    with closing(bind_socket(str(root / "dra.sock")).sock):
        assert can_connect(root / "dra.sock")


def test_a_path_of_107_bytes_works_and_one_of_108_is_refused_in_words(root: Path) -> None:
    fits = f"{root}/".ljust(107, "s")
    bound = bind_socket(fits)
    with closing(bound.sock):
        assert can_connect(Path(fits))
        bound.remove()
    with pytest.raises(SettingsError, match="108 bytes; a Unix socket can have 107"):
        bind_socket(fits + "s")


def test_a_missing_directory_is_the_systems_error(root: Path) -> None:
    with pytest.raises(FileNotFoundError):
        bind_socket(str(root / "nowhere" / "dra.sock"))


def test_a_socket_is_removed_while_it_is_ours(root: Path) -> None:
    path = root / "dra.sock"
    bound = bind_socket(str(path))
    with closing(bound.sock):
        assert bound.is_intact()
        bound.remove()
        assert not path.exists()
        assert not bound.is_intact()
        bound.remove()


def test_a_socket_that_somebody_else_put_there_is_not_removed(root: Path) -> None:
    path = root / "dra.sock"
    bound = bind_socket(str(path))
    with closing(bound.sock), socket.socket(socket.AF_UNIX) as other:
        os.rename(path, root / "aside")
        other.bind(str(path))
        assert not bound.is_intact()
        bound.remove()
        assert path.exists()
