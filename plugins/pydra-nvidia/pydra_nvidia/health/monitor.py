"""The health of the node's GPUs over time: events become incidents, incidents and conditions a diagnosis."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable

from msgspec.structs import replace

from pydra import Sample
from pydra_nvidia.device_names import gpu_name
from pydra_nvidia.hardware_types import Gpu, GpuInstance, Placement, Reading
from pydra_nvidia.health.diagnosis import Diagnosis, diagnose, is_settled, suspend
from pydra_nvidia.health.incident_store import IncidentStore
from pydra_nvidia.health.xid_catalogue import explain
from pydra_nvidia.nvml.events import Event, EventWatcher, Heard
from pydra_nvidia.nvml.hung_queries import EVENTS, SuspendedQueries
from pydra_nvidia.nvml.session import NvmlSession
from pydra_nvidia.settings import Settings
from pydra_nvidia.waiting import in_thread, turn

_log = logging.getLogger(__name__)
_PERIOD = 1.0
"""Seconds between two questions for events."""


class HealthMonitor:
    """With `settings.health` off it finds everything well.

    When NVML has not answered for `hung` seconds whether there are events, the question is suspended, and `end` ends
    the process: the question would keep NVML from all claims, and `wait_changed` has no deadline of the agent's.
    """

    def __init__(
        self,
        session: NvmlSession,
        memory: IncidentStore,
        queries: SuspendedQueries,
        *,
        settings: Settings,
        clock: Callable[[], float] = time.time,
        hung: float = 15.0,
        end: Callable[[], object] = os.abort,
    ) -> None:
        self._memory = memory
        self._queries = queries
        self._settings = settings
        self._clock = clock
        self._hung = hung
        self._end = end
        self._lock = threading.Lock()
        self._polling = threading.Lock()
        self._reading = Reading()
        self._lost: dict[str, Gpu] = {}
        self._is_news = False
        self._watcher = EventWatcher(session, queries) if settings.health else None

    def diagnose(self, reading: Reading) -> Diagnosis:
        """How everything in the reading is now; from here on its GPUs are watched. Blocks."""
        if self._watcher is None:
            return Diagnosis()
        with turn(self._polling, "NVML"):
            heard = self._watcher.watch([gpu.uuid for gpu in reading.gpus])
            self._note_all(heard)
            self._is_news |= bool(heard.events)  # what they report, the reading may be too old to have
            self._reading = reading
        with self._lock:
            return self._assess(reading, self._clock())

    def recall(self, reading: Reading, why: str) -> Diagnosis:
        """How everything was when it was last read: since then nobody may ask, and `why` says so."""
        if self._watcher is None:
            return Diagnosis()
        with self._lock:
            last = diagnose(reading, self._memory.incidents, settings=self._settings, now=self._clock())
        return suspend(last, reading, why)

    def _assess(self, reading: Reading, now: float) -> Diagnosis:
        before, self._lost = self._lost, {one.last.uuid: one.last for one in reading.lost if one.last is not None}
        was_reset = {uuid for uuid, last in before.items() if uuid not in self._lost and not _kept(last, reading)}
        self._memory.forget(
            lambda one: one.gpu in was_reset or is_settled(one, reading, settings=self._settings, now=now)
        )
        gpus = tuple(self._mark_unmonitored(gpu) for gpu in reading.gpus)
        return diagnose(replace(reading, gpus=gpus), self._memory.incidents, settings=self._settings, now=now)

    def see(self, reading: Reading) -> None:
        """What is where now: an event names an instance by an id that another had before. Blocks."""
        if self._watcher is None:
            return
        with turn(self._polling, "NVML"):
            self._is_news |= self._note_all(self._watcher.poll(patience=float("inf")))
            self._reading = reading

    async def wait_event(self, seconds: float) -> bool:
        """Whether an event came within so many seconds."""
        until = time.monotonic() + seconds
        while not await self._look():
            if (left := until - time.monotonic()) <= 0:
                return False
            await asyncio.sleep(min(_PERIOD, left))
        return True

    async def _look(self) -> bool:
        """Whether there is news of the GPUs. Ends the process if NVML does not answer."""
        look = asyncio.ensure_future(in_thread(self.take))
        try:
            while not (await asyncio.wait((look,), timeout=_PERIOD))[0]:
                if self._watcher is not None and (seconds := self._watcher.seconds_asking) > self._hung:
                    await asyncio.to_thread(self._queries.suspend, EVENTS, seconds)
                    self._end()
            return look.result()
        finally:
            look.cancel()

    def take(self) -> bool:
        """Whether there is news of the GPUs, which is noted. Blocks."""
        if self._watcher is None:
            return False
        with turn(self._polling, "NVML"):
            news, self._is_news = self._is_news, False
            return self._note_all(self._watcher.poll()) or news

    def samples(self, reading: Reading) -> tuple[Sample, ...]:
        """XIDs by code since this process began."""
        names = {gpu.uuid: gpu_name(gpu.minor) for gpu in reading.gpus}
        with self._lock:
            counts = sorted(self._memory.counts.items())
        return tuple(
            Sample(
                name="xids_total",
                value=count,
                help="XID errors since the backend started, by code.",
                device=names.get(uuid, uuid),
                labels={"xid": str(xid)},
            )
            for (uuid, xid), count in counts
        )

    def _note_all(self, heard: Heard) -> bool:
        """Whether it is worth another look at the GPUs."""
        with self._lock:
            for event in heard.events:
                if event.xid is not None:
                    self._note(event, event.xid)
        return heard.changed or bool(heard.events)

    def _note(self, event: Event, xid: int) -> None:
        known = {gpu.uuid: gpu for gpu in self._reading.gpus}
        known |= {one.last.uuid: one.last for one in self._reading.lost if one.last is not None}
        # NVML may not say whose event it is, as when a GPU is lost: then every GPU that answered is suspected.
        for uuid in [event.gpu] if event.gpu else [gpu.uuid for gpu in self._reading.gpus]:
            gpu = known.get(uuid)
            place = _place(gpu, event.instance) if gpu is not None else None
            if self._memory.note(uuid, xid, place, self._clock()):
                _log.warning(
                    "%s reports %s", f"{gpu_name(gpu.minor)} ({uuid})" if gpu is not None else uuid, explain(xid)
                )

    def _mark_unmonitored(self, gpu: Gpu) -> Gpu:
        if self._watcher is None or gpu.uuid not in self._watcher.unmonitored:
            return gpu
        return replace(gpu, condition=replace(gpu.condition, monitored=False))


def _kept(last: Gpu, reading: Reading) -> bool:
    """Whether the GPU answers with partitions that it had before it was lost, which no reset leaves."""
    now = reading.gpu(last.uuid)
    return now is not None and not _partitions(last).isdisjoint(_partitions(now))


def _partitions(gpu: Gpu) -> frozenset[GpuInstance]:
    return frozenset(gpu.mig.instances if gpu.mig is not None else ())


def _place(gpu: Gpu, instance: int | None) -> Placement | None:
    """Where the GPU instance lies; an unknown one counts as the whole GPU."""
    if instance is None or gpu.mig is None:
        return None
    return next((one.placement for one in gpu.mig.instances if one.id == instance), None)
