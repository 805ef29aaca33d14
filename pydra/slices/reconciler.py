"""The reconciler shell: keeps one driver's ResourceSlices of one node as they are wanted.

Level-triggered: a published pool, an event of the watch and a period all mean "look again"; a look compares the
wanted pool with the cache and writes the difference, usually nothing. Slices outlive the agent on purpose: they
go with the Node, or when the kubelet misses the plugin.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Mapping
from typing import Protocol

import anyio

from pydra.devices import Pool
from pydra.errors import Conflict, Invalid, KubeError, NotFound
from pydra.kube.resources import NODES, RESOURCE_SLICES, JsonObject, Resource, WatchEvent, WatchEventType
from pydra.slices.build import WantedPool, build_wanted
from pydra.slices.diff import Create, Delete, Owner, Plan, Update, check_pool, plan_slices, share_devices
from pydra.slices.dropped import Adoption, adopt, find_adoption, name_gates
from pydra.slices.events import (
    FieldsDropped,
    FieldsKept,
    PoolInvalid,
    PoolPublished,
    PublishFailed,
    SliceEvent,
    SliceWritten,
    WriteKind,
)
from pydra.slices.feature_gates import LISTS, fall_back, has_lists, needs_gates
from pydra.slices.overlay import CacheState, Overlay
from pydra.slices.pace import PUBLISH_PACE, REPAIR_PACE, Pace, retry_pause

log = logging.getLogger(__name__)

SETTLE_SECONDS = 0.1
"""A wipe is one event per slice: mended in one round when they have all come."""
LOOK_PERIOD = 600.0
GATE_PERIOD = 600.0
"""How often a server that drops fields is asked whether it still does: gates change when it is upgraded."""


class SliceCache(CacheState, Protocol):
    """The watch cache of this driver's and node's slices; see `slice_selector`."""

    @property
    def objects(self) -> Mapping[tuple[str, str], JsonObject]:
        """By namespace and name."""
        ...

    async def wait_synced(self) -> None:
        """Return when the first list is there."""
        ...

    def subscribe(self, callback: Callable[[WatchEvent], None]) -> None:
        """Have it called after each change of the cache."""
        ...


class SliceClient(Protocol):
    """The part of a KubeClient that is used here."""

    async def get(self, resource: Resource, name: str, *, namespace: str = "") -> JsonObject: ...  # noqa: D102
    async def create(  # noqa: D102
        self, resource: Resource, body: JsonObject, *, namespace: str = "", dry_run: bool = False
    ) -> JsonObject: ...
    async def replace(  # noqa: D102
        self,
        resource: Resource,
        name: str,
        body: JsonObject,
        *,
        namespace: str = "",
        subresource: str = "",
        dry_run: bool = False,
    ) -> JsonObject: ...
    async def delete(  # noqa: D102
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str = "",
        uid: str = "",
        resource_version: str = "",
        grace_period: int | None = None,
    ) -> None: ...


def slice_selector(driver: str, node: str) -> str:
    """The field selector of the cache that a reconciler needs."""
    return f"spec.driver={driver},spec.nodeName={node}"


class SliceReconciler:
    """One driver's pool on one node. `publish` says what is wanted, `run` brings it about."""

    def __init__(
        self,
        client: SliceClient,
        cache: SliceCache,
        *,
        driver: str,
        node: str,
        report: Callable[[SliceEvent], None] = lambda _: None,
        repair_pace: Pace = REPAIR_PACE,
        publish_pace: Pace = PUBLISH_PACE,
        settle: float = SETTLE_SECONDS,
        gate_period: float = GATE_PERIOD,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._client = client
        self._cache = cache
        self._driver = driver
        self._node = node
        self._report = report
        self._uniform = uniform
        self._pool: Pool | None = None
        self._wanted: WantedPool | None = None
        self._decided = False  # whether anything was published: until then, nothing of the former agent is touched
        self._achieved: WantedPool | None = None
        self._settled = False
        self._adoptions: dict[int, Adoption] = {}
        self._gates_off: frozenset[str] = frozenset()
        self._gate_period = gate_period
        self._doubt_at = math.inf
        self._gated: frozenset[str] = frozenset()
        self._withheld: tuple[str, ...] = ()
        self._told: FieldsDropped | None = None
        self._overlay = Overlay()
        self._owner: Owner | None = None
        self._repairs = repair_pace
        self._publishes = publish_pace
        self._settle_seconds = settle
        self._failures = 0
        self._not_before = -math.inf
        self._due = math.inf
        self._wake = anyio.Event()
        cache.subscribe(self._notice)

    @property
    def settled(self) -> bool:
        """Whether the API had, at the last look, all that is wanted."""
        return self._settled

    def publish(self, pool: Pool | None) -> None:
        """Want this pool, whole, from now on; None: no slice at all. Returns at once; the same again costs nothing."""
        if self._decided and pool == self._pool:
            return
        if pool is not None and (problems := check_pool(pool)):
            log.error("pool %s is not published: %s", pool.name, "; ".join(problems))
            self._report(PoolInvalid(pool=pool.name, problems=problems))
            return
        self._pool, self._decided, self._settled = pool, True, False
        self._want(self._gates_off)
        self._failures, self._not_before = 0, -math.inf
        now = anyio.current_time()
        self._look_at(self._publishes.next_at(now))

    def _want(self, gates_off: frozenset[str]) -> None:
        """From the pool to what is wanted of it, as long as these gates are off."""
        self._gates_off = gates_off
        if self._pool is None:
            self._wanted, self._withheld = None, ()
            return
        fallback = fall_back(self._pool, gates_off)
        self._wanted = build_wanted(fallback.pool, driver=self._driver, node=self._node)
        self._withheld = fallback.withheld
        self._gated = frozenset(device.name for device in fallback.pool.devices if needs_gates(device))

    async def run(self) -> None:
        """Reconcile until cancelled. What the API server refuses is reported and tried again, and never ends it."""
        await self._cache.wait_synced()
        while True:
            await self._wait_due()
            wanted = self._wanted
            try:
                await self._look()
            except KubeError as error:
                self._fail(error, anew=self._wanted is not wanted)

    def _notice(self, event: WatchEvent) -> None:
        if self._overlay.take_echo(event):
            if self._wanted is not None:
                share_devices(self._wanted, (event.object,))
            return
        if event.type is WatchEventType.DELETED:
            self._owner = None  # it may have gone with a Node that has another uid now
        now = anyio.current_time()
        self._look_at(max(now + self._settle_seconds, self._repairs.next_at(now)))

    def _look_at(self, when: float) -> None:
        self._due = min(self._due, when)
        self._wake.set()

    async def _wait_due(self) -> None:
        while True:
            due = min(self._due, self._doubt_at) if self._decided else math.inf
            pause = max(due, self._not_before) - anyio.current_time()
            if pause <= 0:
                break
            self._wake = anyio.Event()
            with anyio.move_on_after(pause if pause < math.inf else None):
                await self._wake.wait()
        self._due = anyio.current_time() + LOOK_PERIOD

    async def _look(self) -> None:
        if anyio.current_time() >= self._doubt_at:
            self._doubt_at = math.inf
            self._want(frozenset())
        if self._wanted is not None and self._owner is None:
            self._owner = await self._fetch_owner()
        wanted = self._wanted  # after the wait: from here to the first write nothing can come between
        observed = self._overlay.look(self._cache.objects.values(), self._cache)
        adopted = None if wanted is None else adopt(wanted, self._adoptions)
        if adopted is not None:
            share_devices(adopted, observed)
        plan = plan_slices(adopted, observed, owner=self._owner)
        if len(plan):
            self._settled = False
            if not await self._try_out(plan, wanted):
                return  # the next look is due already
            self._count_round(repair=self._achieved is wanted is not None)
            if not await self._apply(plan, wanted):
                return
        self._failures = 0
        if not self._settled:
            self._conclude(wanted, plan)
        if wanted is not None:
            self._tell_dropped(wanted.name)

    def _count_round(self, *, repair: bool) -> None:
        now = anyio.current_time()
        if repair:
            self._repairs = self._repairs.after(now)
        else:
            self._publishes = self._publishes.after(now)

    def _conclude(self, wanted: WantedPool | None, plan: Plan) -> None:
        self._achieved, self._settled = wanted, True
        slices = 0 if wanted is None else len(wanted.slices)
        devices = 0 if self._pool is None else len(self._pool.devices)
        name = self._node if wanted is None else wanted.name
        log.info("pool %s is published: %d slices, %d devices, %d writes", name, slices, devices, len(plan))
        self._report(PoolPublished(pool=name, generation=plan.generation, slices=slices, devices=devices))

    async def _try_out(self, plan: Plan, wanted: WantedPool | None) -> bool:
        """Ask, without storing anything, whether the server keeps what gates may be off for; False when it does not.

        Seen only in the answer to the write, a partition without its counters could have been given out twice by then.
        """
        for write in plan.writes:
            if any(device["name"] in self._gated for device in write.body["spec"].get("devices") or ()):
                answer = await self._write(write, wanted, dry_run=True)
                if answer is None or self._find_gates(wanted, write, answer):
                    return False
            if wanted is not self._wanted:
                return False
        return True

    async def _apply(self, plan: Plan, wanted: WantedPool | None) -> bool:
        """Write in the plan's order; False when what is wanted changed meanwhile. An error ends the round."""
        for delete in plan.deletes:
            await self._delete(delete)
        for write in plan.writes:
            if wanted is None or wanted is not self._wanted:
                return False
            answer = await self._write(write, wanted)
            if answer is None:
                return False
            kind = WriteKind.UPDATE if isinstance(write, Update) else WriteKind.CREATE
            pool = write.body["spec"]["pool"]["name"]
            self._report(SliceWritten(pool=pool, name=answer["metadata"]["name"], kind=kind))
            self._overlay.note_write(answer, self._cache)
            if self._find_gates(wanted, write, answer):
                return False
            self._adopt(wanted, write, answer)
        return wanted is self._wanted

    async def _write(
        self, write: Update | Create, wanted: WantedPool | None, *, dry_run: bool = False
    ) -> JsonObject | None:
        """The answer; None when the slice was refused for what is not wanted any more."""
        try:
            if isinstance(write, Update):
                return await self._client.replace(RESOURCE_SLICES, write.name, write.body, dry_run=dry_run)
            return await self._client.create(RESOURCE_SLICES, write.body, dry_run=dry_run)
        except Invalid as error:
            # With the gate for list attributes off, the server empties such an attribute and refuses the slice for it.
            if "attributes" not in str(error) or not has_lists(write.body["spec"]):
                raise
            self._lose(wanted, {LISTS})
            return None

    async def _delete(self, delete: Delete) -> None:
        try:
            await self._client.delete(
                RESOURCE_SLICES, delete.name, uid=delete.uid, resource_version=delete.resource_version
            )
        except NotFound:
            log.debug("slice %s is gone already", delete.name)
        self._overlay.note_delete(delete.uid)
        self._report(SliceWritten(pool=delete.pool, name=delete.name, kind=WriteKind.DELETE))

    def _find_gates(self, wanted: WantedPool | None, write: Update | Create, answer: JsonObject) -> bool:
        """Whether the server dropped fields of gates that nobody knew to be off; the next look goes without them."""
        found = set(name_gates(write.body["spec"], answer["spec"])) - self._gates_off
        if found:
            self._lose(wanted, found)
        return bool(found)

    def _lose(self, wanted: WantedPool | None, gates: set[str]) -> None:
        now = anyio.current_time()
        self._doubt_at = now + self._gate_period
        if wanted is self._wanted:
            self._want(self._gates_off | gates)
        self._look_at(now)

    def _adopt(self, wanted: WantedPool, write: Update | Create, answer: JsonObject) -> None:
        adoption = find_adoption(wanted.slices[write.index], write.body, answer)
        if adoption is not None:
            self._adoptions[write.index] = adoption
            log.warning("%s", dropped := FieldsDropped(pool=wanted.name, gates=()))
            self._report(dropped)

    def _tell_dropped(self, pool: str) -> None:
        """What the server drops, and that it does no longer: once each, when the pool is published."""
        gates = tuple(sorted(self._gates_off))
        dropped = FieldsDropped(pool=pool, gates=gates, withheld=self._withheld) if gates else None
        if dropped == self._told:
            return
        self._told = dropped
        if dropped is None:
            log.info("pool %s: the API server keeps now what it dropped before", pool)
            self._report(FieldsKept(pool=pool))
        else:
            log.warning("%s", dropped)
            self._report(dropped)

    def _fail(self, error: KubeError, *, anew: bool) -> None:
        self._settled = False
        if anew:
            log.info("a write for what is no longer wanted failed: %s", error)
            return  # the next look is due already, and owes nothing to this failure
        self._failures += 1
        shortest, longest = retry_pause(error, self._failures)
        pause = self._uniform(shortest, longest)
        now = anyio.current_time()
        self._not_before = now + pause
        self._look_at(max(self._not_before, self._repairs.next_at(now)))
        pool = self._wanted.name if self._wanted is not None else self._node
        level = logging.INFO if isinstance(error, Conflict) else logging.WARNING
        log.log(level, "pool %s could not be published, trying again in %.1f s: %s", pool, pause, error)
        self._report(PublishFailed(pool=pool, error=error, pause=pause))

    async def _fetch_owner(self) -> Owner:
        node = await self._client.get(NODES, self._node)
        return Owner(name=self._node, uid=node["metadata"]["uid"])
