"""The directory of an MPS daemon on the node, what is remembered in it, and whose turn it is to touch it."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from io import FileIO

import msgspec

from pydra import ClaimError, TerminalError
from pydra_nvidia.atomic_files import replace_file
from pydra_nvidia.container_written_files import read_clients_file
from pydra_nvidia.settings import Settings

LONGEST_SOCKET = 107
"""Bytes of a Unix socket's path. Source: unix(7)."""

_LOG_END = 600
"""Bytes at the end of a log that messages show."""

_NUMBER_LIMIT = 64
"""Bytes that are read of the file with the daemon's process id, which is among what its clients can write to."""

LOG_LIMIT = 8 << 20
"""Bytes of a daemon's log on disk after which it is truncated: each client adds to it, and disks are small there."""

_LOCK = struct.Struct("@hhqqi0q")
"""`struct flock` of a 64-bit Linux. Source: fcntl(2)."""

_POLL = 0.02


class MpsBusy(ClaimError):
    """The daemon is being started or stopped by another call, or another process."""

    reason = "MpsBusy"


class MpsRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon that runs for a claim: its process, and when that started in ticks since boot."""

    uid: str
    devices: tuple[str, ...]
    pid: int
    started: int


class MpsDirectory(msgspec.Struct, frozen=True, kw_only=True):
    """Paths as this process sees them; `host_root` is where the host's `/` is."""

    id: str
    path: str
    host_root: str = "/"

    @property
    def pipe(self) -> str:
        """Where the daemon listens."""
        return f"{self.path}/pipe"

    @property
    def log(self) -> str:
        """Where it writes what happened."""
        return f"{self.path}/log"

    @property
    def shm(self) -> str:
        """What the daemon and its clients have as /dev/shm."""
        return f"{self.path}/shm"

    def on_host(self, path: str) -> str:
        """One of its paths as the host sees it. A state directory outside `host_root` is where the host has it."""
        root = self.host_root.rstrip("/")
        return path.removeprefix(root) if root and path.startswith(f"{root}/") else path

    def make(self) -> None:
        """Make the directories. Raises ClaimError, also for a place whose sockets nobody could name."""
        require_nameable(self.pipe)
        try:
            for path in (self.pipe, self.log, self.shm):
                os.makedirs(path, mode=0o755, exist_ok=True)
            os.chmod(self.shm, 0o1777)  # noqa: S103 - as /dev/shm, which it is for containers
        except OSError as error:
            raise ClaimError(f"the directories of the MPS daemon cannot be made: {error}") from error

    def read_record(self) -> MpsRecord | None:
        """What was written down of the daemon; None when nothing was, or nothing that makes sense."""
        try:
            with open(f"{self.path}/daemon.json", "rb") as file:
                return msgspec.json.decode(file.read(), type=MpsRecord)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None

    def write_record(self, record: MpsRecord) -> None:
        """Raises ClaimError."""
        try:
            replace_file(f"{self.path}/daemon.json", msgspec.json.encode(record))
        except OSError as error:
            raise ClaimError(f"the MPS daemon cannot be written down: {error}") from error

    @staticmethod
    def read_pid(pipe: str) -> int | None:
        """The process id that the daemon itself wrote, among the pipes."""
        try:
            return int(read_clients_file(f"{pipe}/nvidia-cuda-mps-control.pid", _NUMBER_LIMIT))
        except (OSError, ValueError):
            return None

    def read_log(self) -> str:
        """The end of the daemon's log, on one line."""
        try:
            with open(f"{self.log}/control.log", "rb") as file:
                file.seek(max(os.fstat(file.fileno()).st_size - _LOG_END, 0))
                return " ".join(file.read().decode(errors="replace").split())
        except OSError:
            return ""


def trim_logs(place: MpsDirectory) -> None:
    """Empty the logs that are too long. A daemon that goes on where it was leaves a hole, which takes no space."""
    with suppress(OSError), os.scandir(place.log) as found:
        for log in found:
            if log.stat(follow_symlinks=False).st_blocks * 512 > LOG_LIMIT:
                os.truncate(log.path, 0)


def require_nameable(pipe: str) -> None:
    """Raises TerminalError for a directory whose sockets have too long a path."""
    longest = f"{pipe}/control_privileged"
    if len(longest.encode()) > LONGEST_SOCKET:
        raise TerminalError(
            f"the path of the MPS daemon's socket, {longest}, has more than {LONGEST_SOCKET} bytes;"
            " the admin sets PYDRA_NVIDIA_STATE to a shorter path"
        )


def find_directory(settings: Settings, daemon_id: str) -> MpsDirectory:
    """Where the daemon of this id has its directory."""
    return MpsDirectory(id=daemon_id, path=f"{_root(settings)}/{daemon_id}", host_root=settings.host_root)


def list_directories(settings: Settings) -> tuple[MpsDirectory, ...]:
    """All daemons that have a directory."""
    try:
        names = sorted(os.listdir(_root(settings)))
    except OSError:
        return ()
    places = (find_directory(settings, name) for name in names)
    return tuple(place for place in places if os.path.isdir(place.path))


@asynccontextmanager
async def turn(settings: Settings, daemon_id: str, deadline: float) -> AsyncIterator[None]:
    """Alone with the daemon, among all calls of all processes. Raises MpsBusy after `deadline` seconds.

    One file has a byte for each daemon that there may be, so that none has to be removed, which would need a lock of
    its own.
    """
    byte = int.from_bytes(hashlib.sha256(daemon_id.encode()).digest()[:7])
    with await asyncio.to_thread(_open_lock, _root(settings)) as file:
        end = time.monotonic() + deadline
        while not _try_lock(file.fileno(), byte):
            if time.monotonic() >= end:
                raise MpsBusy(f"MPS daemon {daemon_id} is being started or stopped already; it is tried again")
            await asyncio.sleep(_POLL)
        yield


def _open_lock(root: str) -> FileIO:
    try:
        os.makedirs(root, mode=0o755, exist_ok=True)
        return FileIO(os.open(f"{root}/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+")
    except OSError as error:
        raise ClaimError(f"the state of MPS at {root} cannot be used: {error}") from error


def _try_lock(descriptor: int, byte: int) -> bool:
    """The lock is of the open file, not of the process: calls of one process exclude each other too."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0))
    except (BlockingIOError, PermissionError):  # fcntl(2): EAGAIN or EACCES
        return False
    return True


def _root(settings: Settings) -> str:
    return f"{settings.state}/mps"
