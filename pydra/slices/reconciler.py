"""Reconciles a driver's ResourceSlices with the wanted pool.

Level-triggered: a published pool, a watch event and a timer all cause the same reconciliation, which compares the
wanted pool with the cache and writes the difference, usually nothing. Slices outlive the agent on purpose: they
are removed with the Node, or by the kubelet when no plugin of the driver is registered for a while.

Two instances of the agent may run at once, and want different slices. The one that started later wins: each write
carries the start of its instance, and an instance that sees a later one's write waits before it writes again.
"""

from __future__ import annotations

import logging
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import Protocol, TypeAlias

import anyio
import msgspec

from pydra.devices import Pool
from pydra.errors import Conflict, Invalid, KubeError, NotFound
from pydra.kube.api_resources import (
    NODES,
    RESOURCE_SLICES,
    JsonObject,
    Resource,
    WatchEvent,
    WatchEventType,
    parse_resource_version,
)
from pydra.slices.backoff import DEFERRALS, PUBLISHES, REPAIRS, Backoff, retry_pause
from pydra.slices.build import GENERATED_BASE, WantedPool, build_wanted
from pydra.slices.diff import Create, Delete, Owner, Plan, Update, plan_slices, share_devices
from pydra.slices.server_limitations import (
    ALLOCATABLE,
    BINDING,
    EFFECT_NONE,
    GROUPS,
    LISTS,
    OVERHEADS,
    PARTITION_TYPE,
    PARTITIONS,
    SHARES,
    TAINTS,
    RefusedDevice,
    ServerModification,
    apply_modifications,
    build_probe,
    find_modification,
    find_refused,
    has_overheads,
    name_gates,
    name_refused,
    reduce_pool,
)

log = logging.getLogger(__name__)

STARTED = "pydra-agent/started"
"""The annotation of a slice with the start time of the agent instance that wrote it."""
BATCH_SECONDS = 0.1
"""Waiting time for further events: deleting all slices is one event each, and they are restored in one round."""
RECONCILE_PERIOD = 600.0
"""How often everything is compared even if nothing has changed."""
GATE_PERIOD = 600.0
"""How often a server is asked what it accepts of what the pool needs: gates change when it is upgraded or restarted."""


ON_BY_DEFAULT = dict.fromkeys((BINDING, PARTITIONS, SHARES, TAINTS), "1.36")
"""Source: the Kubernetes feature gate table."""
NEEDED_RELEASE = {
    PARTITIONS: "Kubernetes 1.34 cannot store partitions even with the gate on",
    LISTS: f"{LISTS} exists from Kubernetes 1.36",
    GROUPS: f"{GROUPS} exists from Kubernetes 1.37",
    PARTITION_TYPE: f"{PARTITION_TYPE} exists from Kubernetes 1.37",
    ALLOCATABLE: f"{ALLOCATABLE} exists from Kubernetes 1.36",
}
_SHOWN = 8


