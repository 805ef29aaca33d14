"""The lock between two instances of the agent that overlap during an upgrade.

An open file description lock (`F_OFD_SETLK`): it ends with its process, however that ends, and it
holds between containers, which a pid file does not. Byte 0 is the lock. Byte 1 is the turnstile,
which an instance keeps while it waits for byte 0; whoever holds byte 0 looks at the turnstile before
it lets one more of its own tasks join. So a waiting instance gets its turn when the tasks that hold
the lock now are done, however many more come. `flock` cannot stand in: the two do not see each other.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio

from pydra import disk
from pydra.errors import CheckpointError

# struct flock of fcntl(2): type, whence, start, length, pid; the pid of such a lock is 0.
_FLOCK = struct.Struct("@hhqqi4x")
_LOCK, _TURNSTILE = 0, 1
_FILE_MODE = 0o600


class InstanceLock:
    """Shared by the tasks of one process: the first acquires it, the last releases it.

    `deadline` in seconds for the wait, `poll` in seconds between two looks: the kernel's own wait
    would hold a thread that cannot be cancelled.
    """

    def __init__(self, path: str, *, deadline: float = 60.0, poll: float = 0.01) -> None:
        self._path = path
        self._deadline = deadline
        self._poll = poll
        self._descriptor = -1
        self._holders = 0
        self._released = anyio.Event()
        self._entrance = anyio.Lock(fast_acquire=True)

    @asynccontextmanager
    async def hold(self) -> AsyncGenerator[None]:
        """Hold the lock, together with whichever other tasks of this process do. A task holds it once, not twice.

        Raises:
            CheckpointError: not within the deadline, or the file cannot be locked.
        """
        if not self._join():
            await self._enter_in_time()
        try:
            yield
        finally:
            self._leave()

    def _join(self) -> bool:
        """Enter beside those who hold it; False when there are none, or somebody is to come first."""
        may_join = self._holders and not self._entrance.locked() and not _is_locked(self._descriptor, _TURNSTILE)
        self._holders += bool(may_join)
        return bool(may_join)

    async def _enter_in_time(self) -> None:
        try:
            with anyio.fail_after(self._deadline):
                await self._enter()
        except TimeoutError as error:
            raise CheckpointError(
                f"another instance of the agent has kept {self._path} locked for {self._deadline:g} s: "
                "it is stuck or still at work; if its pod does not end, delete the pod"
            ) from error

    async def _enter(self) -> None:
        # One at a time and first come, first served: who waits here for another instance's turn is
        # not overtaken by the tasks that come later.
        async with self._entrance:
            if self._holders and _is_locked(self._descriptor, _TURNSTILE):
                await self._released.wait()
            if not self._holders:
                await self._acquire()
            self._holders += 1

    def _leave(self) -> None:
        self._holders -= 1
        if not self._holders:
            self._close()
            self._released.set()

    async def _acquire(self) -> None:
        self._descriptor = self._open()
        try:
            await self._wait_locked(_TURNSTILE)
            await self._wait_locked(_LOCK)
            _unlock(self._descriptor, _TURNSTILE)
        except OSError as error:
            self._close()
            raise CheckpointError(disk.explain(error, f"locking {self._path}")) from error
        except BaseException:
            self._close()
            raise
        self._released = anyio.Event()

    async def _wait_locked(self, byte: int) -> None:
        while not _try_lock(self._descriptor, byte):  # noqa: ASYNC110 - another process sets no event
            await anyio.sleep(self._poll)

    def _open(self) -> int:
        try:
            return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, _FILE_MODE)
        except OSError as error:
            raise CheckpointError(disk.explain(error, f"opening the lock {self._path}")) from error

    def _close(self) -> None:
        # Closing releases both bytes: the description is nobody else's, since it is closed on exec.
        os.close(self._descriptor)
        self._descriptor = -1


def _try_lock(descriptor: int, byte: int) -> bool:
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0))
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def _unlock(descriptor: int, byte: int) -> None:
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, byte, 1, 0))


def _is_locked(descriptor: int, byte: int) -> bool:
    """Whether another instance holds the byte."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
    answer: bytes = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, asked)
    kind: int = _FLOCK.unpack(answer)[0]
    return kind != fcntl.F_UNLCK
