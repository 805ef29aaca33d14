"""Up: from what a backend discovers to what is published of it. A shell around `pydra.inventory`.

It looks at the start, on a hint, when a device's health is about to settle, and by period; whatever
woke it, it looks at everything.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import anyio

from pydra.devices import DeviceHealth, HealthStatus, Inventory
from pydra.errors import BackendError, PydraError
from pydra.inventory import HealthPolicy, Published, Snapshot, build_pool, lose, next_settling, observe

_log = logging.getLogger(__name__)
FIRST_RETRY = 1.0


class Discovers(Protocol):
    """The part of a supervisor that is used here."""

    async def discover(self) -> Inventory:
        """The whole truth of the hardware."""
        ...

    async def wait_changed(self) -> None:
        """Return when it is worth asking again."""
        ...


class Telemetry:
    """Keeps `publish` informed of one backend's hardware; pools are named after the node."""

    def __init__(
        self,
        backend: Discovers,
        *,
        driver: str,
        pool: str,
        policy: HealthPolicy,
        rescan_period: float,
        condemned: Callable[[], Mapping[str, str]],
        publish: Callable[[Published], None],
    ) -> None:
        self._backend = backend
        self._driver = driver
        self._pool = pool
        self._policy = policy
        self._rescan_period = rescan_period
        self._condemned = condemned
        self._publish = publish
        self._snapshot: Snapshot | None = None
        self._sick: Mapping[str, str] = {}
        self._failures = 0
        self._woken = anyio.Event()

    def wake(self) -> None:
        """Look again now."""
        self._woken.set()

    async def run(self) -> None:
        """Until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._listen, name=f"hints for {self._driver}")
            while True:
                self._woken = anyio.Event()
                await self._look()
                with anyio.move_on_after(self._pause()):
                    await self._woken.wait()

    async def _listen(self) -> None:
        while True:
            await self._backend.wait_changed()
            self.wake()

    async def _look(self) -> None:
        try:
            inventory = await self._backend.discover()
        except PydraError as error:
            self._failures += 1
            self._miss(error)
        else:
            self._failures = 0
            before = self._snapshot or Snapshot()
            self._snapshot = observe(before, inventory, now=time.monotonic(), policy=self._policy)
        # Before the first answer nothing is known, and an empty pool would take away what an earlier run published.
        if self._snapshot is not None:
            published = build_pool(
                self._snapshot,
                driver=self._driver,
                pool=self._pool,
                policy=self._policy,
                condemned=self._condemned(),
            )
            if not self._snapshot.lost:  # nothing new is known of them
                self._say_health(published.health)
            self._publish(published)

    def _say_health(self, devices: Iterable[DeviceHealth]) -> None:
        """One line for all that fell ill of the same, or are well again."""
        before = self._sick
        self._sick = {one.device: one.message for one in devices if one.status is HealthStatus.UNHEALTHY}
        fallen: dict[str, list[str]] = {}
        for name, message in self._sick.items():
            if before.get(name) != message:
                fallen.setdefault(message, []).append(name)
        for message, names in fallen.items():
            _log.warning("unhealthy: %s: %s", list_names(names), message or "the backend says no more")
        if recovered := [name for name in before if name not in self._sick]:
            _log.info("not unhealthy any more: %s", list_names(recovered))

    def _miss(self, error: PydraError) -> None:
        details = error.details if isinstance(error, BackendError) else ""
        _log.warning("devices cannot be discovered: %s", error, extra={"fields": {"details": details}})
        if self._snapshot is not None:
            self._snapshot = lose(self._snapshot, str(error))

    def _pause(self) -> float:
        if self._failures:
            return min(self._rescan_period, FIRST_RETRY * 2.0 ** min(self._failures - 1, 16))
        settles = next_settling(self._snapshot, policy=self._policy) if self._snapshot else None
        if settles is None:
            return self._rescan_period
        return min(self._rescan_period, max(0.0, settles - time.monotonic()))


def list_names(names: list[str], most: int = 3) -> str:
    """`a, b, c and 24 more`."""
    left = len(names) - most
    return ", ".join(names[:most]) + (f" and {left} more" if left > 0 else "")