class WriteKind(Enum):
    """What was done to a slice."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"


class SliceWritten(msgspec.Struct, frozen=True, kw_only=True):
    """The API server accepted a write."""

    pool: str
    name: str
    kind: WriteKind


class PoolPublished(msgspec.Struct, frozen=True, kw_only=True):
    """The API has the complete pool, after writes or at the first reconciliation. `slices` 0: it was withdrawn."""

    pool: str
    generation: int
    slices: int
    devices: int


class PublishFailed(msgspec.Struct, frozen=True, kw_only=True):
    """The API server did not accept a write; it is tried again after `pause` seconds."""

    pool: str
    error: KubeError
    pause: float


class FieldsDropped(msgspec.Struct, frozen=True, kw_only=True):
    """The API server does not store all of a pool; `gates` are the feature gates that are probably off, if known.

    `gates` may also name what is not a gate, such as `EFFECT_NONE`. `withheld` are the devices that are not published,
    because they would be unsafe without their fields; `refused` are those that the server refuses, with its reason.
    """

    pool: str
    gates: tuple[str, ...]
    withheld: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f'pool "{self.pool}": ' + ". ".join(self._sentences())

    def _sentences(self) -> Iterator[str]:
        gates = [gate for gate in self.gates if gate not in (EFFECT_NONE, OVERHEADS)]
        if gates:
            text = (
                "some fields are dropped by the API server, probably because these feature gates are "
                f"off: {', '.join(gates)}. Turn them on in the control plane and the kubelets"
            )
            notes = [NEEDED_RELEASE[gate] for gate in gates if gate in NEEDED_RELEASE]
            if since := [gate for gate in gates if gate in ON_BY_DEFAULT]:
                notes.insert(0, f"{', '.join(since)}: on by default from Kubernetes {ON_BY_DEFAULT[since[0]]}")
            yield f"{text} ({'; '.join(notes)})" if notes else text
        if EFFECT_NONE in self.gates:
            yield "Taints with the effect None are left out, which Kubernetes accepts from 1.35"
        if OVERHEADS in self.gates:
            yield "What pods need of the node besides their devices is left out, which Kubernetes accepts from 1.37"
        if self.withheld:
            yield f"Not published until then, since unsafe without: {_list_devices(self.withheld)}"
        if self.refused:
            yield f"Not published, because the API server refuses them: {_list_devices(self.refused)}"
        if not self.gates and not self.refused:
            yield "some fields were dropped by the API server, for a reason that is not known"


def _list_devices(devices: Sequence[str]) -> str:
    return f"{len(devices)} devices: " + ", ".join(devices[:_SHOWN]) + (", ..." if len(devices) > _SHOWN else "")


class FieldsKept(msgspec.Struct, frozen=True, kw_only=True):
    """The API server keeps what it dropped before: the complete pool is published."""

    pool: str


SliceEvent: TypeAlias = SliceWritten | PoolPublished | PublishFailed | FieldsDropped | FieldsKept


class SliceCache(Protocol):
    """The informer of this driver's slices on this node (see `slice_selector`), which documents the numbers."""

    resource_version: int
    lists_begun: int
    list_shown: int

    @property
    def objects(self) -> Mapping[tuple[str, str], JsonObject]:
        """By namespace and name."""
        ...

    async def wait_synced(self) -> None:
        """Wait for the first list."""
        ...

    def subscribe(self, callback: Callable[[WatchEvent], None]) -> None:
        """Call `callback` after each change of the cache."""
        ...


class SliceClient(Protocol):
    """The part of a KubeClient that is used here."""

    async def get(self, resource: Resource, name: str) -> JsonObject: ...  # noqa: D102
    async def create(self, resource: Resource, body: JsonObject, *, dry_run: bool) -> JsonObject: ...  # noqa: D102
    async def replace(  # noqa: D102
        self, resource: Resource, name: str, body: JsonObject, *, dry_run: bool
    ) -> JsonObject: ...
    async def delete(  # noqa: D102
        self, resource: Resource, name: str, *, uid: str, resource_version: str
    ) -> None: ...


def slice_selector(driver: str, node: str) -> str:
    """Return the field selector of the cache that a reconciler needs."""
    return f"spec.driver={driver},spec.nodeName={node}"


