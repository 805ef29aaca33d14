"""Reconciles a driver's ResourceSlices with the wanted pool.

Level-triggered: a published pool, a watch event and a timer all cause the same reconciliation, which compares the
wanted pool with the cache and writes the difference, usually nothing. Slices outlive the agent on purpose: they
are removed with the Node, or by the kubelet when no plugin of the driver is registered for a while.

Two instances of the agent may run at once, and want different slices. The one that started later wins: each write
carries the start of its instance, and an instance that sees a later one's write waits before it writes again.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Protocol, TypeAlias

import msgspec
from msgspec.structs import replace

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
from pydra.slices.build import GENERATED_BASE, WantedPool
from pydra.slices.diff import Create, Delete, Plan, Update, plan_slices, share_devices
from pydra.slices.server_limitations import (
    AcceptedPool,
    FieldsDropped,
    RefusedDevice,
    ServerModification,
    apply_modifications,
    find_modification,
    find_refused,
    name_gates,
    name_refused,
)
from pydra.slices.write_schedule import Timing, WriteSchedule

log = logging.getLogger(__name__)

STARTED = "pydra-agent/started"
"""The annotation of a slice with the start time of the agent instance that wrote it."""


class WriteKind(Enum):
    """What was done to a slice."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"


class SliceWritten(msgspec.Struct, frozen=True, kw_only=True):
    """The API server accepted a write."""

    kind: WriteKind


class PoolPublished(msgspec.Struct, frozen=True, kw_only=True):
    """The API has the complete pool, in so many slices, after writes or at the first reconciliation."""

    slices: int


class PublishFailed(msgspec.Struct, frozen=True, kw_only=True):
    """The API server did not accept a write; it is tried again after `pause` seconds."""

    error: KubeError
    pause: float

    @property
    def is_race(self) -> bool:
        """Whether what was to be written changed or went meanwhile, as when the kubelet starts and deletes slices."""
        return isinstance(self.error, Conflict | NotFound) and self.pause < 1


