"""Removes abandoned claims, leftover records, CDI files and metadata files, and what steps of ended claims left.

Runs at the start and periodically. The kubelet unprepares what it knows. What it forgot (its own state was lost, or the
claim was deleted or deallocated while the node was away) and what a killed instance of the agent left half done would
stay for ever, and its devices could not be used again.

A claim is abandoned when the API server does not have it any more, or has it without these devices, *and* the kubelet
does not know it (its checkpoint `dra_manager_state`), for as long as the grace. While the kubelet knows a claim its
containers may still run, also while the kubelet itself is stopped; it will unprepare the claim itself.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
import zlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import msgspec

from pydra import atomic_files
from pydra.checkpoint.record import Record, Stage
from pydra.checkpoint.store import RecordStore
from pydra.claim import Claim, ClaimRef
from pydra.claims.allocation import parse_allocation
from pydra.claims.claim_files import ClaimFiles
from pydra.claims.preparer import ClaimPreparer, Reconciled
from pydra.errors import (
    CdiError,
    CheckpointError,
    ClaimError,
    KubeError,
    NotAllocated,
    NotFound,
    PydraError,
    Replaced,
    Unreadable,
)
from pydra.kube.api_resources import RESOURCE_CLAIMS

if TYPE_CHECKING:
    from pydra.kube.client import KubeClient

_log = logging.getLogger(__name__)
_AT_ONCE = 8
_KUBELET_STATE_BYTES = 64 * 1024 * 1024
_KUBELET_KIND = "DRACheckpoint"
RETRY_SECONDS = 5.0
RETRY_CAP_SECONDS = 300.0

FilesT = TypeVar("FilesT")

FindNames: TypeAlias = Callable[[], Awaitable[Mapping[str, tuple[str, str]]]]
"""Namespace and name of every claim in the cluster, by uid."""


class GarbageCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What was collected. `waiting` claims are abandoned, but not yet for the grace period."""

    claims_unprepared: int = 0
    started_undone: int = 0
    files_removed: int = 0
    files_restored: int = 0
    failed: int = 0
    waiting: int = 0


