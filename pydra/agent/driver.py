"""Assembles and runs the components that serve one backend as a DRA driver.

    records and garbage ── claims ── kubelet plugin        (down: a pod starts or ends)
    hardware ── inventory loop ── slices, health           (up: hardware changes)

The sockets come last, since the kubelet calls as soon as it finds them, and go first. A backend that cannot be served
(it violates its contract, another backend has its driver name, the disk fails) is reported and listed in `missing`; the
other backends are not affected.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import anyio
from anyio.abc import TaskGroup

from pydra import atomic_files
from pydra.agent.entry import SpawnedBackend
from pydra.agent.inventory_loop import InventoryLoop
from pydra.agent.metrics_and_events import Reports
from pydra.agent.takeover import Names, take_over_claims
from pydra.backends.supervisor import BackendSupervisor
from pydra.backends.supervisor_events import BackendFacts
from pydra.backends.wire import Method
from pydra.cdi.device_metadata_files import MetadataPaths, MetadataStore
from pydra.cdi.store import CdiStore
from pydra.checkpoint.locks_between_instances import InstanceLocks
from pydra.checkpoint.record import Stage
from pydra.checkpoint.store import RecordStore, UnreadableRecord
from pydra.claim import HeldClaim
from pydra.claims.claim_files import ClaimFiles
from pydra.claims.device_status import DeviceStatusWriter, find_warnings
from pydra.claims.device_use import PublishedPool
from pydra.claims.gc import GarbageCollector, retry_left_over
from pydra.claims.preparer import ClaimPreparer, Deadlines
from pydra.claims.work_queue import ClaimEvent, Operation, OperationEnded
from pydra.devices import TaintEffect
from pydra.errors import CheckpointError, ContractError, PydraError, SettingsError
from pydra.inventory.build_pool import Published
from pydra.inventory.health_debounce import HealthPolicy
from pydra.inventory.numa_nodes_and_overhead import Additions, Overhead, read_near_nodes
from pydra.kube.api_resources import RESOURCE_CLAIMS, RESOURCE_SLICES
from pydra.kube.client import KubeClient
from pydra.kube.event_recorder import EventRequest
from pydra.kube.informer import Informer
from pydra.kubelet.health_service import HealthBoard
from pydra.kubelet.plugin import DIRECTORY_MODE, KubeletEvent, KubeletPlugin, Serving, Waiting
from pydra.kubelet.registration import Registered, RegistrationRefused
from pydra.kubelet.sockets import plan_socket_paths
from pydra.observability.logging import logging_fields
from pydra.observability.metrics import Metrics
from pydra.observability.tracing import Tracer
from pydra.settings import HealthTaint, Settings
from pydra.slices.foreign_slices import watch_pool
from pydra.slices.reconciler import SliceReconciler, slice_selector

_log = logging.getLogger(__name__)
_OPEN_RETRY_SECONDS = 5.0
_RESTORE_FILES_SECONDS = 5.0
"""How long missing CDI files may delay the registration; garbage collection restores the rest."""
_RESTORE_SECONDS = 60.0
_RESTORE_PATIENCE_SECONDS = 5.0
"""A slow `restore` holds up the registration for no longer: the kubelet would try claims again after a minute only."""
_ALONE_SECONDS = 1.0
"""How often to look for another instance: one that starts takes longer until the kubelet calls it."""
_OVERLAP_SECONDS = 0.1
"""How often to read what another instance changes: a container is created later than its claim is prepared."""
_BOOT_ID_BYTES = 256

_TAINTS = {
    HealthTaint.NONE: None,
    HealthTaint.NO_SCHEDULE: TaintEffect.NO_SCHEDULE,
    HealthTaint.NO_EXECUTE: TaintEffect.NO_EXECUTE,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentContext:
    """What all drivers of one agent share. `driver_owners` maps the driver names in use to their backends."""

    settings: Settings
    client: KubeClient
    metrics: Metrics
    record: Callable[[EventRequest], None]
    tracer: Tracer | None
    driver_owners: dict[str, str] = field(default_factory=dict)


class Driver:
    """One backend. `run` returns after `stop` was set and the calls in flight have ended."""

    def __init__(self, spawned: SpawnedBackend, context: AgentContext) -> None:
        self.backend = spawned.source.name
        self._configured_name = spawned.source.configured_name
        self._context = context
        self._missing = f"backend {self.backend}: is starting"
        self._starting = anyio.CancelScope()
        self._supervisor = spawned.supervisor
        self._is_open = False  # whether what earlier instances left has been read
        self._answered = False  # whether the first process of the backend has said what it is, or was refused
        self._reports = Reports(context.metrics, context.record, node=context.settings.node_name)
        context.metrics.announce_backend(self.backend)
        spawned.report_to(self._reports)

    def missing(self) -> str:
        """Return why the driver cannot serve claims, as text; empty if it can."""
        if not self._answered:
            return self._supervisor.missing() or self._missing
        # Not a fault of hardware: `restore` fails at what an earlier version left, and that version keeps serving.
        return (self._supervisor.missing_restore() if self._is_open else "") or self._missing

    async def run(self, stop: anyio.Event) -> None:
        """Serve until `stop`."""
        async with anyio.create_task_group() as serving:
            serving.start_soon(self._serve_when_ready, stop)
            await stop.wait()
            # Only what is not served yet: the rest has calls in flight, and ends after them.
            self._starting.cancel()

    async def _serve_when_ready(self, stop: anyio.Event) -> None:
        service: DriverService | None = None
        with self._starting:
            service = await self._start()
        if service is not None:
            await service.run(stop)

    async def _start(self) -> DriverService | None:
        try:
            facts = await self._supervisor.wait_ready()
        except (ContractError, SettingsError) as error:  # which the supervisor has reported
            self._missing = str(error)
            return None
        finally:
            self._answered = True
        try:
            driver = self._name_driver(facts)
            service = DriverService(
                driver,
                facts,
                self._supervisor,
                self._context,
                additions=_read_additions(self._context.settings, self._configured_name),
                missing=self._set_missing,
            )
        except SettingsError as error:
            self._missing = str(error)
            _log.error("%s", error)
            self._reports.not_served(str(error))
            return None
        self._context.metrics.announce_driver(driver)
        await service.open()
        self._is_open = True
        return service

    def _set_missing(self, text: str) -> None:
        self._missing = text and f"driver of backend {self.backend}: {text}"

    def _name_driver(self, facts: BackendFacts) -> str:
        driver = self._context.settings.drivers.get(self._configured_name) or facts.driver
        if not driver:
            raise SettingsError(
                [
                    f"backend {self.backend} has no driver name of its own; "
                    f"set DRIVER in its module, or give it one: --driver {self._configured_name}=NAME"
                ]
            )
        holder = self._context.driver_owners.setdefault(driver, self.backend)
        if holder != self.backend:
            raise SettingsError(
                [
                    f"backend {self.backend}: driver {driver} is served by backend {holder} already; "
                    f"give one of them another name: --driver {self._configured_name}=NAME"
                ]
            )
        return driver


class DriverService:
    """The components of one driver. `missing` is called with what keeps the kubelet from using it; "" for nothing."""

    def __init__(
        self,
        driver: str,
        facts: BackendFacts,
        supervisor: BackendSupervisor,
        context: AgentContext,
        *,
        additions: Additions,
        missing: Callable[[str], None],
    ) -> None:
        """Raises SettingsError if the driver's sockets cannot be where the settings put them."""
        settings = context.settings
        self._driver = driver
        self._facts = facts
        self._supervisor = supervisor
        self._context = context
        self._settings = settings
        self._additions = additions
        self._missing = missing
        self._report = Reports(
            context.metrics, context.record, node=settings.node_name, driver=driver, tracer=context.tracer
        )
        self._plugin_directory = settings.plugin_directory(driver)
        self._records_directory = settings.records_directory(driver)
        self._lock = InstanceLocks(f"{self._records_directory}/lock")
        paths = MetadataPaths(driver=driver, plugin_directory=self._plugin_directory, cdi_directory=settings.cdi_dir)
        self._files = ClaimFiles(
            driver,
            cdi=CdiStore(settings.cdi_dir, driver),
            metadata=MetadataStore(paths),
            host_root=settings.host_root,
        )
        self._board = HealthBoard()
        self._statuses: DeviceStatusWriter | None = None
        self._loop = asyncio.get_running_loop()
        self._sockets_tried = anyio.Event()
        # Refused here, where it affects this backend only; an exception beside running components ends the agent.
        self._sockets = plan_socket_paths(
            driver,
            registry_directory=settings.registry_directory,
            plugin_directory=self._plugin_directory,
            pod_uid=settings.pod_uid,
        )

    async def run(self, stop: anyio.Event) -> None:
        """Serve, once `open` has returned, until `stop`; then until the calls in flight have ended."""
        with logging_fields(backend=self._facts.name):  # which every task below inherits, and the kubelet's calls
            await self._serve(stop)

    async def _serve(self, stop: anyio.Event) -> None:
        if self._settings.device_status:
            self._statuses = DeviceStatusWriter(
                self._context.client, self._store, driver=self._driver, boot_id=self._boot_id, report=self._report
            )
        claims = self._build_claims()
        garbage = self._build_garbage_collector(claims)
        await claims.restore_files(seconds=_RESTORE_FILES_SECONDS)
        async with anyio.create_task_group() as parts:
            parts.start_soon(self._collect_garbage, garbage, name=f"garbage of {self._driver}")
            if self._facts.reads_held:
                parts.start_soon(self._follow_others, name=f"other instances of {self._driver}")
            if self._facts.has_steps:
                parts.start_soon(retry_left_over, claims, self._store, name=f"left-over steps of {self._driver}")
            if self._statuses is not None:
                parts.start_soon(self._statuses.run, name=f"statuses of the devices of {self._driver}")
            async with anyio.create_task_group() as front:
                front.start_soon(self._take_over, claims, parts, front, name=f"start of {self._driver}")
                await stop.wait()
                deadline = anyio.current_time() + self._settings.drain_grace
                front.cancel_scope.cancel()
            # Claims for which the kubelet no longer waits have the rest of the grace period.
            with anyio.CancelScope(deadline=deadline):
                await claims.queue.wait_idle()
            parts.cancel_scope.cancel()
        await claims.stop()
        # The lock file stays open until the process ends, after the backend: that may still prepare, or restore.

    async def _take_over(self, claims: ClaimPreparer, parts: TaskGroup, front: TaskGroup) -> None:
        """Publish devices, and let the kubelet call this instance: from now on it counts, not the one before it."""
        await self._supervisor.wait_restored(_RESTORE_PATIENCE_SECONDS)
        # Slices are written until `stop` only: what an instance that takes over publishes is not undone.
        self._start_publishing(claims, parts, front)
        while True:
            async with anyio.create_task_group() as served:
                served.start_soon(self._build_plugin(claims).run, name=f"kubelet plugin {self._driver}")
                await self._supervisor.wait_restore_failed()
                served.cancel_scope.cancel()  # the kubelet calls the instance before this one again
            await self._supervisor.wait_restored(0)

    async def open(self) -> None:
        """Read what earlier instances left. If the disk cannot be used, report that and retry."""
        while True:
            try:
                await self._open()
            except PydraError as error:
                self._missing(str(error))
                self._report.not_yet_served(f"driver {self._driver} cannot be served yet: {error}")
                _log.error("driver %s cannot be served yet: %s", self._driver, error)
                await anyio.sleep(_OPEN_RETRY_SECONDS)
            else:
                return

    async def _open(self) -> None:
        self._boot_id = read_boot_id(self._settings.boot_id_file)
        for directory, mode in ((self._plugin_directory, DIRECTORY_MODE), (self._records_directory, 0o700)):
            try:
                atomic_files.make_directory(directory, mode)
            except OSError as error:
                raise CheckpointError(
                    f"{error.filename} cannot be created ({error.strerror}); is it mounted, and writable?"
                ) from error
        volatile, durable = self._settings.claim_directories(self._driver)
        mine, other = (durable, volatile) if self._facts.survives_reboot else (volatile, durable)
        self._store = RecordStore(
            mine,
            self._lock,
            durable=self._facts.survives_reboot,
            boot_id=self._boot_id,
            elsewhere=(other,),
            find_devices=partial(self._files.cdi.read_devices, pool=self._settings.node_name),
            report=self._on_unreadable_record,
        )
        await asyncio.to_thread(self._store.open)
        self._files.open()
        taken_over = await take_over_claims(
            self._supervisor.inherit,
            self._store,
            self._files,
            find_names=self._find_claim_names,
            driver=self._driver,
            directory=self._plugin_directory,
            boot_id=self._boot_id,
        )
        if taken_over:
            _log.info("driver %s: took over claims that another driver had prepared: %d", self._driver, taken_over)
        async with self._store:
            self._store.hold_removed(self._files.cdi.list_of_this_boot())
        self._supervisor.restore_from(self._exclusive_access)

    def _on_unreadable_record(self, record: UnreadableRecord) -> None:
        """Report from any thread: records are read in a worker at the start, and Events are queued in the loop's."""
        self._loop.call_soon_threadsafe(self._report, record)

    @asynccontextmanager
    async def _exclusive_access(self) -> AsyncIterator[tuple[HeldClaim, ...]]:
        """Yield the held claims for a backend's `restore`, while no other instance changes anything."""
        await self._lock.begin_restore(asyncio.get_running_loop().time() + _RESTORE_SECONDS)
        try:
            async with self._store:
                held = self._store.held()
            yield held
        finally:
            self._lock.end_restore()

    async def _read_held(self) -> None:
        """Pass to the backend what other instances have changed, unless the disk keeps it."""
        if self._facts.reads_held:
            with suppress(CheckpointError):
                async with self._store:
                    pass

    async def _follow_others(self) -> None:
        """Pass to the backend what another instance changes between its calls, as to the container runtime's plugin."""
        while True:
            if self._lock.is_alone():
                await anyio.sleep(_ALONE_SECONDS)
            else:
                await self._read_held()
                await anyio.sleep(_OVERLAP_SECONDS)

    # Claims: a pod starts or ends

    def _build_claims(self) -> ClaimPreparer:
        settings = self._settings
        for stage in Stage:
            self._context.metrics.records.labels(self._driver, stage.value).set_function(partial(self._count, stage))
        self._context.metrics.claims_left_over.labels(self._driver).set_function(self._count_left_over)
        claims = ClaimPreparer(
            driver=self._driver,
            boot_id=self._boot_id,
            client=self._context.client,
            store=self._store,
            backend=self._supervisor,
            plans=Method.PLAN in self._facts.methods,
            reads_held=self._facts.reads_held,
            one_pod=self._facts.one_pod,
            files=self._files,
            writes_metadata=settings.device_metadata,
            deadlines=Deadlines(
                prepare=max(settings.prepare_deadline, self._facts.deadline),
                unprepare=max(settings.unprepare_deadline, self._facts.deadline),
                fetch=settings.fetch_deadline,
            ),
            report=self._report if self._statuses is None else partial(self._report_and_wake, self._statuses),
        )
        for operation in Operation:
            in_flight = self._context.metrics.in_flight.labels(self._driver, operation.value)
            in_flight.set_function(partial(claims.queue.count, operation))
        return claims

    def _report_and_wake(self, statuses: DeviceStatusWriter, event: ClaimEvent) -> None:
        self._report(event)
        if isinstance(event, OperationEnded) and event.error is None:
            statuses.wake()

    def _build_garbage_collector(self, claims: ClaimPreparer) -> GarbageCollector:
        return GarbageCollector(
            driver=self._driver,
            client=self._context.client,
            find_names=self._find_claim_names,
            store=self._store,
            files=self._files,
            preparer=claims,
            kubelet_state=self._settings.kubelet_claims,
            period=self._settings.sweep_period,
            fetch_deadline=self._settings.fetch_deadline,
            report=self._report,
        )

    def _build_plugin(self, claims: ClaimPreparer) -> KubeletPlugin:
        return KubeletPlugin(
            self._driver,
            prepare=claims.prepare,
            unprepare=claims.unprepare,
            paths=self._sockets,
            health=self._board,
            health_period=self._settings.health_period,
            drain_grace=self._settings.drain_grace,
            report=self._on_kubelet_event,
        )

    async def _collect_garbage(self, garbage: GarbageCollector) -> None:
        await self._sockets_tried.wait()  # it looks up every held claim: half a second of CPU for 1000
        await garbage.run()

    def _on_kubelet_event(self, event: KubeletEvent) -> None:
        if isinstance(event, Serving | Waiting):
            self._sockets_tried.set()
        match event:
            case Waiting(problem=problem):
                self._missing(problem)
            case Registered() | Serving(registered=True):
                self._missing("")
            case RegistrationRefused(message=message):
                self._missing(f"the kubelet refuses it: {message}")
            case Serving():
                self._missing("the kubelet has not registered it yet")
        self._report(event)

    async def _find_claim_names(self) -> Names:
        found = await self._context.client.list(RESOURCE_CLAIMS, metadata_only=True)
        metadata = (claim["metadata"] for claim in found.items)
        return {one["uid"]: (one["namespace"], one["name"]) for one in metadata}

    # Called in the thread that writes the metrics, while the records change: a tuple is made in one step.

    def _count(self, stage: Stage) -> float:
        return sum(record.stage is stage and not record.left_over for record in tuple(self._store.records.values()))

    def _count_left_over(self) -> float:
        return sum(bool(record.left_over) for record in tuple(self._store.records.values()))

    # Devices: hardware changes

    def _start_publishing(self, claims: ClaimPreparer, parts: TaskGroup, front: TaskGroup) -> None:
        settings, supervisor = self._settings, self._supervisor
        cache = Informer(
            self._context.client,
            RESOURCE_SLICES,
            field_selector=slice_selector(self._driver, settings.node_name),
            report=self._report,
        )
        reconciler = SliceReconciler(
            self._context.client,
            cache,
            driver=self._driver,
            node=settings.node_name,
            started=time.time(),
            report=self._report,
        )

        shown: Published | None = None

        def publish(published: Published) -> None:
            nonlocal shown
            self._board.publish(published.health, updated=int(time.time()))
            if published is not shown:
                shown = published
                if published.known:
                    devices = {device.name: device for device in published.pool.devices}
                    sets = published.pool.counter_sets
                    claims.set_published({settings.node_name: PublishedPool(devices=devices, counter_sets=sets)})
                    claims.note_statuses(published.claim_statuses)
                    if self._statuses is not None:
                        self._statuses.publish(published.claim_statuses, published.health)
                reconciler.publish(published.pool)
                self._report.published(published)
                self._report.warned(find_warnings(self._store.records, published.claim_statuses))

        inventory = InventoryLoop(
            supervisor,
            driver=self._driver,
            pool=settings.node_name,
            policy=HealthPolicy(
                effect=_TAINTS[settings.health_taint],
                unhealthy_after=settings.unhealthy_after,
                healthy_after=settings.healthy_after,
                stale_effect=_TAINTS[settings.stale_taint],
                stale_after=settings.stale_after,
            ),
            additions=self._additions,
            rescan_period=settings.rescan_period,
            read_held=self._read_held,
            quarantined=lambda: {one.device: "CrashesBackend" for one in supervisor.quarantined()},
            publish=publish,
            report=self._report,
        )
        front.start_soon(cache.run, name=f"watch of the slices of {self._driver}")
        front.start_soon(reconciler.run, name=f"slices of {self._driver}")
        look = partial(watch_pool, driver=self._driver, node=settings.node_name, report=self._report)
        front.start_soon(look, self._context.client, name=f"pool of {self._driver}")
        parts.start_soon(inventory.run, name=f"inventory of {self._driver}")
        if Method.MEASURE in self._facts.methods:
            parts.start_soon(self._measure, name=f"measurements of {self._driver}")

    async def _measure(self) -> None:
        """Measure periodically. A failed measurement removes the old samples."""
        samples = self._context.metrics.samples
        while True:
            await self._read_held()
            try:
                samples.replace(self._facts.name, await self._supervisor.measure())
            except PydraError as error:
                _log.warning("measurements cannot be read: %s", error)
                samples.replace(self._facts.name, ())
            await anyio.sleep(self._settings.measure_period)


def _read_additions(settings: Settings, backend: str) -> Additions:
    """Return what the admin adds to the backend's devices; the node's topology is that of now."""
    overheads = settings.backend_overheads.get(backend, {})
    return Additions(
        near=read_near_nodes(Path("/sys")) if settings.numa_node_lists else None,
        overheads={
            name: Overhead(per_pod=one.per_pod, per_container=one.per_container) for name, one in overheads.items()
        },
    )


def read_boot_id(path: str) -> str:
    """Return the id of the running boot, which every record has: hardware and CDI files forget at a reboot.

    Raises:
        CheckpointError: the file cannot be read, or is empty.
    """
    try:
        with open(path, "rb") as file:
            boot_id = file.read(_BOOT_ID_BYTES).decode("ascii", errors="replace").strip()
    except OSError as error:
        raise CheckpointError(
            f"the boot id cannot be read from {path} ({error.strerror}); without it a reboot would go unnoticed: "
            "mount the host's /proc, or set the boot id file"
        ) from error
    if not boot_id:
        raise CheckpointError(f"{path} is empty; it must hold the id of the running boot")
    return boot_id
