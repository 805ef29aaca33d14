"""Calls `discover` periodically and on hints, and publishes the resulting pool.

`discover` is called at the start, on a hint, when a debounced health change is due, and periodically. Each call covers
the complete inventory, whatever caused it; an unchanged inventory costs one comparison.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

import anyio
import msgspec

from pydra.backends.supervisor import BackendSupervisor
from pydra.backoff import find_pause
from pydra.devices import DeviceHealth, HealthStatus, Inventory, Pool
from pydra.errors import BackendError, PydraError
from pydra.inventory.build_pool import Published, build_pool, stale_key
from pydra.inventory.health_debounce import HealthPolicy, Snapshot, mark_unavailable, observe
from pydra.inventory.numa_nodes_and_overhead import Additions, add_to_inventory
from pydra.message_text import list_names

_log = logging.getLogger(__name__)
FIRST_RETRY = 1.0
NAMES_SHOWN = 3
_HINTS = 20
_HINT_SECONDS = 10.0


class DevicesStale(msgspec.Struct, frozen=True, kw_only=True):
    """`discover` has failed for so long that no claim should get the devices; it works again if `why` is empty."""

    driver: str
    why: str = ""


class InventoryLoop:
    """Calls `publish` after each `discover`, with the same object as before if nothing has changed."""

    def __init__(
        self,
        backend: BackendSupervisor,
        *,
        driver: str,
        pool: str,
        policy: HealthPolicy,
        additions: Additions,
        rescan_period: float,
        read_held: Callable[[], Awaitable[None]],
        quarantined: Callable[[], Mapping[str, str]],
        publish: Callable[[Published], None],
        report: Callable[[DevicesStale], None],
    ) -> None:
        """`read_held` is awaited before each `discover`, which may read what the node holds.

        `quarantined` returns the devices of quarantined claims, each with the reason in one word.
        """
        self._backend = backend
        self._driver = driver
        self._pool = pool
        self._policy = policy
        self._additions = additions
        self._rescan_period = rescan_period
        self._read_held = read_held
        self._quarantined = quarantined
        self._publish = publish
        self._report = report
        self._snapshot: Snapshot | None = None
        self._tainted: Mapping[str, str] = {}
        self._published: Published | None = None
        self._unhealthy: Mapping[str, str] = {}
        self._left_out: Sequence[str] = ()
        self._failures = 0
        self._failing_since = 0.0
        self._stale = False
        self._woken = anyio.Event()
        self._inventory: Inventory | None = None
        self._hints: deque[float] = deque(maxlen=_HINTS)
        self._warned = False

    def wake(self) -> None:
        """Call `discover` now."""
        self._woken.set()

    async def run(self) -> None:
        """Discover and publish until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._wait_for_hints, name=f"hints for {self._driver}")
            while True:
                self._woken = anyio.Event()
                await self._discover()
                self._build()
                with anyio.move_on_after(self._pause()):
                    await self._woken.wait()

    async def _wait_for_hints(self) -> None:
        while True:
            await self._backend.wait_changed()
            self._hints.append(time.monotonic())
            self.wake()

    def _judge_hints(self, inventory: Inventory) -> None:
        """Warn once of a `wait_changed` that returns although nothing changes."""
        if inventory != self._inventory:
            self._inventory = inventory
            self._hints.clear()
        elif len(self._hints) == _HINTS and self._hints[-1] - self._hints[0] < _HINT_SECONDS and not self._warned:
            self._warned = True
            _log.warning(
                "wait_changed has returned %d times within %.1f s, and discover answered the same: it must wait until "
                "something has changed, since the agent calls discover each time",
                _HINTS,
                self._hints[-1] - self._hints[0],
            )

    async def _discover(self) -> None:
        began = time.monotonic()
        await self._read_held()
        try:
            inventory = add_to_inventory(await self._backend.discover(), self._additions)
        except PydraError as error:
            self._failing_since = self._failing_since if self._failures else began
            self._failures += 1
            details = error.details if isinstance(error, BackendError) else ""
            _log.warning("devices cannot be discovered: %s", error, extra={"fields": {"details": details}})
            self._note_stale(error)
            if self._snapshot is not None:
                self._change(mark_unavailable(self._snapshot, str(error), stale=self._stale))
            return
        self._failures = 0
        if self._stale:
            self._stale = False
            _log.info("devices can be discovered again")
            self._report(DevicesStale(driver=self._driver))
        self._judge_hints(inventory)
        before = self._snapshot or Snapshot()
        self._change(observe(before, inventory, now=time.monotonic(), policy=self._policy))

    def _note_stale(self, error: PydraError) -> None:
        failing = time.monotonic() - self._failing_since
        if self._stale or failing < self._policy.stale_after:
            return
        self._stale = True
        effect = self._policy.stale_effect
        if effect is None:
            follows = "; those published before stay"
        elif self._snapshot is None:
            follows = "; those that an earlier run published are removed"
        else:
            follows = f"; those published before are tainted {stale_key(self._driver)}:{effect.value}"
        begins = f"have not been discovered for {failing:.0f} s" if failing >= 1 else "cannot be discovered"
        message = f"devices {begins}{follows}: {error}"
        _log.error("%s", message)
        self._report(DevicesStale(driver=self._driver, why=message))

    def _change(self, snapshot: Snapshot) -> None:
        if snapshot is not self._snapshot:
            self._snapshot, self._published = snapshot, None

    def _build(self) -> None:
        """Build the pool from the snapshot and publish it."""
        # Before the first result nothing is known, and an empty pool removes what an earlier run published.
        if self._snapshot is None:
            if self._stale and self._policy.stale_effect is not None:
                self._publish(Published(pool=Pool(name=self._pool), known=False))
            return
        quarantined = self._quarantined()
        if self._published is None or quarantined != self._tainted:
            self._tainted = dict(quarantined)
            self._published = build_pool(
                self._snapshot, driver=self._driver, pool=self._pool, policy=self._policy, quarantined=quarantined
            )
            if not self._snapshot.unavailable:  # otherwise nothing new is known of their health
                self._log_health(self._published.health)
                self._log_left_out(self._published)
        self._publish(self._published)

    def _log_health(self, devices: Iterable[DeviceHealth]) -> None:
        """Log one line for all devices that became unhealthy for the same reason, and one for all that recovered."""
        before = self._unhealthy
        unhealthy = [one for one in devices if one.status is HealthStatus.UNHEALTHY]
        self._unhealthy = {one.device: one.message for one in unhealthy}
        for line in list_by_message(one for one in unhealthy if before.get(one.device) != one.message):
            _log.warning("unhealthy: %s", line)
        if recovered := [name for name in before if name not in self._unhealthy]:
            _log.info("no longer unhealthy: %s", list_names(recovered, NAMES_SHOWN))

    def _log_left_out(self, published: Published) -> None:
        """Log once what is not published, or not as the backend wants it: Events about it are gone after an hour."""
        unreadable = [f"hardware cannot be read: {text}" for text in published.unreadable]
        left_out = [*published.dropped, *published.problems, *unreadable]
        for text in left_out:
            if text not in self._left_out:
                _log.warning("%s", text)
        self._left_out = left_out

    def _pause(self) -> float:
        """Return the seconds until the next `discover`."""
        if self._failures:
            retry = find_pause(self._failures, first=FIRST_RETRY, cap=self._rescan_period)
            if not self._stale:
                retry = min(retry, max(FIRST_RETRY, self._failing_since + self._policy.stale_after - time.monotonic()))
            return retry
        due = self._snapshot.debounced_at if self._snapshot is not None else None
        if due is None:
            return self._rescan_period
        return min(self._rescan_period, max(0.0, due - time.monotonic()))


def list_by_message(devices: Iterable[DeviceHealth]) -> Iterator[str]:
    """Yield `a, b, c and 24 more: message` for each message of these unhealthy devices."""
    names: dict[str, list[str]] = {}
    for one in devices:
        names.setdefault(one.message, []).append(one.device)
    for message, those in names.items():
        yield f"{list_names(those, NAMES_SHOWN)}: {message or 'the backend gives no reason'}"