class GarbageCollected(msgspec.Struct, frozen=True, kw_only=True):
    """A collection ended. `problem` says why it is incomplete, if it is."""

    driver: str
    counts: GarbageCounts
    problem: str = ""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Claims to `unprepare`, which are abandoned, and uids to `reconcile`, whose record and files disagree."""

    unprepare: tuple[str, ...] = ()
    reconcile: tuple[str, ...] = ()
    abandoned_since: Mapping[str, float] = {}


def plan_collection(
    records: Mapping[str, Record],
    files: Mapping[str, bytes] | None,
    metadata: Mapping[str, Mapping[str, bytes]] | None,
    *,
    abandoned: Collection[str],
    abandoned_since: Mapping[str, float],
    now: float,
    grace: float,
    expected_file: Callable[[Record], bytes | None],
    expected_metadata: Callable[[Record], Mapping[str, bytes]],
) -> Plan:
    """Decide which claims to unprepare and which to reconcile.

    `files` are the driver's CDI files by uid, `metadata` its metadata files by uid and path; None when they cannot be
    read. Metadata files of a claim whose record has none are another driver's, and stay. `abandoned` are uids of
    records, readable or not, that are abandoned now; a claim must have been so for `grace` seconds.
    """
    since = {uid: abandoned_since.get(uid, now) for uid in sorted(abandoned)}
    gone = {uid for uid, first in since.items() if now - first >= grace}
    disagreeing = {
        uid
        for uid, record in records.items()
        if (record.stage is Stage.STARTED and not record.left_over)
        or (files is not None and files.get(uid) != expected_file(record))
        or (metadata is not None and record.metadata is not None and metadata.get(uid) != expected_metadata(record))
    }
    orphans = ((files or {}).keys() | (metadata or {}).keys()) - records.keys()
    return Plan(
        unprepare=tuple(sorted(gone)),
        reconcile=tuple(sorted((disagreeing | orphans) - gone)),
        abandoned_since=since,
    )


def read_kubelet_claims(path: str) -> frozenset[str]:
    """Return the uids of the claims that this node's kubelet knows; none if it has no checkpoint yet. Blocks.

    Source: pkg/kubelet/cm/dra/state of Kubernetes 1.36.

    Raises:
        CheckpointError: the checkpoint cannot be read, its directory is not visible, or its content is not what the
            kubelet writes. Then it is not known which claims are in use.
    """
    try:
        try:
            content = atomic_files.read_regular_file(path, _KUBELET_STATE_BYTES)
        except FileNotFoundError:
            os.stat(os.path.dirname(path))
            return frozenset()
    except OSError as error:
        raise CheckpointError(atomic_files.explain(error, f"reading the kubelet's claims from {path}")) from error
    try:
        file = msgspec.json.decode(content, type=_KubeletFile)
        if zlib.crc32(file.data.encode()) != file.checksum:
            raise ValueError("its checksum does not match")
        state = msgspec.json.decode(file.data, type=_KubeletState)
        if state.kind != _KUBELET_KIND:
            raise ValueError(f"its kind is {ascii(state.kind)[:80]} instead of {_KUBELET_KIND}")
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"the kubelet's checkpoint {path} is damaged, or of an unknown version ({ascii(str(error))[:200]}), so no "
            "claim counts as abandoned; a kubelet that cannot read it, either, does not start: see its log"
        ) from error
    return frozenset(one.uid for one in state.claims or ())


class _KubeletFile(msgspec.Struct, frozen=True, kw_only=True):
    data: str = msgspec.field(name="Data")
    checksum: int = msgspec.field(name="Checksum")


class _KubeletClaim(msgspec.Struct, frozen=True, kw_only=True):
    uid: str = msgspec.field(name="ClaimUID")


class _KubeletState(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    claims: tuple[_KubeletClaim, ...] | None = msgspec.field(name="ClaimInfoStateList", default=None)


class GarbageCollector:
    """The garbage collection of one driver. Periods and deadlines in seconds.

    `grace` is longer than the kubelet takes to notice a pod that was deleted by force (60 s), to end its containers
    (30 s by default) and to retry unprepare (10 to 15 s).
    """

    def __init__(
        self,
        *,
        driver: str,
        client: KubeClient,
        find_names: FindNames,
        store: RecordStore,
        files: ClaimFiles,
        preparer: ClaimPreparer,
        kubelet_state: str,
        period: float = 600.0,
        grace: float = 120.0,
        conflict_pause: float = 10.0,
        fetch_deadline: float = 10.0,
        report: Callable[[GarbageCollected], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._driver = driver
        self._client = client
        self._find_names = find_names
        self._store = store
        self._files = files
        self._preparer = preparer
        self._kubelet_state = kubelet_state
        self._period = period
        self._grace = grace
        self._conflict_pause = conflict_pause
        self._fetch_deadline = fetch_deadline
        self._report = report
        self._clock = clock
        self._abandoned_since: Mapping[str, float] = {}

    async def run(self) -> None:
        """Collect now and periodically, until cancelled; sooner when a grace ends, after a problem, or on a conflict.

        A claim that is refused may wait for one that is abandoned.
        """
        while True:
            self._preparer.queue.conflict.clear()
            done = await self.collect()
            pause = min(self._period, self._grace) if done.counts.waiting or done.problem else self._period
            least = min(pause, self._conflict_pause)
            await asyncio.sleep(least)  # each collection looks up every held claim, and each retry may be a conflict
            with suppress(TimeoutError):
                async with asyncio.timeout(pause - least):
                    await self._preparer.queue.conflict.wait()

    async def collect(self) -> GarbageCollected:
        """Collect once."""
        problems: list[str] = []
        try:
            async with self._store:
                self._store.move_records()
        except CheckpointError as error:
            problems.append(f"changes of another instance were not read: {error}")
        names = await self._name_unreadable(problems)
        in_use = await self._read_kubelet(problems)
        abandoned = frozenset() if in_use is None else await self._find_abandoned(names, in_use, problems)
        files = await self._read_files(self._files.cdi.read, problems)
        metadata = await self._read_files(self._files.metadata.read, problems)
        plan = plan_collection(
            self._store.records,
            files,
            metadata,
            abandoned=abandoned,
            abandoned_since=self._abandoned_since,
            now=self._clock(),
            grace=self._grace,
            expected_file=self._files.build_cdi_content,
            expected_metadata=self._files.build_metadata_content,
        )
        self._abandoned_since = plan.abandoned_since
        counts = await self._apply(plan, names, problems)
        self._preparer.renew_metadata()  # where it failed before
        done = GarbageCollected(driver=self._driver, counts=counts, problem="; ".join(problems))
        if counts != GarbageCounts(waiting=counts.waiting):
            _log.info("collected garbage: %s", counts)
        self._report(done)
        return done

    async def _name_unreadable(self, problems: list[str]) -> Mapping[str, ClaimRef]:
        """Find the names of claims whose records cannot be read; those that no longer exist have empty names."""
        unreadable = {uid: one for uid, one in self._store.unreadable.items() if not one.is_newer}
        names = {uid: (one.claim.namespace, one.claim.name) for uid, one in unreadable.items()}
        if any(not name for _, name in names.values()):
            try:
                found = await self._find_names()
            except KubeError as error:
                problems.append(f"claims of unreadable records were not looked up: {error}")
                found = {}
                names = {uid: name for uid, name in names.items() if name[1]}
            names = {uid: found.get(uid, name) for uid, name in names.items()}
        return {uid: ClaimRef(uid=uid, namespace=space, name=name) for uid, (space, name) in names.items()}

    async def _read_kubelet(self, problems: list[str]) -> Collection[str] | None:
        try:
            return await asyncio.to_thread(read_kubelet_claims, self._kubelet_state)
        except (CheckpointError, RuntimeError) as error:  # the latter: no thread can be started
            problems.append(str(error))
            return None

    async def _find_abandoned(
        self, unreadable: Mapping[str, ClaimRef], in_use: Collection[str], problems: list[str]
    ) -> Collection[str]:
        """Return the uids that are abandoned now; none at all if one lookup had no answer."""
        records = dict(self._store.records)
        abandoned: set[str] = set()
        unanswered: list[KubeError] = []
        slots = asyncio.Semaphore(_AT_ONCE)

        async def check(ref: ClaimRef, claim: Claim) -> None:
            async with slots:
                try:
                    if not unanswered and await self._is_abandoned(ref, claim):
                        abandoned.add(ref.uid)
                except KubeError as error:
                    unanswered.append(error)

        async with asyncio.TaskGroup() as tasks:
            for uid, record in records.items():
                if uid not in in_use and not record.left_over:
                    tasks.create_task(check(ClaimRef.of(record.claim), record.claim))
            for uid, ref in unreadable.items():
                held = self._store.unreadable.get(uid)  # it may have ended since it was looked up
                if held is not None and uid not in in_use and uid not in records:
                    tasks.create_task(check(ref, held.claim))
        if unanswered:
            problems.append(f"claims were not looked up: {unanswered[0]}")
            return frozenset()
        return abandoned

    async def _is_abandoned(self, ref: ClaimRef, claim: Claim) -> bool:
        """Return whether the API server says that the claim, or its allocation of a device that it holds, is gone."""
        if not ref.name:
            return True  # it was not among all the claims of the cluster
        try:
            found = await self._client.get(
                RESOURCE_CLAIMS, ref.name, namespace=ref.namespace, deadline=self._fetch_deadline
            )
            allocated = parse_allocation(found, ref, self._driver).claim
        except NotFound as error:
            # A server that lost the whole API would make every claim seem gone, those of running pods too.
            if error.is_of_object:
                return True
            raise
        except (Replaced, NotAllocated):
            return True
        except (Unreadable, ClaimError):
            return False  # it exists, but its devices cannot be read
        return not _devices(claim) <= _devices(allocated)

    async def _read_files(self, read: Callable[[], Awaitable[FilesT]], problems: list[str]) -> FilesT | None:
        try:
            return await read()
        except (CdiError, RuntimeError) as error:  # as above
            problems.append(f"files of claims were not read: {error}")
            return None

    async def _apply(self, plan: Plan, unreadable: Mapping[str, ClaimRef], problems: list[str]) -> GarbageCounts:
        # A claim may be in use again since it was looked up. The kubelet records it before it asks for it.
        in_use = await self._read_kubelet(problems) if plan.unprepare else ()
        gone = [uid for uid in plan.unprepare if in_use is not None and uid not in in_use]
        records = self._store.records
        known = {uid: ClaimRef.of(record.claim) for uid, record in records.items()}
        refs = {**unreadable, **known}
        unprepared = await _gather(self._preparer.unprepare(refs[uid]) for uid in gone if uid in refs)
        unnamed = ClaimRef(uid="", namespace="", name="")
        reconciled = await _gather(
            self._preparer.reconcile(refs.get(uid, msgspec.structs.replace(unnamed, uid=uid))) for uid in plan.reconcile
        )
        return GarbageCounts(
            claims_unprepared=unprepared.count(None),
            started_undone=reconciled.count(Reconciled.UNDONE),
            files_removed=reconciled.count(Reconciled.FILE_REMOVED),
            files_restored=reconciled.count(Reconciled.FILE_RESTORED),
            failed=sum(isinstance(outcome, PydraError) for outcome in (*unprepared, *reconciled)),
            waiting=len(plan.abandoned_since) - len(plan.unprepare),
        )


async def _gather(futures: Iterable[asyncio.Future[Any]]) -> list[Any]:
    pending = list(futures)
    if pending:
        await asyncio.wait(pending)
    return [future.result() for future in pending]


def _devices(claim: Claim) -> set[tuple[str, str]]:
    return {(device.pool, device.device) for device in claim.devices}


async def retry_left_over(preparer: ClaimPreparer, store: RecordStore, *, first: float = RETRY_SECONDS) -> None:
    """Try to undo what ended claims have left: at once, so at each start, and after growing pauses; never returns.

    What has just been left over is tried after `first` seconds, because it has just failed.
    """
    pause = first
    while True:
        left = [record.claim for _, record in sorted(store.records.items()) if record.left_over]
        await _gather(preparer.reconcile(ClaimRef.of(claim)) for claim in left)
        preparer.left_over.clear()
        is_left = any(record.left_over for record in store.records.values())
        with suppress(TimeoutError):
            async with asyncio.timeout(pause if is_left else None):
                await preparer.left_over.wait()  # a new one: the others are tried with it
                await asyncio.sleep(first)
        pause = min(pause * 2, RETRY_CAP_SECONDS) if is_left else first
