"""Waits for the events of GPUs, in a thread of its own: the wait blocks, and no other call should wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection

from pydra_nvidia.nvml.errors import NvmlError
from pydra_nvidia.nvml.events import Event, EventSet, open_events
from pydra_nvidia.nvml.session import NvmlSession

_WAIT_MS = 1000
_LET_GO_SECONDS = 5.0
_PAUSE_SECONDS = 1.0


class EventWatcher:
    """`tell` is called from the thread: with each event, and with None when watching failed and must begin anew."""

    def __init__(self, session: NvmlSession, tell: Callable[[Event | None], None]) -> None:
        self._session = session
        self._tell = tell
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._watched: tuple[int, frozenset[str]] | None = None
        self.unmonitored: frozenset[str] = frozenset()
        session.before_close(self.stop)

    def watch(self, uuids: Collection[str]) -> None:
        """Watch these GPUs, in the session as it is now. Cheap when that is done already."""
        wanted = (self._session.generation, frozenset(uuids))
        if wanted == self._watched and (not uuids or (self._thread is not None and self._thread.is_alive())):
            return
        self.stop()
        self._watched = wanted
        if not uuids:
            return
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(frozenset(uuids), self._stop), name="GPU events", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Return when the thread no longer uses NVML, or has not noticed in time."""
        thread, self._thread = self._thread, None
        self._stop.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_LET_GO_SECONDS)

    def _run(self, uuids: frozenset[str], stop: threading.Event) -> None:
        try:
            events = self._session.run_here(lambda nvml: open_events(nvml, uuids))
        except NvmlError:
            stop.wait(_PAUSE_SECONDS)
            self._tell(None)
            return
        self.unmonitored = events.unmonitored
        if self._wait(events, stop):
            events.free()

    def _wait(self, events: EventSet, stop: threading.Event) -> bool:
        """Until `stop`; False when NVML failed, and the set with it."""
        while not stop.is_set():
            try:
                event = events.wait(_WAIT_MS)
            except NvmlError:
                stop.wait(_PAUSE_SECONDS)
                self._tell(None)
                return False
            if event is not None:
                self._tell(event)
        return True
