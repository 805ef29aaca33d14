"""Events of GPUs: registering for them, and asking which have come. NVML keeps those that nobody has asked for yet.

Source: nvml.h, nvmlEventSetWait_v2 and nvmlEventType*.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import msgspec

from pydra_nvidia.nvml.errors import STALE, Code, NvmlError
from pydra_nvidia.nvml.gpus import XID_EVENT
from pydra_nvidia.nvml.hung_queries import EVENTS, SuspendedQueries
from pydra_nvidia.nvml.maintenance_gate import InMaintenance
from pydra_nvidia.nvml.pynvml_library import Nvml, address_of
from pydra_nvidia.nvml.session import NvmlSession
from pydra_nvidia.waiting import Busy

WHOLE = 0xFFFFFFFF
"""An event's instance ids when it concerns the whole GPU."""

_WANTED = XID_EVENT | 0x2 | 0x4000 | 0x8000
"""XIDs, double-bit ECC errors, and on new drivers: GPU unavailable, recovery action changed. Single-bit errors, which
the hardware corrects and which may come in floods, are only measured."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """What NVML reports: `xid` None for anything else; `instance` is a GPU instance's id, None for the whole GPU."""

    gpu: str
    xid: int | None
    instance: int | None = None


class EventSet:
    """A registration for what `gpus` report, which are UUIDs with their epochs. Raises NvmlError when it is made.

    One that reports nothing, or is lost, is `unmonitored`.
    """

    def __init__(self, nvml: Nvml, gpus: Mapping[str, int]) -> None:
        self.gpus = gpus
        self._nvml = nvml
        self._handle = nvml.call("nvmlEventSetCreate")
        self._devices: dict[int, str] = {}
        for uuid in sorted(gpus):
            with contextlib.suppress(NvmlError):
                self._register(uuid)
        self.unmonitored = frozenset(gpus) - set(self._devices.values())

    def _register(self, uuid: str) -> None:
        device = self._nvml.find(uuid)
        supported = int(self._nvml.call("nvmlDeviceGetSupportedEventTypes", device, subject=uuid))
        if supported & XID_EVENT:
            self._nvml.call("nvmlDeviceRegisterEvents", device, supported & _WANTED, self._handle, subject=uuid)
            self._devices[address_of(device)] = uuid

    def take(self) -> Event | None:
        """The next event; None when none has come. Raises NvmlError."""
        pynvml = self._nvml.pynvml
        try:
            data = pynvml.nvmlEventSetWait_v2(self._handle, 0)
        except pynvml.NVMLError as error:
            if error.value == Code.TIMEOUT:
                return None
            raise NvmlError(int(error.value), "nvmlEventSetWait_v2") from error
        instance = int(data.gpuInstanceId)
        return Event(
            gpu=self._devices.get(address_of(data.device), ""),
            xid=int(data.eventData) if data.eventType == XID_EVENT else None,
            instance=None if instance == WHOLE else instance,
        )

    def free(self) -> None:
        """Release it; what NVML refuses here went with the driver."""
        with contextlib.suppress(NvmlError):
            self._nvml.call("nvmlEventSetFree", self._handle)


_PATIENCE = 1.0
"""Seconds that `poll` waits for its turn with NVML."""

_MOST = 1000
"""Events that are taken at once: a flood must not keep NVML from others."""

_FIRST_PAUSE, _LAST_PAUSE = 1.0, 300.0
_DOUBLINGS = 10

_TOLERATED = 1
"""Failures in a row that may be over with the next try; after more of them nobody can say that GPUs are watched."""


class Heard(NamedTuple):
    """Events, and whether other GPUs are monitored than before, or the session that was watched has ended."""

    events: tuple[Event, ...] = ()
    changed: bool = False


class EventWatcher:
    """The events of some GPUs, in whatever session there is. It opens none. To be used by one thread at a time."""

    def __init__(
        self, session: NvmlSession, queries: SuspendedQueries, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._session = session
        self._queries = queries
        self._clock = clock
        self._wanted: tuple[str, ...] = ()
        self._set: EventSet | None = None
        self._taken: deque[Event] = deque()
        self._asking_since: float | None = None
        self._ended = False
        self._failures = 0
        self._retry_at = float("-inf")
        session.before_close(self._end)

    @property
    def unmonitored(self) -> frozenset[str]:
        """Of those to be watched, the GPUs whose events nobody hears."""
        if self._failures > _TOLERATED or self._queries.is_suspended(EVENTS):
            return frozenset(self._wanted)
        return self._set.unmonitored if self._set is not None else frozenset()

    @property
    def seconds_asking(self) -> float:
        """How long NVML has not answered yet; 0 when it was not asked, or has answered. For any thread."""
        since = self._asking_since
        return 0.0 if since is None else self._clock() - since

    def watch(self, uuids: Collection[str]) -> Heard:
        """Watch these GPUs from now on, and return what came until now. Blocks until NVML is free."""
        self._wanted = tuple(sorted(uuids))
        return self.poll(patience=float("inf"))

    def poll(self, *, patience: float = _PATIENCE) -> Heard:
        """What came since the last call; nothing while NVML is busy for longer than `patience` seconds.

        GPUs are registered again in a new session and after a change of their MIG mode. What NVML refuses is tried
        again, at growing intervals. NVML is asked nothing while the query is suspended.
        """
        before = self.unmonitored
        wants = self._wanted or self._set is not None
        if wants and self._session.is_open and not self._queries.is_suspended(EVENTS):
            with contextlib.suppress(NvmlError, InMaintenance, Busy):
                self._session.run_here(self._poll, patience=patience)
        ended, self._ended = self._ended and not self._session.is_open, False
        events = tuple(self._taken.popleft() for _ in range(len(self._taken)))
        return Heard(events, ended or self.unmonitored != before)

    def _poll(self, nvml: Nvml) -> None:
        self._asking_since = self._clock()
        try:
            self._take_all()
            wanted = {uuid: nvml.epochs[uuid] for uuid in self._wanted}
            if self._set is not None and self._set.gpus != wanted:
                self._replace(EventSet(nvml, wanted) if wanted else None)
            elif self._set is None and self._clock() >= self._retry_at:
                self._set = EventSet(nvml, wanted)
                self._take_all()
        except NvmlError as error:
            if error.code in STALE:  # a driver that is away has refused nothing
                raise
            self._replace(None)
            self._failures += 1
            self._retry_at = self._clock() + retry_pause(self._failures)
        finally:
            self._asking_since = None

    def _take_all(self) -> None:
        if self._set is not None:
            self._take_from(self._set)
            self._failures = 0

    def _take_from(self, events: EventSet) -> None:
        for _ in range(_MOST):
            if (event := events.take()) is None:
                break
            self._taken.append(event)

    def _replace(self, events: EventSet | None) -> None:
        """What has come for the set before is taken last: an event may be reported twice, but none is missed."""
        before, self._set = self._set, events
        if before is not None:
            with contextlib.suppress(NvmlError):
                self._take_from(before)
            before.free()

    def _end(self) -> None:
        """The session ends, which no change of the hardware may have caused; the next poll has what came before."""
        self._ended = self._set is not None
        self._replace(None)


def retry_pause(failures: int) -> float:
    """Seconds until the next try, after so many failures in a row."""
    return min(_FIRST_PAUSE * 2.0 ** min(max(failures - 1, 0), _DOUBLINGS), _LAST_PAUSE)
