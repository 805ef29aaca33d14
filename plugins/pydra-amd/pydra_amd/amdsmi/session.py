"""A session with AMD's library: opened at the first use, closed while modes change, and opened again after it.

An open session is a user of every GPU: the driver refuses to change a mode beside it. Its handles are stale afterwards.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from pydra import UndoLater
from pydra_amd.amdsmi.events import Event, EventWatcher
from pydra_amd.amdsmi.library import Amdsmi, AmdsmiError, AmdsmiMissing
from pydra_amd.amdsmi.links_and_throttling import GpuReading, read_gpu

T = TypeVar("T")
_log = logging.getLogger(__name__)

_SECONDS = 4.0
"""For an answer of the whole library; pydra gives a measurement 10 s."""


class AmdsmiHangs(UndoLater):
    """The library does not return from a call, as while a GPU hangs; a claim can end all the same."""

    reason = "LibraryHangs"


class AmdsmiSession:
    """`tell` is called from a thread: with each event, and with None when events may have been missed.

    What fails, or takes longer than `seconds`, is logged when it begins, and costs only what the library would have
    reported. Nothing else waits for the thread that calls it, one call after the other.
    """

    def __init__(
        self, importer: Callable[[], Any], tell: Callable[[Event | None], None], *, seconds: float = _SECONDS
    ) -> None:
        self._importer = importer
        self._tell = tell
        self._seconds = seconds
        self._worker = ThreadPoolExecutor(1, "amdsmi")
        self._paused = 0
        self._missing = False
        self._said = ""
        self._version = ""
        self._library: Amdsmi | None = None
        self._handles: Mapping[str, Any] = {}
        self._watcher: EventWatcher | None = None

    def read(self) -> Mapping[str, GpuReading]:
        """What the library reports about each GPU, by address; nothing where it cannot. Blocks, for some seconds."""
        try:
            return self._in_time(self._read)
        except AmdsmiHangs as error:
            self._say(str(error))
            return {}

    def _read(self) -> Mapping[str, GpuReading]:
        if self._missing or self._paused:
            return {}
        try:
            library = self._open()
            readings = {address: read_gpu(library, handle) for address, handle in self._handles.items()}
        except AmdsmiError as error:
            self._missing = isinstance(error, AmdsmiMissing)
            self._say(str(error))
            self._close()
            return {}
        self._say("")
        return readings

    def _in_time(self, work: Callable[[], T]) -> T:
        """The result of `work` in the thread, or never its beginning if the thread is not free. Raises AmdsmiHangs."""
        future = self._worker.submit(work)
        try:
            return future.result(self._seconds)
        except TimeoutError as error:
            future.cancel()
            raise AmdsmiHangs(
                f"AMD's library amdsmi has not returned within {self._seconds:g} s; the kernel's log may say which GPU "
                "hangs"
            ) from error

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """While the body runs nothing is open; what is read then is nothing. Raises AmdsmiHangs."""
        self._paused += 1  # by the event loop alone
        try:
            await asyncio.to_thread(self.close)
            yield
        finally:
            self._paused -= 1

    def close(self) -> None:
        """End it. Blocks until the thread that waits for events has ended, for some seconds. Raises AmdsmiHangs."""
        self._in_time(self._close)

    def _open(self) -> Amdsmi:
        if self._watcher is not None and not self._watcher.is_alive:
            self._close()
        if self._library is not None:
            return self._library
        self._library = library = Amdsmi(self._importer)
        self._handles = _find_handles(library)
        self._watcher = EventWatcher(library, self._handles, self._tell)
        if library.version != self._version:  # not again after each change of a mode
            self._version = library.version
            _log.info("reading link states and events with %s", library.version)
        return library

    def _close(self) -> None:
        if self._watcher is not None:
            self._watcher.stop()
            self._tell(None)
        if self._library is not None:
            self._library.close()
        self._library, self._watcher, self._handles = None, None, {}

    def _say(self, text: str) -> None:
        if text and text != self._said:
            level = logging.INFO if self._missing else logging.WARNING
            _log.log(level, "xGMI link states, resets and throttling of GPUs are not reported: %s", text)
        self._said = text


def _find_handles(library: Amdsmi) -> Mapping[str, Any]:
    """One for each GPU, by address: that of its first partition. Each partition is a function of its own there."""
    found: dict[str, Any] = {}
    for handle in library.call("amdsmi_get_processor_handles"):
        try:
            address = library.call("amdsmi_get_gpu_device_bdf", handle)
        except AmdsmiError as error:
            if error.is_closed:
                raise
            _log.warning("a GPU of which amdsmi cannot tell the address is not asked: %s", error)
            continue
        found.setdefault(f"{address.rpartition('.')[0]}.0".lower(), handle)
    return found
