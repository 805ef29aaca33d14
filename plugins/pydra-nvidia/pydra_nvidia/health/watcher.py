"""Waits for the events of GPUs, in a thread of its own: the wait blocks, and no other call should wait for it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection

from pydra_nvidia.nvml.calls import Nvml
from pydra_nvidia.nvml.errors import STALE, NvmlError
from pydra_nvidia.nvml.events import Event, EventSet, open_events
from pydra_nvidia.nvml.session import NvmlSession

_WAIT_MS = 250
"""Nothing ends a wait of NVML, and whoever ends the session waits for it."""

_LET_GO_SECONDS = 5.0
_PAUSE_SECONDS = 1.0


class EventWatcher:
    """`tell` is called from the thread: with each event, and with None when watching failed and must begin anew."""

    def __init__(
        self, session: NvmlSession, tell: Callable[[Event | None], None], *, pause: float = _PAUSE_SECONDS
    ) -> None:
        self._session = session
        self._tell = tell
        self._pause = pause
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._watched: tuple[int, frozenset[str]] | None = None
        self.unmonitored: frozenset[str] = frozenset()
        session.before_close(self._let_go)

    def watch(self, uuids: Collection[str]) -> None:
        """Watch these GPUs, in the session as it is now; blocks until NVML has them. Cheap when that is done already.

        What NVML refuses is tried again when `tell` was called.
        """
        wanted = frozenset(uuids)
        if self._watched == (self._session.generation, wanted):
            return
        self.stop()
        self.unmonitored = frozenset()
        if not wanted:
            self._watched = self._session.generation, wanted
            return
        try:
            self._session.run_here(lambda nvml: self._begin(nvml, wanted))
        except NvmlError:
            self._start(None)

    def stop(self) -> None:
        """Return when the thread no longer uses NVML, or has not noticed in time."""
        thread, self._thread, self._watched = self._thread, None, None
        self._stop.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_LET_GO_SECONDS)

    def _let_go(self) -> None:
        """The session ends, which no change of the hardware may have caused: it has to be watched anew."""
        watched = self._watched is not None and bool(self._watched[1])
        self.stop()
        if watched:
            self._tell(None)

    def _begin(self, nvml: Nvml, uuids: frozenset[str]) -> None:
        """Within the session's lock, so that who ends the session finds the thread."""
        events = open_events(nvml, uuids)
        self.unmonitored = events.unmonitored
        self._watched = self._session.generation, uuids
        self._start(events)

    def _start(self, events: EventSet | None) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(events, self._stop), name="GPU events", daemon=True)
        self._thread.start()

    def _run(self, events: EventSet | None, stop: threading.Event) -> None:
        if (events is None or not self._wait(events, stop)) and not stop.wait(self._pause):
            self._watched = None
            self._tell(None)

    def _wait(self, events: EventSet, stop: threading.Event) -> bool:
        """Until `stop`; False when NVML failed."""
        try:
            while not stop.is_set():
                event = events.wait(_WAIT_MS)
                if event is not None:
                    self._tell(event)
        except NvmlError as error:
            if error.code in STALE:  # the set has gone with its session, and its handle may be another's
                return False
            _free(events)
            return False
        _free(events)
        return True


def _free(events: EventSet) -> None:
    with contextlib.suppress(NvmlError):
        events.free()
