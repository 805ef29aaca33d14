"""The health of the node's GPUs over time: events become incidents, incidents and conditions a diagnosis."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from msgspec.structs import replace

from pydra import Sample, SampleKind
from pydra_nvidia.hardware import Gpu, Placement, Reading
from pydra_nvidia.health.judge import diagnose, is_settled
from pydra_nvidia.health.memory import IncidentMemory
from pydra_nvidia.health.verdicts import Diagnosis
from pydra_nvidia.health.watcher import EventWatcher
from pydra_nvidia.names import gpu_name
from pydra_nvidia.nvml.events import Event
from pydra_nvidia.nvml.session import NvmlSession
from pydra_nvidia.settings import Settings


class HealthMonitor:
    """Made inside the event loop, which it wakes. With `settings.health` off it finds everything well."""

    def __init__(
        self,
        session: NvmlSession,
        memory: IncidentMemory,
        *,
        settings: Settings,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._memory = memory
        self._settings = settings
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        self._reading = Reading()
        self._lost: frozenset[str] = frozenset()
        self._watcher = EventWatcher(session, self._hear) if settings.health else None

    def diagnose(self, reading: Reading) -> Diagnosis:
        """How everything in the reading is now; from here on its GPUs are watched."""
        if self._watcher is None:
            return Diagnosis()
        self._reading = reading
        self._watcher.watch([gpu.uuid for gpu in reading.gpus])
        now = self._clock()
        lost = frozenset(one.last.uuid for one in reading.lost if one.last is not None)
        returned, self._lost = self._lost - lost, lost  # only a reset brings a lost GPU back
        self._memory.forget(
            lambda one: one.gpu in returned or is_settled(one, reading, settings=self._settings, now=now)
        )
        gpus = tuple(self._mark_unmonitored(gpu) for gpu in reading.gpus)
        return diagnose(replace(reading, gpus=gpus), self._memory.incidents, settings=self._settings, now=now)

    async def wait_event(self, seconds: float) -> bool:
        """Whether an event came within so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            return False
        self._woken.clear()
        return True

    def samples(self, reading: Reading) -> tuple[Sample, ...]:
        """XIDs by code since this process began."""
        names = {gpu.uuid: gpu_name(gpu.minor) for gpu in reading.gpus}
        return tuple(
            Sample(
                name="xids_total",
                value=count,
                help="XID errors since the backend started, by code.",
                kind=SampleKind.COUNTER,
                device=names.get(uuid, uuid),
                labels={"xid": str(xid)},
            )
            for (uuid, xid), count in sorted(self._memory.counts.items())
        )

    def close(self) -> None:
        """End the watching."""
        if self._watcher is not None:
            self._watcher.stop()

    def _hear(self, event: Event | None) -> None:
        """Called by the watcher's thread."""
        self._loop.call_soon_threadsafe(self._take, event)

    def _take(self, event: Event | None) -> None:
        if event is not None and event.xid is not None:
            gpu = self._reading.gpu(event.gpu)
            # NVML may not say whose event it is, as when a GPU is lost: then every GPU is suspected.
            suspects = [gpu] if gpu is not None else self._reading.gpus
            for suspect in suspects:
                self._memory.note(suspect.uuid, event.xid, _place(suspect, event.instance), self._clock())
        self._woken.set()

    def _mark_unmonitored(self, gpu: Gpu) -> Gpu:
        if self._watcher is None or gpu.uuid not in self._watcher.unmonitored:
            return gpu
        return replace(gpu, condition=replace(gpu.condition, monitored=False))


def _place(gpu: Gpu, instance: int | None) -> Placement | None:
    """Where the GPU instance lies; an unknown one counts as the whole GPU."""
    if instance is None or gpu.mig is None:
        return None
    return next((one.placement for one in gpu.mig.instances if one.id == instance), None)
