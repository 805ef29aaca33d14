"""How each GPU is over time: what the kernel's files and the library report now, and events that are not over."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Mapping

from pydra_amd.amdsmi.events import RESET_BEGINS, RESET_ENDS, THROTTLED, Event
from pydra_amd.amdsmi.links_and_throttling import THERMAL, GpuReading
from pydra_amd.hardware_types import Condition, Gpu, Reading
from pydra_amd.host.amdgpu import is_asleep
from pydra_amd.host.ras import read_bad_page_limit, read_bad_pages, read_errors
from pydra_pci import Tree

_QUIET_SECONDS = 300.0
"""How long throttling is reported after it was last seen: it comes and goes with the load."""


class HealthMonitor:
    """Made inside the event loop, which it wakes."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        self._lock = threading.Lock()
        self._resetting: set[str] = set()
        self._throttled: dict[str, float] = {}
        self._counts: dict[tuple[str, str], int] = {}

    def hear(self, event: Event | None) -> None:
        """An event, from any thread; None: events may have been missed, so that no reset is known to go on."""
        with self._lock:
            if event is None:
                self._resetting.clear()
                return
            if event.kind == RESET_BEGINS:
                self._resetting.add(event.address)
            elif event.kind == RESET_ENDS:
                self._resetting.discard(event.address)
            elif event.kind == THROTTLED:
                is_known = self._is_throttled(event.address)
                self._throttled[event.address] = time.monotonic()
                if is_known:
                    return
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            self._loop.call_soon_threadsafe(self._woken.set)

    def wake(self) -> None:
        """Have `wait_event` return, inside the event loop: something else asks for another look."""
        self._woken.set()

    async def wait_event(self, seconds: float) -> bool:
        """Whether an event came within so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            return False
        self._woken.clear()
        return True

    def read(self, reading: Reading, reported: Mapping[str, GpuReading]) -> Mapping[str, Condition]:
        """What is wrong with each GPU of the reading, by address; `reported` by the library, of some. Blocks."""
        return {gpu.address: self._read_gpu(gpu, reported.get(gpu.address, GpuReading())) for gpu in reading.gpus}

    def _read_gpu(self, gpu: Gpu, reported: GpuReading) -> Condition:
        if is_asleep(self._tree, gpu.address):
            return Condition()
        errors = read_errors(self._tree, gpu.address)
        with self._lock:
            self._count(gpu.address, reported)
            return Condition(
                uncorrectable={block: counts.get("uncorrectable", 0) for block, counts in errors.items()},
                bad_pages=read_bad_pages(self._tree, gpu.address) or 0,
                bad_page_limit=read_bad_page_limit(self._tree, gpu),
                links_down=reported.links.count("down"),
                links=len(reported.links),
                is_resetting=gpu.address in self._resetting,
                is_throttled=self._is_throttled(gpu.address),
            )

    def _count(self, address: str, reported: GpuReading) -> None:
        """Firmware without events counts how often it held the clocks down for heat; what is not known does not."""
        for cause in THERMAL:
            if (count := reported.throttled.get(cause)) is not None:
                if count > self._counts.get((address, cause), count):
                    self._throttled[address] = time.monotonic()
                self._counts[address, cause] = count

    def _is_throttled(self, address: str) -> bool:
        return time.monotonic() - self._throttled.get(address, float("-inf")) < _QUIET_SECONDS
