"""Events of GPUs: resets and thermal throttling, waited for in a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from pydra_amd.amdsmi.library import Amdsmi, AmdsmiError

RESET_BEGINS, RESET_ENDS, THROTTLED = "GPU_PRE_RESET", "GPU_POST_RESET", "THERMAL_THROTTLE"

_WAIT_MS = 250
"""Nothing ends a wait of the library, so the end of the session waits for it."""

_log = logging.getLogger(__name__)


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """`kind` is amdsmi's name of what happened to the GPU at this address."""

    address: str
    kind: str


class EventWatcher:
    """Watches the GPUs of these handles from now on, until `stop`. `tell` is called from its thread."""

    def __init__(self, library: Amdsmi, handles: Mapping[str, Any], tell: Callable[[Event | None], None]) -> None:
        self._library = library
        self._tell = tell
        self._addresses = {handle.value: address for address, handle in handles.items()}
        self._stop = threading.Event()
        self._readers = self._open(handles)
        self._thread = threading.Thread(target=self._run, name="GPU events", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether it still watches, or has nothing to watch."""
        return self._thread.is_alive() or not self._readers

    def stop(self) -> None:
        """End it; blocks until the library is not used any more."""
        self._stop.set()
        self._thread.join()
        for address, reader in self._readers.items():
            try:
                with self._library.attempt(f"ending to watch GPU {address}"):
                    reader.stop()
            except AmdsmiError as error:
                _log.debug("%s", error)

    def _open(self, handles: Mapping[str, Any]) -> Mapping[str, Any]:
        types = self._library.module.AmdSmiEvtNotificationType
        kinds = [getattr(types, kind) for kind in (RESET_BEGINS, RESET_ENDS, THROTTLED)]
        found: dict[str, Any] = {}
        for address, handle in handles.items():
            try:
                found[address] = self._library.call("AmdSmiEventReader", handle, kinds)
            except AmdsmiError as error:
                _log.info("GPU %s reports no events: %s", address, error)
        return found

    def _run(self) -> None:
        """One reader gets the events of all GPUs."""
        reader = next(iter(self._readers.values()), None)
        while reader is not None and not self._stop.is_set():
            try:
                with self._library.attempt("waiting for events"):
                    events = reader.read(_WAIT_MS)
            except AmdsmiError as error:
                if error.is_quiet:
                    continue
                _log.warning("%s; it is tried again at the next rescan", error)
                return
            for one in events:
                address = self._addresses.get(one["processor_handle"].value)
                if address is not None:
                    self._tell(Event(address=address, kind=one["event"]))