class SliceReconciler:
    """Publishes one driver's pool on one node. `publish` sets the wanted pool, `run` reconciles.

    `started`, in seconds since 1970, is when this instance of the agent started: the latest one wins.
    """

    def __init__(
        self,
        client: SliceClient,
        cache: SliceCache,
        *,
        driver: str,
        node: str,
        report: Callable[[SliceEvent], None] = lambda _: None,
        started: float,
        repairs: Backoff = REPAIRS,
        publishes: Backoff = PUBLISHES,
        deferrals: Backoff = DEFERRALS,
        batch_delay: float = BATCH_SECONDS,
        gate_period: float = GATE_PERIOD,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._client = client
        self._cache = cache
        self._driver = driver
        self._node = node
        self._report = report
        self._uniform = uniform
        self._pool: Pool | None = None  # until there is one, the slices of an earlier instance are left alone
        self._wanted: WantedPool | None = None
        self._achieved: WantedPool | None = None
        self._is_published = False
        self._modifications: dict[int, ServerModification] = {}
        self._gates_off: frozenset[str] = frozenset()
        self._gate_period = gate_period
        self._check_gates_at = -math.inf
        self._must_ask = False
        self._refused: dict[str, RefusedDevice] = {}
        self._probe: WantedPool | None = None
        self._withheld: tuple[str, ...] = ()
        self._last_dropped: FieldsDropped | None = None
        self._pending = PendingWrites(cache)
        self._owner: Owner | None = None
        self._started = datetime.fromtimestamp(started, UTC).isoformat(timespec="microseconds")
        self._repairs = repairs
        self._publishes = publishes
        self._deferrals = deferrals
        self._deferred_until = -math.inf
        self._batch_delay = batch_delay
        self._failures = 0
        self._not_before = -math.inf
        self._due = math.inf
        self._wake = anyio.Event()
        cache.subscribe(self._on_watch_event)

    @property
    def is_published(self) -> bool:
        """Whether the API had all that is wanted at the last reconciliation."""
        return self._is_published

    def publish(self, pool: Pool) -> None:
        """Set the wanted pool. Returns at once; an equal pool changes nothing."""
        if pool == self._pool:
            return
        self._pool, self._is_published = pool, False
        self._refused = {name: one for name, one in self._refused.items() if one.device in pool.devices}
        self._set_gates_off(self._gates_off)
        self._failures, self._not_before = 0, -math.inf
        now = anyio.current_time()
        self._schedule(self._publishes.next_at(now))

    def _set_gates_off(self, gates_off: frozenset[str]) -> None:
        """Compute the wanted slices while these gates are off."""
        assert self._pool is not None  # nothing is due before `publish`
        self._gates_off = gates_off
        reduced = reduce_pool(self._pool, gates_off, self._refused)
        self._wanted = build_wanted(reduced.pool, driver=self._driver, node=self._node)
        self._withheld = tuple(name for name in reduced.withheld if name not in self._refused)
        probe = build_probe(reduced.pool)
        self._probe = build_wanted(probe, driver=self._driver, node=self._node) if probe.devices else None

    async def run(self) -> None:
        """Reconcile until cancelled. What the API server refuses is reported and tried again."""
        await self._cache.wait_synced()
        while True:
            await self._wait_due()
            if anyio.current_time() >= self._check_gates_at:
                self._check_gates_at = math.inf
                self._must_ask = True
                self._refused = {}
                self._set_gates_off(frozenset())
            wanted = self._wanted
            try:
                await self._reconcile()
            except KubeError as error:
                self._fail(error, outdated=self._wanted is not wanted)

    def _on_watch_event(self, event: WatchEvent) -> None:
        if self._pending.is_own_write(event):
            if self._wanted is not None:
                share_devices(self._wanted, (event.object,))
            return
        if event.type is WatchEventType.DELETED:
            self._owner = None  # it may have been deleted with a Node that has another uid now
        elif self._achieved is not None and _read_start(event.object) > self._started:
            self._defer_to_newer()
        now = anyio.current_time()
        self._schedule(max(now + self._batch_delay, self._repairs.next_at(now)))

    def _defer_to_newer(self) -> None:
        """Stop writing while an instance that started later publishes; try again later, since it may have ended."""
        now = anyio.current_time()
        if now < self._deferred_until:
            return
        self._deferrals = self._deferrals.after(now)
        self._deferred_until = self._deferrals.next_at(now)
        log.info(
            "an instance of the agent that started later publishes the devices; this one waits %.0f s",
            self._deferred_until - now,
        )

    def _schedule(self, when: float) -> None:
        self._due = min(self._due, when)
        self._wake.set()

    async def _wait_due(self) -> None:
        while True:
            due = min(self._due, self._check_gates_at) if self._pool is not None else math.inf
            pause = max(due, self._not_before, self._deferred_until) - anyio.current_time()
            if pause <= 0:
                break
            self._wake = anyio.Event()
            with anyio.move_on_after(pause if pause < math.inf else None):
                await self._wake.wait()
        self._due = anyio.current_time() + RECONCILE_PERIOD

    async def _reconcile(self) -> None:
        if self._owner is None:
            self._owner = await self._fetch_owner()
        wanted = self._wanted  # after the await: nothing can change between here and the first write
        assert wanted is not None  # nothing is due before `publish`
        observed = self._pending.merged()
        target = apply_modifications(wanted, self._modifications)
        share_devices(target, observed)
        plan = plan_slices(target, observed, owner=self._owner)
        if len(plan) or self._must_ask:
            self._is_published = self._is_published and not len(plan)
            if not await self._check_dry_run(wanted):
                return  # the next reconciliation is due already
        if len(plan):
            self._count_round(repair=self._achieved is wanted)
            if not await self._apply(plan, wanted):
                return
        self._failures = 0
        if not self._is_published:
            self._report_published(wanted, plan)
        self._report_dropped(wanted.name)

    def _count_round(self, *, repair: bool) -> None:
        now = anyio.current_time()
        if repair:
            self._repairs = self._repairs.after(now)
        else:
            self._publishes = self._publishes.after(now)

    def _report_published(self, wanted: WantedPool, plan: Plan) -> None:
        self._achieved, self._is_published = wanted, True
        slices, devices = len(wanted.slices), sum(len(one.get("devices") or ()) for one in wanted.slices)
        log.info("pool %s is published: %d slices, %d devices, %d writes", wanted.name, slices, devices, len(plan))
        self._report(PoolPublished(pool=wanted.name, generation=plan.generation, slices=slices, devices=devices))

    async def _check_dry_run(self, wanted: WantedPool) -> bool:
        """Check in a dry run whether the server keeps the fields that need feature gates.

        When the answer to a real write shows it, a partition without its counters may already be allocated twice. And
        an update does not show it: the server keeps the fields of a gate that is off where they are stored already.
        """
        if self._probe is not None:
            self._check_gates_at = anyio.current_time() + self._gate_period
            for write in plan_slices(self._probe, (), owner=self._owner).creates:
                if write.body["spec"].get("devices"):
                    answer = await self._write(write, wanted, dry_run=True)
                    if answer is None or self._find_gates(wanted, write, answer):
                        return False
                if wanted is not self._wanted:
                    return False
        self._must_ask = False
        return True

    async def _apply(self, plan: Plan, wanted: WantedPool) -> bool:
        """Write in the plan's order; return False if the wanted pool changed meanwhile. An error ends the round."""
        for delete in plan.deletes:
            await self._delete(delete)
        for write in plan.writes:
            if wanted is not self._wanted or anyio.current_time() < self._deferred_until:
                return False
            answer = await self._write(write, wanted)
            if answer is None:
                return False
            kind = WriteKind.UPDATE if isinstance(write, Update) else WriteKind.CREATE
            pool = write.body["spec"]["pool"]["name"]
            self._report(SliceWritten(pool=pool, name=answer["metadata"]["name"], kind=kind))
            self._pending.note_write(answer)
            if self._find_gates(wanted, write, answer):
                return False
            self._note_modification(wanted, write, answer)
        return wanted is self._wanted

    async def _write(self, write: Update | Create, wanted: WantedPool, *, dry_run: bool = False) -> JsonObject | None:
        """Return the API server's answer; None if it refused the slice and the next reconciliation wants less."""
        metadata = write.body["metadata"]
        annotations = {**(metadata.get("annotations") or {}), STARTED: self._started}
        body = {**write.body, "metadata": {**metadata, "annotations": annotations}}
        try:
            if isinstance(write, Update):
                return await self._client.replace(RESOURCE_SLICES, write.name, body, dry_run=dry_run)
            return await self._client.create(RESOURCE_SLICES, body, dry_run=dry_run)
        except Invalid as error:
            if self._leave_out(wanted, str(error), write.body["spec"]):
                return None
            raise Invalid(_hide_suffix(str(error), metadata), status=error.status, cause=error.cause) from error

    async def _delete(self, delete: Delete) -> None:
        try:
            await self._client.delete(
                RESOURCE_SLICES, delete.name, uid=delete.uid, resource_version=delete.resource_version
            )
        except NotFound:
            log.debug("slice %s is gone already", delete.name)
        self._pending.note_delete(delete.uid)
        self._report(SliceWritten(pool=delete.pool, name=delete.name, kind=WriteKind.DELETE))

    def _find_gates(self, wanted: WantedPool, write: Update | Create, answer: JsonObject) -> bool:
        """Return whether the server dropped fields of gates that were not known to be off; they are left out next."""
        found = set(name_gates(write.body["spec"], answer["spec"])) - self._gates_off
        if found:
            self._drop_gates(wanted, found)
        return bool(found)

    def _leave_out(self, wanted: WantedPool, refusal: str, spec: JsonObject) -> bool:
        """Return whether a refused slice can be published without something that was not known to be refused."""
        if wanted is not self._wanted:
            return False
        assert self._pool is not None  # there was something to write
        gates = name_refused(refusal, spec) - self._gates_off
        found = {} if gates else find_refused(refusal, spec)
        devices = {device.name: device for device in self._pool.devices if device.name in found}
        news = {name: one for name, one in devices.items() if name not in self._refused}
        for name, device in news.items():
            self._refused[name] = RefusedDevice(device=device, why=found[name])
        if gates or news:
            self._drop_gates(wanted, set(gates))
        return bool(gates or news)

    def _drop_gates(self, wanted: WantedPool, gates: set[str]) -> None:
        now = anyio.current_time()
        self._check_gates_at = now + self._gate_period
        if wanted is self._wanted:
            self._set_gates_off(self._gates_off | gates)
        self._schedule(now)

    def _note_modification(self, wanted: WantedPool, write: Update | Create, answer: JsonObject) -> None:
        modification = find_modification(wanted.slices[write.index], write.body, answer)
        if modification is not None:
            self._modifications[write.index] = modification
            log.warning("%s", dropped := FieldsDropped(pool=wanted.name, gates=()))
            self._report(dropped)

    def _report_dropped(self, pool: str) -> None:
        """Report which fields the server drops, and when it keeps them again: once each, when the pool is published."""
        gates = tuple(sorted(gate for gate in self._gates_off if gate != OVERHEADS or self._loses_overheads()))
        refused = tuple(map(str, self._refused.values()))
        dropped = None
        if gates or refused:
            dropped = FieldsDropped(pool=pool, gates=gates, withheld=self._withheld, refused=refused)
        if dropped == self._last_dropped:
            return
        self._last_dropped = dropped
        if dropped is None:
            log.info("pool %s: the API server no longer drops fields", pool)
            self._report(FieldsKept(pool=pool))
        else:
            log.warning("%s", dropped)
            self._report(dropped)

    def _loses_overheads(self) -> bool:
        """Return whether the form of Kubernetes 1.36 is published, and says less than is known."""
        return ALLOCATABLE not in self._gates_off and self._pool is not None and has_overheads(self._pool)

    def _fail(self, error: KubeError, *, outdated: bool) -> None:
        self._is_published = False
        if outdated:
            log.info("a write for an outdated pool failed: %s", error)
            return  # the next reconciliation, for the new pool, is due already
        self._failures += 1
        shortest, longest = retry_pause(error, self._failures)
        pause = self._uniform(shortest, longest)
        now = anyio.current_time()
        self._not_before = now + pause
        self._schedule(max(self._not_before, self._repairs.next_at(now)))
        pool = self._wanted.name if self._wanted is not None else self._node
        level = logging.INFO if isinstance(error, Conflict) else logging.WARNING
        log.log(level, "pool %s cannot be published: retrying in %.1f s: %s", pool, pause, error)
        self._report(PublishFailed(pool=pool, error=error, pause=pause))

    async def _fetch_owner(self) -> Owner:
        node = await self._client.get(NODES, self._node)
        return Owner(name=self._node, uid=node["metadata"]["uid"])


def _hide_suffix(text: str, metadata: JsonObject) -> str:
    """Return the text without the random end of a generated name: the same refusal has the same text."""
    prefix = metadata.get("generateName")
    return re.sub(rf'"{re.escape(prefix[:GENERATED_BASE])}[a-z0-9]{{5}}"', f'"{prefix}"', text) if prefix else text


def _read_start(body: JsonObject) -> str:
    """Return when the agent instance that wrote the slice had started; empty if the slice does not say it."""
    return str((body["metadata"].get("annotations") or {}).get(STARTED, ""))


class _Written(msgspec.Struct, frozen=True):
    body: JsonObject
    version: int
    lists_begun: int


class PendingWrites:
    """Merges the cache with own writes whose watch events have not arrived yet.

    The answer to a write is known before its event comes through the watch; without it, the next reconciliation would
    write the same again. It is forgotten as soon as the cache is newer.
    """

    def __init__(self, cache: SliceCache) -> None:
        self._cache = cache
        self._written: dict[str, _Written] = {}
        self._deleted: set[str] = set()

    def note_write(self, answer: JsonObject) -> None:
        """Note that the API server stored this."""
        metadata = answer["metadata"]
        version = parse_resource_version(metadata.get("resourceVersion", ""))
        if version > self._cache.resource_version:
            self._written[metadata["uid"]] = _Written(answer, version, self._cache.lists_begun)
        else:
            self._written.pop(metadata["uid"], None)  # its event arrived before the answer

    def note_delete(self, uid: str) -> None:
        """Note that the API server deleted this; a uid is never reused."""
        self._deleted.add(uid)
        self._written.pop(uid, None)

    def is_own_write(self, event: WatchEvent) -> bool:
        """Return whether the event, which the cache already has, is of a write noted here; then forget the write."""
        metadata = event.object["metadata"]
        uid = metadata["uid"]
        if event.type is WatchEventType.DELETED:
            is_own = uid in self._deleted
            self._deleted.discard(uid)
            return is_own
        written = self._written.get(uid)
        if written is None or written.body["metadata"]["resourceVersion"] != metadata["resourceVersion"]:
            return False
        del self._written[uid]
        return True

    def merged(self) -> list[JsonObject]:
        """Return all objects that exist now, as far as is known."""
        by_uid = {body["metadata"]["uid"]: body for body in self._cache.objects.values()}
        self._deleted &= by_uid.keys()
        self._written = {
            uid: written
            for uid, written in self._written.items()
            # If the cache has reached its version, or was listed since, the cache is newer, even without the object.
            if written.version > self._cache.resource_version and self._cache.list_shown <= written.lists_begun
        }
        merged = by_uid | {uid: written.body for uid, written in self._written.items()}
        return [body for uid, body in merged.items() if uid not in self._deleted]
