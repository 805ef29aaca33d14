"""Queries that never returned: they are suspended, those for metrics for their GPU, since each costs the process.

A call of NVML that hangs cannot be interrupted, and keeps NVML from all claims until the agent replaces the process.
The next one would hang at the same query, so what hung is in a file. A reboot empties its directory; maintenance, in
which GPUs are reset and drivers replaced, empties the file.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import msgspec

from pydra import Sample, time_left
from pydra_nvidia.atomic_files import StateFile
from pydra_nvidia.device_names import gpu_name
from pydra_nvidia.hardware_types import Reading
from pydra_nvidia.nvml.pynvml_library import Nvml

FILE = "telemetry.json"
"""In the state directory."""

_WAIT = 0.8
"""Share of a measurement's time after which a query that still runs is examined."""

_HUNG = 0.25
"""Share of a measurement's time that a query has to run to be called hung."""

_MOST = 2
"""Queries of a GPU that may hang; then it is asked nothing."""

_LONGEST = 60.0
"""Seconds that a measurement without a deadline has."""

_log = logging.getLogger(__name__)


class Query(msgspec.Struct, frozen=True, order=True):
    """A function of NVML, of the GPU with this UUID; with an empty one, of all GPUs together."""

    gpu: str
    function: str

    def __str__(self) -> str:
        return f"{self.function} of {self.gpu}" if self.gpu else self.function


EVENTS = Query("", "nvmlEventSetWait_v2")
"""Whether there are events, of any GPU."""


class SuspendedQueries:
    """The queries that are suspended, in the file at `path`, and the one that runs now."""

    def __init__(self, path: str, say: Callable[[str], object] = _log.warning) -> None:
        self._file = StateFile(path, tuple[Query, ...], "queries that hung", say)
        self._say = say
        self._running: tuple[Query, float] | None = None
        self._suspended = self._read()
        for query in sorted(self._suspended):
            say(f"{query} did not return earlier, and is not called")

    def is_suspended(self, query: Query) -> bool:
        """Whether it must not be called."""
        return query in self._suspended or sum(one.gpu == query.gpu for one in self._suspended) >= _MOST

    def note(self, query: Query | None) -> None:
        """It begins; None: it has returned."""
        self._running = None if query is None else (query, time.monotonic())

    async def watch(self) -> None:
        """Suspend the query that hangs, if one does, shortly before the time of the running measurement is over."""
        seconds = min(time_left(), _LONGEST)
        await asyncio.sleep(seconds * _WAIT)
        if self._running is None or time.monotonic() - self._running[1] < seconds * _HUNG:
            return
        query, began = self._running
        await asyncio.to_thread(self.suspend, query, time.monotonic() - began)

    def suspend(self, query: Query, seconds: float) -> None:
        """Do not call it any more, since it has not returned for so many seconds. Blocks."""
        self._say(
            f"{query} has not returned for {seconds:.0f} s: it is not called any more until a maintenance of the GPUs"
            " or a reboot; the driver or the GPU needs a look"
        )
        self._write(self._read() | {query})

    async def resume(self) -> None:
        """Call all queries again: GPUs were reset, or the driver was replaced."""
        if self._suspended:
            await asyncio.to_thread(self._write, frozenset())

    def samples(self, reading: Reading) -> tuple[Sample, ...]:
        """One for each suspended query."""
        names = {gpu.uuid: gpu_name(gpu.minor) for gpu in reading.gpus}
        return tuple(
            Sample(
                name="suspended_query",
                value=1.0,
                help="1 for a function of NVML that hung, and is not called.",
                device=names.get(one.gpu, one.gpu),
                labels={"function": one.function},
            )
            for one in sorted(self._suspended)
        )

    def _read(self) -> frozenset[Query]:
        return frozenset(self._file.read() or ())

    def _write(self, suspended: frozenset[Query]) -> None:
        self._suspended = suspended
        self._file.write(tuple(sorted(suspended)))


class GpuQueries:
    """As `Nvml.look`, for metrics of one GPU: None also for a query that is suspended."""

    def __init__(self, queries: SuspendedQueries, nvml: Nvml, gpu: str) -> None:
        self._queries = queries
        self._nvml = nvml
        self._gpu = gpu

    def look(self, name: str, *arguments: Any, subject: str = "", **options: Any) -> Any:
        """Raises NvmlError for a lost GPU or session."""
        query = Query(self._gpu, name)
        if self._queries.is_suspended(query):
            return None
        self._queries.note(query)
        try:
            return self._nvml.look(name, *arguments, subject=subject, **options)
        finally:
            self._queries.note(None)
