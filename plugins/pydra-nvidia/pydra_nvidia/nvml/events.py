"""Events of GPUs: registering for them, and waiting in a thread of its own, since no other call should wait for it.

The wait is the one call that NVML allows beside all others. Source: nvml.h, nvmlEventSetWait_v2 and nvmlEventType*.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import msgspec

from pydra_nvidia.nvml.errors import STALE, Code, NvmlError
from pydra_nvidia.nvml.library import Nvml, address_of
from pydra_nvidia.nvml.session import NvmlSession

WHOLE = 0xFFFFFFFF
"""An event's instance ids when it concerns the whole GPU."""

_XID = 0x8
_WANTED = _XID | 0x2 | 0x4000 | 0x8000
"""XIDs, double-bit ECC errors, and on new drivers: GPU unavailable, recovery action changed. Single-bit errors, which
the hardware corrects and which may come in floods, are only measured."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """What NVML tells: `xid` None for anything else; `instance` is the id of a GPU instance, None for the whole GPU."""

    gpu: str
    xid: int | None
    instance: int | None = None


class EventSet:
    """An open registration. Made by `open_events`, freed once."""

    def __init__(self, nvml: Nvml, handle: Any, gpus: Mapping[int, str], unmonitored: frozenset[str]) -> None:
        self.unmonitored = unmonitored
        self._nvml = nvml
        self._handle = handle
        self._gpus = gpus

    def wait(self, milliseconds: int) -> Event | None:
        """The next event; None when none came in time. Raises NvmlError."""
        pynvml = self._nvml.pynvml
        try:
            data = pynvml.nvmlEventSetWait_v2(self._handle, milliseconds)
        except pynvml.NVMLError as error:
            if error.value == Code.TIMEOUT:
                return None
            raise NvmlError(int(error.value), "nvmlEventSetWait_v2") from error
        instance = int(data.gpuInstanceId)
        return Event(
            gpu=self._gpus.get(address_of(data.device), ""),
            xid=int(data.eventData) if data.eventType == _XID else None,
            instance=None if instance == WHOLE else instance,
        )

    def free(self) -> None:
        """Release it; raises NvmlError."""
        self._nvml.call("nvmlEventSetFree", self._handle)


def open_events(nvml: Nvml, uuids: Iterable[str]) -> EventSet:
    """Register for what these GPUs report. One that reports nothing, or is lost, is unmonitored. Raises NvmlError."""
    handle = nvml.call("nvmlEventSetCreate")
    gpus: dict[int, str] = {}
    unmonitored: set[str] = set()
    for uuid in sorted(uuids):
        try:
            device = nvml.find(uuid)
            supported = int(nvml.call("nvmlDeviceGetSupportedEventTypes", device, subject=uuid))
            if not supported & _XID:
                unmonitored.add(uuid)
                continue
            nvml.call("nvmlDeviceRegisterEvents", device, supported & _WANTED, handle, subject=uuid)
            gpus[address_of(device)] = uuid
        except NvmlError:
            unmonitored.add(uuid)
    return EventSet(nvml, handle, gpus, frozenset(unmonitored))


_WAIT_MS = 250
"""Nothing ends a wait of NVML, so the end of the session waits for it."""

_PAUSE_SECONDS = 1.0
_LAST_PAUSE = 300.0
_DOUBLINGS = 10
"""Each try makes the agent read everything again, so what fails again and again is tried at longer intervals."""

_TOLERATED = 1
"""Failures in a row that may be over with the next try; after more of them nobody can say that GPUs are watched."""


class EventWatcher:
    """`tell` is called from a thread: with each event, and with None when watching must begin again, or began again."""

    def __init__(
        self, session: NvmlSession, tell: Callable[[Event | None], None], *, pause: float = _PAUSE_SECONDS
    ) -> None:
        self._session = session
        self._tell = tell
        self._pause = pause
        self._threads: list[threading.Thread] = []
        self._stop = threading.Event()
        self._watched: tuple[int, Mapping[str, int]] | None = None
        self._silent: frozenset[str] = frozenset()
        self._failures = 0
        session.before_close(self._end_watch)
        session.when_switched(self._renew)

    @property
    def unmonitored(self) -> frozenset[str]:
        """Of those to be watched, the GPUs whose events nobody hears."""
        wanted = frozenset(self._watched[1]) if self._watched is not None else frozenset()
        return wanted if self._failures > _TOLERATED else self._silent

    def watch(self, uuids: Collection[str]) -> None:
        """Watch these GPUs, in the session as it is now; blocks until NVML has them. Cheap when that is done already.

        What NVML refuses is tried again when `tell` was called.
        """
        wanted = self._session.generation, {uuid: self._session.epochs.get(uuid, 0) for uuid in uuids}
        if self._watched == wanted:
            return
        if not uuids:
            self.stop()
            self._silent, self._watched = frozenset(), wanted
            return
        try:
            self._session.run_here(lambda nvml: self._begin(nvml, wanted[1]))
        except NvmlError as error:
            self._silent, self._watched = frozenset(), wanted
            self._try_later(error)
        for replaced in self._threads[:-1]:
            replaced.join()

    def stop(self, patience: float | None = None) -> bool:
        """Let the thread end; whether it did, within so many seconds. Without a limit it surely does not use NVML then.

        A thread that NVML never lets go of blocks what waits for it, for which the agent replaces the process. To
        end the session under it would let NVML use what is freed.
        """
        self._stop.set()
        by = time.monotonic() + patience if patience is not None else None
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, by - time.monotonic()) if by is not None else None)
                if thread.is_alive():
                    return False
        self._watched = None
        return True

    def _end_watch(self) -> None:
        """The session ends, which no change of the hardware may have caused: it has to be watched again."""
        watched = self._watched is not None and bool(self._watched[1])
        self.stop()
        if watched:
            self._tell(None)

    def _renew(self, nvml: Nvml, gpu: str) -> None:
        """A claim changed the MIG mode: what was registered by a handle from before may be heard no more.

        The claim waits for this, and so does its container: none runs on a GPU that nobody listens to.
        """
        if self._watched is None or gpu not in self._watched[1]:
            return
        silent = self._silent
        try:
            self._begin(nvml, self._watched[1])
        except NvmlError as error:
            self._try_later(error)
        if self._silent != silent:
            self._tell(None)

    def _begin(self, nvml: Nvml, uuids: Iterable[str]) -> None:
        """Within the session's lock, so that who ends the session finds the thread.

        The set from before is heard until this one is open: an event may be reported twice, but none is missed.
        """
        events = open_events(nvml, uuids)
        self._silent = events.unmonitored
        self._watched = self._session.generation, {uuid: nvml.epochs[uuid] for uuid in uuids}
        self._start(events)

    def _try_later(self, error: NvmlError) -> None:
        self._count(error)
        self._start(None)

    def _start(self, events: EventSet | None) -> None:
        """In the place of the thread before, which ends by itself after its wait."""
        self._stop = threading.Event()
        thread = threading.Thread(target=self._run, args=(events, self._stop), name="GPU events", daemon=True)
        thread.start()  # before it can be joined; who ends the session finds it, for that waits for the session's lock
        self._threads = [*(one for one in self._threads if one.is_alive()), thread]

    def _run(self, events: EventSet | None, stop: threading.Event) -> None:
        if events is not None and self._wait(events, stop):
            return
        if not stop.wait(retry_pause(self._pause, self._failures)) and self._goes_on(stop):
            self._watched = None
            self._tell(None)

    def _wait(self, events: EventSet, stop: threading.Event) -> bool:
        """Until `stop`, or another thread began; False when NVML failed."""
        try:
            while self._goes_on(stop):
                event = events.wait(_WAIT_MS)
                if stop is self._stop:
                    self._recover()
                if event is not None:
                    self._tell(event)
        except NvmlError as error:
            if stop is self._stop:
                self._count(error)
            if error.code not in STALE:  # else the set has gone with its session, and its handle may be another's
                _free(events)
            return False
        _free(events)
        return True

    def _goes_on(self, stop: threading.Event) -> bool:
        return stop is self._stop and not stop.is_set()

    def _count(self, error: NvmlError) -> None:
        """A driver that is away has refused nothing: it is watched as soon as it is back."""
        if error.code not in STALE:
            self._failures += 1

    def _recover(self) -> None:
        """It works."""
        doubted, self._failures = self._failures > _TOLERATED, 0
        if doubted:
            self._tell(None)


def retry_pause(first: float, failures: int) -> float:
    """Seconds until the next try, after so many failures in a row."""
    return min(first * 2.0 ** min(max(failures - 1, 0), _DOUBLINGS), _LAST_PAUSE)


def _free(events: EventSet) -> None:
    """Beside other calls of NVML, which allows that; the end of the session has waited for it."""
    with contextlib.suppress(NvmlError):
        events.free()
