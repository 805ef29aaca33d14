"""Waits for the events of GPUs, in a thread of its own: the wait blocks, and no other call should wait for it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Mapping

from pydra_nvidia.nvml.calls import Nvml
from pydra_nvidia.nvml.errors import STALE, NvmlError
from pydra_nvidia.nvml.events import Event, EventSet, open_events
from pydra_nvidia.nvml.session import NvmlSession

_WAIT_MS = 250
"""Nothing ends a wait of NVML, and whoever ends the session waits for it."""

_PAUSE_SECONDS = 1.0
_LAST_PAUSE = 300.0
_DOUBLINGS = 10
"""Each try makes the agent read everything anew, so what fails again and again is tried at longer intervals."""

_TOLERATED = 1
"""Failures in a row that may be over with the next try; after more of them nobody can say that GPUs are watched."""


class EventWatcher:
    """`tell` is called from the thread: with each event, and with None when watching must begin anew, or does again."""

    def __init__(
        self, session: NvmlSession, tell: Callable[[Event | None], None], *, pause: float = _PAUSE_SECONDS
    ) -> None:
        self._session = session
        self._tell = tell
        self._pause = pause
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._watched: tuple[int, Mapping[str, int]] | None = None
        self._silent: frozenset[str] = frozenset()
        self._failures = 0
        session.before_close(self._let_go)
        session.when_switched(self._renew)

    @property
    def unmonitored(self) -> frozenset[str]:
        """Of those to be watched, the GPUs whose events nobody hears."""
        wanted = frozenset(self._watched[1]) if self._watched is not None else frozenset()
        return wanted if self._failures > _TOLERATED else self._silent

    def watch(self, uuids: Collection[str]) -> None:
        """Watch these GPUs, in the session as it is now; blocks until NVML has them. Cheap when that is done already.

        What NVML refuses is tried again when `tell` was called. A GPU whose MIG mode was changed is registered anew:
        what was registered by a handle from before may be heard no more.
        """
        wanted = self._session.generation, {uuid: self._session.epochs.get(uuid, 0) for uuid in uuids}
        if self._watched == wanted:
            return
        self.stop()
        self._silent = frozenset()
        if not uuids:
            self._watched = wanted
            return
        try:
            self._session.run_here(lambda nvml: self._begin(nvml, wanted[1]))
        except NvmlError as error:
            self._watched = wanted
            self._count(error)
            self._start(None)

    def stop(self, patience: float | None = None) -> bool:
        """Let the thread end; whether it did, within so many seconds. Without a limit it surely does not use NVML then.

        A thread that NVML never lets go of blocks whoever waits for it, for which the agent replaces the process. To
        end the session under it would let NVML use what is freed.
        """
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(patience)
            if self._thread.is_alive():
                return False
        self._thread, self._watched = None, None
        return True

    def _let_go(self) -> None:
        """The session ends, which no change of the hardware may have caused: it has to be watched anew."""
        watched = self._watched is not None and bool(self._watched[1])
        self.stop()
        if watched:
            self._tell(None)

    def _renew(self, gpu: str) -> None:
        if self._watched is not None and gpu in self._watched[1]:
            self._tell(None)

    def _begin(self, nvml: Nvml, uuids: Mapping[str, int]) -> None:
        """Within the session's lock, so that who ends the session finds the thread."""
        events = open_events(nvml, uuids)
        self._silent = events.unmonitored
        self._watched = self._session.generation, {uuid: nvml.epochs[uuid] for uuid in uuids}
        self._start(events)

    def _start(self, events: EventSet | None) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(events, self._stop), name="GPU events", daemon=True)
        self._thread.start()

    def _run(self, events: EventSet | None, stop: threading.Event) -> None:
        if events is not None and self._wait(events, stop):
            return
        if not stop.wait(retry_pause(self._pause, self._failures)):
            self._watched = None
            self._tell(None)

    def _wait(self, events: EventSet, stop: threading.Event) -> bool:
        """Until `stop`; False when NVML failed."""
        try:
            while not stop.is_set():
                event = events.wait(_WAIT_MS)
                self._recover()
                if event is not None:
                    self._tell(event)
        except NvmlError as error:
            self._count(error)
            if error.code not in STALE:  # else the set has gone with its session, and its handle may be another's
                _free(events)
            return False
        _free(events)
        return True

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
    """Beside other calls of NVML, which allows that; whoever ends the session has waited for it."""
    with contextlib.suppress(NvmlError):
        events.free()
