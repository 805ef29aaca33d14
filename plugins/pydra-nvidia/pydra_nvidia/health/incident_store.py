"""The XIDs of GPUs so far, in a file, so that a restart does not make a GPU healthy.

A reboot empties the file's directory. It may be changed by another process, an admin's or an overlapping agent's: it is
read again then, and each change is made by one process at a time.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import msgspec
from msgspec.structs import replace

from pydra_nvidia.atomic_files import StateFile
from pydra_nvidia.hardware_types import Placement


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """An XID on a GPU, or on the partition at `place`; `first` and `last` in seconds since the epoch."""

    gpu: str
    xid: int
    place: Placement | None = None
    first: float
    last: float
    count: int = 1


FILE = "health.json"
"""In the state directory."""

_Key = tuple[str, int, Placement | None]

_FLOOD_SECONDS = 1.0
"""How often repetitions of what is known are written, at most."""
_PATIENCE = 1.0
"""Seconds to wait for a process that changes the file; one that hangs costs no more."""
_log = logging.getLogger(__name__)


class IncidentStore:
    """The file at `path`; what cannot be read or written is logged, and costs no more than the memory."""

    def __init__(self, path: str, say: Callable[[str], object] = _log.warning) -> None:
        self._path = path
        self._file = StateFile(path, tuple[Incident, ...], "earlier GPU errors", say)
        self._seen: object = "nothing yet"
        self._incidents: dict[_Key, Incident] = {}
        self._counts: Counter[tuple[str, int]] = Counter()
        self._written = float("-inf")
        self._refresh()

    @property
    def incidents(self) -> tuple[Incident, ...]:
        """All that still count, oldest first."""
        self._refresh()
        return self._sorted()

    @property
    def counts(self) -> Mapping[tuple[str, int], int]:
        """XIDs since this process began, by GPU UUID and code."""
        return self._counts

    def note(self, gpu: str, xid: int, place: Placement | None, now: float) -> bool:
        """An XID was seen; whether it is new."""
        self._counts[gpu, xid] += 1
        with self._alone():
            self._refresh()
            known = self._incidents.get((gpu, xid, place))
            if known is None:
                known = Incident(gpu=gpu, xid=xid, place=place, first=now, last=now, count=0)
            is_new = known.count == 0
            self._incidents[gpu, xid, place] = replace(known, last=now, count=known.count + 1)
            if is_new or now - self._written >= _FLOOD_SECONDS:  # a repetition in a flood need not outlive the process
                self._written = now
                self._write()
        return is_new

    def forget(self, over: Callable[[Incident], bool]) -> None:
        """Drop those that no longer count."""
        if not any(map(over, self.incidents)):
            return
        with self._alone():
            self._refresh()
            self._incidents = {key: one for key, one in self._incidents.items() if not over(one)}
            self._write()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Without another process in between, where that is possible."""
        try:
            os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
            descriptor = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:  # writing will say what is wrong
            yield
            return
        try:
            until = time.monotonic() + _PATIENCE
            while not _try_lock(descriptor) and time.monotonic() < until:
                time.sleep(0.005)
            yield
        finally:
            os.close(descriptor)

    def _sorted(self) -> tuple[Incident, ...]:
        return tuple(sorted(self._incidents.values(), key=lambda one: (one.first, one.gpu, one.xid)))

    def _refresh(self) -> None:
        """What could not be written is kept as long as nobody else writes."""
        sign = self._sign()
        if sign != self._seen:
            self._seen = sign
            self._incidents = {(one.gpu, one.xid, one.place): one for one in self._file.read() or ()}

    def _sign(self) -> object:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _write(self) -> None:
        if self._file.write(self._sorted()):
            self._seen = self._sign()


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
