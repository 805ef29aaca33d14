"""Maintenance: by a file, the admin makes all backends close NVML, to replace the driver or reset a GPU.

<state>/maintenance   requests it, until the time it says (seconds since 1970), or for an hour since it was touched
<state>/nvml          has a shared lock of each process that has NVML open: who gets it alone knows that none has

Opening NVML takes the lock first and then looks for the request; asking writes the request first. So no process opens
NVML unnoticed, one that is killed keeps nothing, and two agents of an upgrade are waited for alike.
"""

from __future__ import annotations

import fcntl
import math
import os
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress

import msgspec

from pydra import ClaimError, PydraError
from pydra_nvidia.atomic_files import replace_file

REQUEST = "maintenance"
LOCK = "nvml"

_NO_TIME = 1e11
"""More seconds since 1970 than any date has, such as milliseconds: the year 5138."""

UNSAID = 3600.0
"""Seconds that a request without a time lasts: one that was forgotten must not cost the node its GPUs for good."""

_LOOK_SECONDS = 0.05


class InMaintenance(ClaimError):
    """The GPUs are in maintenance; claims are served again when that is over."""

    reason = "GpusInMaintenance"


class RequestFailed(PydraError):
    """The request cannot be written or taken back."""

    reason = "MaintenanceFailed"


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """`until`, in seconds since 1970, no process of ours uses NVML; `path` is the file that says so."""

    until: float
    path: str

    def explain(self) -> str:
        """For people."""
        clock = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.until))
        return (
            f"the node's admin has requested maintenance of its GPUs until {clock} ({self.path}), as for another"
            " driver or a reset; claims are served again then, or after pydra-nvidia resume"
        )


class Gate:
    """The two files in the directory `state`."""

    def __init__(self, state: str) -> None:
        self._path = os.path.join(state, REQUEST)
        self._lock = os.path.join(state, LOCK)
        self._mutex = threading.Lock()
        self._held: int | None = None

    def asked(self) -> Request | None:
        """The request, if there is one and it is not over."""
        try:
            with open(self._path, "rb") as file:
                touched, text = os.fstat(file.fileno()).st_mtime, file.read(64)
        except OSError:
            return None
        try:
            until = float(text)
        except ValueError:
            until = math.nan
        if not until < _NO_TIME:  # made by touch, or by somebody who wrote a reason into it, or "inf"
            until = touched + UNSAID
        return Request(until=until, path=self._path) if time.time() < until else None

    def check(self) -> None:
        """Raises InMaintenance when the GPUs are to be left alone."""
        if (request := self.asked()) is not None:
            raise InMaintenance(request.explain())

    def enter(self) -> None:
        """This process opens NVML now; raises InMaintenance."""
        with self._mutex:
            if self._held is None:
                self._held = self._take()
        try:
            self.check()
        except InMaintenance:
            self.leave()
            raise

    def leave(self) -> None:
        """It has NVML closed."""
        with self._mutex:
            held, self._held = self._held, None
            if held is not None:
                os.close(held)

    @contextmanager
    def inside(self) -> Generator[None]:
        """NVML may be open within the block; raises InMaintenance."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def ask(self, seconds: float) -> Request:
        """Ask for so many seconds from now on, whatever was asked before. Raises RequestFailed."""
        request = Request(until=time.time() + seconds, path=self._path)
        try:
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            replace_file(self._path, f"{request.until:.3f}\n".encode())
        except OSError as error:
            raise RequestFailed(f"cannot request maintenance by writing {self._path}: {error}") from error
        return request

    def withdraw(self) -> bool:
        """Take the request back; whether there was one. Raises RequestFailed."""
        try:
            os.unlink(self._path)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise RequestFailed(f"{self._path} cannot be removed: {error}") from error
        return True

    def wait_left(self, patience: float) -> bool:
        """Whether within so many seconds no process had NVML open. Blocks; raises RequestFailed."""
        deadline = time.monotonic() + patience
        try:
            lock = self._open()
        except OSError as error:
            raise RequestFailed(f"cannot find out whether NVML is open, by locking {self._lock}: {error}") from error
        try:
            while True:
                with suppress(BlockingIOError):
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return True
                if time.monotonic() >= deadline:
                    return False
                time.sleep(_LOOK_SECONDS)
        finally:
            os.close(lock)

    def _take(self) -> int | None:
        """A share of the lock; None where there can be none, so that nobody can wait for this process."""
        try:
            lock = self._open()
        except OSError:
            return None
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            if isinstance(error, BlockingIOError):
                raise InMaintenance(
                    f"another process has locked {self._lock}; the GPUs are left alone until it releases the lock"
                ) from None
            return None
        return lock

    def _open(self) -> int:
        os.makedirs(os.path.dirname(self._lock), exist_ok=True)
        return os.open(self._lock, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