class FieldsKept(msgspec.Struct, frozen=True, kw_only=True):
    """The API server keeps what it dropped before: the complete pool is published."""


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
    async def replace(self, resource: Resource, name: str, body: JsonObject) -> JsonObject: ...  # noqa: D102
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
        timing: Timing = Timing(),  # noqa: B008 - frozen
    ) -> None:
        self._client = client
        self._cache = cache
        self._driver = driver
        self._node = node
        self._report = report
        self._started = datetime.fromtimestamp(started, UTC).isoformat(timespec="microseconds")
        self._schedule = WriteSchedule(timing)
        self._target: AcceptedPool | None = None  # until there is one, the slices of an earlier instance are left alone
        self._achieved: AcceptedPool | None = None
        self._is_published = False
        self._must_ask = False  # whether a dry run comes first, though there may be nothing to write
        self._modifications: dict[int, ServerModification] = {}
        self._last_dropped: FieldsDropped | None = None
        self._pending = PendingWrites(cache)
        self._node_uid = ""
        cache.subscribe(self._on_watch_event)

    @property
    def is_published(self) -> bool:
        """Whether the API had all that is wanted at the last reconciliation."""
        return self._is_published

    def publish(self, pool: Pool) -> None:
        """Set the wanted pool. Returns at once; an equal pool changes nothing."""
        former = self._target
        if former is None:
            self._target = AcceptedPool(driver=self._driver, node=self._node, pool=pool)
            self._schedule.ask_server_now()
        elif former.pool == pool:
            return
        else:
            refused = {name: one for name, one in former.refused.items() if one.device in pool.devices}
            self._target = replace(former, pool=pool, refused=refused)
        self._is_published = False
        self._schedule.note_new_pool()

    async def run(self) -> None:
        """Reconcile until cancelled. What the API server refuses is reported and tried again."""
        await self._cache.wait_synced()
        while True:
            asks_server = await self._schedule.wait()
            assert self._target is not None  # nothing is due before `publish`
            if asks_server:
                self._must_ask = True
                self._target = replace(self._target, gates_off=frozenset(), refused={})
            target = self._target
            try:
                await self._reconcile()
            except KubeError as error:
                self._fail(error, target)

    def _on_watch_event(self, event: WatchEvent) -> None:
        if self._target is None:
            return
        if self._pending.is_own_write(event):
            share_devices(self._target.wanted, (event.object,))
            return
        if event.type is WatchEventType.DELETED:
            self._node_uid = ""  # it may have been deleted with a Node that has another uid now
        elif self._achieved is not None and _read_start(event.object) > self._started:
            self._schedule.defer()
        self._schedule.note_foreign_change()

    async def _reconcile(self) -> None:
        if not self._node_uid:
            self._node_uid = (await self._client.get(NODES, self._node))["metadata"]["uid"]
        target = self._target  # after the await: nothing can change between here and the first write
        assert target is not None
        observed = self._pending.merged()
        modified = apply_modifications(target.wanted, self._modifications)
        share_devices(modified, observed)
        plan = plan_slices(modified, observed, node_uid=self._node_uid)
        if len(plan) or self._must_ask:
            self._is_published = self._is_published and not len(plan)
            if not await self._check_dry_run(target):
                return  # the next reconciliation is due already
        if len(plan):
            self._schedule.note_round(repair=self._achieved is target)
            if not await self._apply(plan, target):
                return
        self._schedule.note_success()
        if not self._is_published:
            self._report_published(target, plan)
        self._report_dropped(target)

    def _report_published(self, target: AcceptedPool, plan: Plan) -> None:
        self._achieved, self._is_published = target, True
        pool, written = target.pool.name, target.wanted.slices
        slices, devices = len(written), sum(len(one.get("devices") or ()) for one in written)
        log.info("pool %s is published: slices %d, devices %d, writes %d", pool, slices, devices, len(plan))
        self._report(PoolPublished(slices=slices))

    async def _check_dry_run(self, target: AcceptedPool) -> bool:
        """Check in a dry run whether the server keeps the fields that need feature gates.

        When the answer to a real write shows it, a partition without its counters may already be allocated twice. And
        an update does not show it: the server keeps the fields of a gate that is off where they are stored already.
        """
        if target.probe is not None:
            self._schedule.ask_server_later()
            for write in plan_slices(target.probe, (), node_uid=self._node_uid).creates:
                if write.body["spec"].get("devices"):
                    answer = await self._write(write, target, dry_run=True)
                    if answer is None or self._find_gates(target, write, answer):
                        return False
                if target is not self._target:
                    return False
        self._must_ask = False
        return True

    async def _apply(self, plan: Plan, target: AcceptedPool) -> bool:
        """Write in the plan's order; return False if the target changed meanwhile. An error ends the round."""
        for delete in plan.deletes:
            await self._delete(delete)
        for write in plan.writes:
            if target is not self._target or self._schedule.is_deferred:
                return False
            answer = await self._write(write, target)
            if answer is None:
                return False
            kind = WriteKind.UPDATE if isinstance(write, Update) else WriteKind.CREATE
            self._report(SliceWritten(kind=kind))
            self._pending.note_write(answer)
            if self._find_gates(target, write, answer):
                return False
            self._note_modification(target.wanted, write, answer)
        return target is self._target

    async def _write(self, write: Update | Create, target: AcceptedPool, *, dry_run: bool = False) -> JsonObject | None:
        """Return the API server's answer; None if it refused the slice and the next reconciliation wants less."""
        metadata = write.body["metadata"]
        annotations = {**(metadata.get("annotations") or {}), STARTED: self._started}
        body = {**write.body, "metadata": {**metadata, "annotations": annotations}}
        try:
            if isinstance(write, Update):
                return await self._client.replace(RESOURCE_SLICES, write.name, body)
            return await self._client.create(RESOURCE_SLICES, body, dry_run=dry_run)
        except Invalid as error:
            if self._leave_out(target, str(error), write.body["spec"]):
                return None
            raise Invalid(_hide_suffix(str(error), metadata), status=error.status, cause=error.cause) from error

    async def _delete(self, delete: Delete) -> None:
        try:
            await self._client.delete(
                RESOURCE_SLICES, delete.name, uid=delete.uid, resource_version=delete.resource_version
            )
        except NotFound as error:
            if not error.is_of_object:  # of a proxy, or of an API server that does not serve slices
                raise
            log.debug("slice %s is gone already", delete.name)
        self._pending.note_delete(delete.uid)
        self._report(SliceWritten(kind=WriteKind.DELETE))

    def _find_gates(self, target: AcceptedPool, write: Update | Create, answer: JsonObject) -> bool:
        """Return whether the server dropped fields of gates that were not known to be off; they are left out next."""
        return self._reduce(target, frozenset(name_gates(write.body["spec"], answer["spec"])))

    def _leave_out(self, target: AcceptedPool, refusal: str, spec: JsonObject) -> bool:
        """Return whether a refused slice can be published without something that was not known to be refused."""
        if target is not self._target:
            return False
        gates = name_refused(refusal, spec)
        return self._reduce(target, gates, {} if gates - target.gates_off else find_refused(refusal, spec))

    def _reduce(self, target: AcceptedPool, gates: frozenset[str], refused: Mapping[str, str] = {}) -> bool:
        """Want less from now on: without what these gates allow, and without these devices. Whether that is news."""
        devices = {device.name: device for device in target.pool.devices if device.name in refused}
        news = {
            name: RefusedDevice(device=device, why=refused[name])
            for name, device in devices.items()
            if name not in target.refused
        }
        if gates <= target.gates_off and not news:
            return False
        if target is self._target:
            self._target = replace(target, gates_off=target.gates_off | gates, refused={**target.refused, **news})
        self._schedule.ask_server_later()
        self._schedule.look_now()
        return True

    def _note_modification(self, wanted: WantedPool, write: Update | Create, answer: JsonObject) -> None:
        modification = find_modification(wanted.slices[write.index], write.body, answer)
        if modification is not None:
            self._modifications[write.index] = modification
            log.warning("%s", dropped := FieldsDropped(pool=wanted.name, gates=()))
            self._report(dropped)

    def _report_dropped(self, target: AcceptedPool) -> None:
        """Report which fields the server drops, and when it keeps them again: once each, when the pool is published."""
        dropped = target.describe_lack()
        if dropped == self._last_dropped:
            return
        self._last_dropped = dropped
        if dropped is None:
            log.info("pool %s: the API server no longer drops fields", target.pool.name)
            self._report(FieldsKept())
        else:
            log.warning("%s", dropped)
            self._report(dropped)

    def _fail(self, error: KubeError, target: AcceptedPool) -> None:
        self._is_published = False
        if target is not self._target:
            log.info("a write for an outdated pool failed: %s", error)
            return  # the next reconciliation, for the new pool, is due already
        pause = self._schedule.note_failure(error)
        failed = PublishFailed(error=error, pause=pause)
        level = logging.INFO if failed.is_race else logging.WARNING
        log.log(level, "pool %s cannot be published: retrying in %.1f s: %s", target.pool.name, pause, error)
        self._report(failed)


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
