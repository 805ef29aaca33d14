"""Locks between instances of the agent, which overlap in an upgrade: two never work on the same claim.

Byte ranges of one file, locked by the kernel. Open file description locks (`F_OFD_SETLK`, fcntl(2)) end with their
process, however it ends, and hold across containers. One file has a range for each thing that only one instance may do
at a time:

| byte | held | for |
|---|---|---|
| 0 | exclusively, for microseconds, or as long as a flush takes | reading all records and changing one |
| 1 | exclusively, while a backend plans | deciding for one claim, given all that is held |
| 2 | shared while claims are in progress; exclusively while a backend restores | nothing changes during `restore` |
| 3 | shared, as long as the file is open | finding out whether another instance runs |
| from 2**32 | exclusively, while work on the claim is in progress | one claim each, offset computed from its uid |
| from 2**60 | exclusively, while a step of a plan is applied or undone | one key each, offset computed from it |

Bytes 8 to 15 hold a counter of all changes to the records, read and written under byte 0: with one read, an
instance sees that another has changed something.

These locks do not exclude two tasks of one process; the caller must.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import struct
import zlib

from pydra import atomic_files
from pydra.errors import CheckpointError

INDEX = 0
PLAN = 1
WORK = 2
_ALIVE = 3
CLAIMS = 2**32
STEPS = 2**60
_FLOCK = struct.Struct("@hhqqi4x")  # struct flock: type, whence, start, length, pid (0 for these locks)
_COUNTER = struct.Struct("<Q")
_COUNTER_OFFSET = 8
_POLL_SECONDS = 0.005
_MODE = 0o600


class InstanceLocks:
    """The locks in the file at `path`; its directory must exist when `open` is called."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor = -1
        self._identity = (0, 0)
        self._held: dict[int, int] = {}
        self._working = 0
        self._restoring = False
        self._keeping = False

    def open(self) -> None:
        """Open the file; create it if necessary.

        Raises:
            OSError: the file cannot be created or opened.
        """
        if self._descriptor == -1:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, _MODE)
            own = os.fstat(self._descriptor)
            self._identity = (own.st_dev, own.st_ino)
            self.try_lock(_ALIVE, fcntl.F_RDLCK)

    def close(self) -> None:
        """Close the file, which releases every lock."""
        if self._descriptor != -1:
            os.close(self._descriptor)
            self._descriptor = -1
            self._held.clear()

    def reopen(self) -> None:
        """Create the file again after somebody removed it, and lock in it what is locked here.

        Raises:
            CheckpointError: another instance was faster, and has locked some bytes.
            OSError: it cannot be created; the removed file stays open.
        """
        held, former = self._held, self._descriptor
        self._held, self._descriptor = {}, -1
        try:
            self.open()
        except OSError:
            self._held, self._descriptor = held, former
            raise
        os.close(former)
        for offset, kind in held.items():
            if not self.try_lock(offset, kind):
                raise CheckpointError(f"another instance of the agent has created {self.path} again; try again")

    def is_intact(self) -> bool:
        """Return whether the path still leads to the open file: somebody may have removed the directory."""
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            return False
        return (found.st_dev, found.st_ino) == self._identity

    def is_alone(self) -> bool:
        """Return whether no other instance has the file open."""
        wanted = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _ALIVE, 1, 0)
        found: tuple[int, ...] = _FLOCK.unpack(fcntl.fcntl(self._descriptor, fcntl.F_OFD_GETLK, wanted))
        return found[0] == fcntl.F_UNLCK

    def try_lock(self, offset: int, kind: int = fcntl.F_WRLCK) -> bool:
        """Lock one byte if no other instance has locked it. An exclusive lock stays exclusive."""
        if kind == fcntl.F_RDLCK and offset in self._held:
            return True  # the kernel would downgrade an exclusive one
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, offset, 1, 0))
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise CheckpointError(atomic_files.explain(error, f"locking {self.path}")) from error
        if kind == fcntl.F_UNLCK:
            self._held.pop(offset, None)
        else:
            self._held[offset] = kind
        return True

    async def lock(self, offset: int, until: float, *, waiting_for: str, kind: int = fcntl.F_WRLCK) -> None:
        """Lock one byte, waiting for another instance until `until` (of the event loop's clock).

        Raises:
            CheckpointError: timed out; the message says what the other instance is doing (`waiting_for`).
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not self.try_lock(offset, kind):
            if loop.time() >= until:
                waited = loop.time() - began
                raise CheckpointError(
                    f"timed out after {waited:.0f} s waiting for another instance of the agent, which {waiting_for}; "
                    "if its pod does not terminate, delete the pod"
                )
            # The kernel's own wait would occupy a thread that cannot be cancelled.
            await asyncio.sleep(_POLL_SECONDS)

    def unlock(self, offset: int) -> None:
        """Release one byte."""
        if self._descriptor != -1:
            self.try_lock(offset, fcntl.F_UNLCK)

    async def take_claim(self, uid: str, until: float) -> None:
        """Exclude other instances from this claim, and from restoring meanwhile; waits and raises like `lock`."""
        # While this instance restores, `end_restore` announces the work.
        if not self._working and not self._restoring:
            await self.lock(WORK, until, waiting_for="restores what it holds", kind=fcntl.F_RDLCK)
        self._working += 1
        try:
            await self.lock(find_offset(CLAIMS, uid), until, waiting_for="is at work on the same claim")
        except BaseException:
            self.release_claim(uid)
            raise

    def release_claim(self, uid: str) -> None:
        """Note that work on the claim has ended here."""
        if self._keeping:
            return
        self.unlock(find_offset(CLAIMS, uid))
        self._working -= 1
        if not self._working and not self._restoring:
            self.unlock(WORK)

    def release_step(self, offset: int) -> None:
        """Release the byte of a step's key."""
        if not self._keeping:
            self.unlock(offset)

    def keep_claims(self) -> None:
        """Keep claims and steps locked until the process ends: work was cancelled, but the backend may still run it."""
        self._keeping = True

    async def begin_restore(self, until: float) -> None:
        """Wait until no other instance works on a claim, and keep them from starting."""
        self._restoring = True
        # Work here waits for this restore. If it stayed announced, two instances that both have to restore would wait
        # for each other.
        self.unlock(WORK)
        try:
            await self.lock(WORK, until, waiting_for="still prepares or unprepares claims")
        except BaseException:
            self._restoring = False
            raise

    def end_restore(self) -> None:
        """Let others work again; work in progress here is announced again, without a gap."""
        self._restoring = False
        self._held.pop(WORK, None)
        self.try_lock(WORK, fcntl.F_RDLCK if self._working else fcntl.F_UNLCK)

    def read_counter(self) -> int:
        """Read the number of changes that all instances made to the records."""
        content = os.pread(self._descriptor, _COUNTER.size, _COUNTER_OFFSET)
        return _COUNTER.unpack(content)[0] if len(content) == _COUNTER.size else 0

    def write_counter(self, value: int) -> None:
        """Announce a change to the other instances."""
        os.pwrite(self._descriptor, _COUNTER.pack(value), _COUNTER_OFFSET)


def find_offset(first: int, name: str) -> int:
    """Return the byte of a claim's uid, among CLAIMS, or of a step's key, among STEPS.

    Two that share a byte only wait for each other.
    """
    content = name.encode()
    return first + (zlib.crc32(content) << 20) + (zlib.adler32(content) & 0xFFFFF)
