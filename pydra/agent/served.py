"""The parts of one driver that is served: claims, health, slices, sockets, started in the order of their needs.

    records and leftovers ── claims ── kubelet plugin      (down: a pod starts or ends)
    hardware ── telemetry ── slices, health                (up: hardware changes)

The sockets come last, since the kubelet calls as soon as it finds them, and go first.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import anyio
from anyio.abc import TaskGroup
from msgspec.structs import replace

from pydra import disk
from pydra.agent.inheritance import Names, take_over
from pydra.agent.inventory_loop import InventoryLoop
from pydra.agent.measuring import run_measuring
from pydra.agent.reports import Reports
from pydra.agent.surroundings import Surroundings
from pydra.backends.events import BackendFacts
from pydra.backends.supervisor import BackendSupervisor
from pydra.backends.wire import Method
from pydra.cdi.host_paths import resolve
from pydra.cdi.store import CdiStore
from pydra.checkpoint.boot import read_boot_id
from pydra.checkpoint.lock import InstanceLock
from pydra.checkpoint.record import Stage
from pydra.checkpoint.store import CheckpointDirectory
from pydra.claim import PreparedDevice
from pydra.claims.execution import Execution
from pydra.claims.gc import Sweep
from pydra.claims.holdings import Holdings
from pydra.claims.outcome import ClaimRef
from pydra.claims.outside import Limits, StoredCdiFiles
from pydra.claims.preparer import ClaimPreparer
from pydra.claims.reports import ClaimEvent, ClaimFailed, ClaimUnprepared
from pydra.claims.stages import no_span
from pydra.devices import TaintEffect
from pydra.errors import CheckpointError, DeviceInUse, PydraError
from pydra.inventory import HealthPolicy, Published
from pydra.kube.informer import Informer
from pydra.kube.resources import RESOURCE_CLAIMS, RESOURCE_SLICES, JsonObject
from pydra.kubelet.health_service import HealthBoard
from pydra.kubelet.plugin import DIRECTORY_MODE, KubeletEvent, KubeletPlugin, Serving, Waiting
from pydra.kubelet.registration import Registered, RegistrationRefused
from pydra.kubelet.sockets import plan_socket_paths
from pydra.observability.logging import logging_fields
from pydra.settings import HealthTaint
from pydra.slices.reconciler import SliceReconciler, slice_selector

_log = logging.getLogger(__name__)
_OPEN_RETRY = 5.0
OutcomeT = TypeVar("OutcomeT")


class Served:
    """One driver's parts. `missing` is told what keeps the kubelet from using it, in words, and when nothing does."""

    def __init__(
        self,
        driver: str,
        facts: BackendFacts,
        supervisor: BackendSupervisor,
        around: Surroundings,
        missing: Callable[[str], None],
    ) -> None:
        """Raises SettingsError when the driver's sockets cannot be where the settings put them."""
        settings = around.settings
        self._driver = driver
        self._facts = facts
        self._supervisor = supervisor
        self._around = around
        self._settings = settings
        self._missing = missing
        self._report = Reports(around.metrics, around.record, node=settings.node_name, driver=driver)
        self._directory = settings.plugin_directory(driver)
        self._checkpoints = CheckpointDirectory(f"{self._directory}/claims", report=self._report)
        self._cdi = CdiStore(settings.cdi_dir, driver)
        self._lock = InstanceLock(f"{self._directory}/instance.lock")
        self._board = HealthBoard()
        self._sockets_tried = anyio.Event()
        # Refused here, where it costs this backend only; what is raised beside running parts ends the agent.
        plan_socket_paths(
            driver,
            registry_directory=settings.registry_directory,
            plugin_directory=self._directory,
            pod_uid=settings.pod_uid,
        )

    async def run(self, stop: anyio.Event) -> None:
        """Serve, once `open` has returned, until `stop`; then until the calls in flight have ended."""
        with logging_fields(backend=self._facts.name):  # which every task below inherits, and the kubelet's calls
            await self._serve(stop)

    async def _serve(self, stop: anyio.Event) -> None:
        async with anyio.create_task_group() as parts:
            claims = self._build_claims(parts)
            self._sweep = self._build_sweep(claims)
            parts.start_soon(self._run_sweep, name=f"sweep of {self._driver}")
            async with anyio.create_task_group() as front:
                # Slices are written until `stop` only: what an instance that takes over publishes is not undone.
                self._start_telemetry(parts, front)
                front.start_soon(self._build_plugin(claims).run, name=f"kubelet plugin {self._driver}")
                await stop.wait()
                deadline = anyio.current_time() + self._settings.drain_grace
                front.cancel_scope.cancel()
            with anyio.CancelScope(deadline=deadline):
                await claims.wait_idle()  # claims for which the kubelet no longer waits have the rest of the grace
            parts.cancel_scope.cancel()

    async def open(self) -> None:
        """Read what earlier instances left. A disk that cannot be used is said, and tried again until it can."""
        while True:
            try:
                self._boot_id = read_boot_id(self._settings.boot_id_file)
                self._make_directory()
                # Under the lock: another instance that serves now is not disturbed.
                async with self._lock.hold():
                    await self._checkpoints.open()
                    self._cdi.open()
                    await self._take_over()
            except PydraError as error:
                self._missing(str(error))
                self._report.not_yet_served(f"driver {self._driver} cannot be served yet: {error}")
                _log.error("driver %s cannot be served yet: %s", self._driver, error)
                await anyio.sleep(_OPEN_RETRY)
            else:
                return

    async def _take_over(self) -> None:
        taken = await take_over(
            self._supervisor.inherit,
            self._checkpoints,
            find_names=self._find_claim_names,
            driver=self._driver,
            directory=self._directory,
            boot_id=self._boot_id,
            wall_clock=time.time,
        )
        if taken:
            _log.info("driver %s: took over %d claims that another driver had prepared", self._driver, taken)

    def _make_directory(self) -> None:
        try:
            disk.make_directory(self._directory, DIRECTORY_MODE)
        except OSError as error:
            raise CheckpointError(
                f"{error.filename} cannot be created ({error.strerror}); is the kubelet's root mounted, and writable?"
            ) from error

    def _build_claims(self, parts: TaskGroup) -> ClaimPreparer:
        settings = self._settings
        limits = Limits(
            fetch=settings.fetch_deadline, prepare=settings.prepare_deadline, unprepare=settings.unprepare_deadline
        )
        execution = Execution(
            driver=self._driver,
            boot_id=self._boot_id,
            backend=self._supervisor,
            checkpoints=self._checkpoints,
            cdi=StoredCdiFiles(self._cdi),
            read_present=self._read_present,
            limits=limits,
            wall_clock=time.time,
        )
        for stage in Stage:
            self._around.metrics.records.labels(self._driver, stage.value).set_function(partial(self._count, stage))
        return ClaimPreparer(
            driver=self._driver,
            boot_id=self._boot_id,
            tasks=parts,
            fetch_claim=self._fetch_claim,
            holdings=Holdings(self._checkpoints, self._lock),
            execution=execution,
            limits=limits,
            report=self._hear_claims,
            span=self._around.tracer.span if self._around.tracer else no_span,
        )

    def _start_telemetry(self, parts: TaskGroup, front: TaskGroup) -> None:
        settings, supervisor = self._settings, self._supervisor
        cache = Informer(
            self._around.client,
            RESOURCE_SLICES,
            field_selector=slice_selector(self._driver, settings.node_name),
            report=self._report,
        )
        reconciler = SliceReconciler(
            self._around.client,
            cache,
            driver=self._driver,
            node=settings.node_name,
            started=time.time(),
            report=self._report,
        )

        shown: Published | None = None

        def publish(published: Published) -> None:
            nonlocal shown
            now = int(time.time())
            self._board.publish(tuple(replace(one, updated=now) for one in published.health))
            if published is not shown:
                shown = published
                reconciler.publish(published.pool)
                self._report.published(published)

        telemetry = InventoryLoop(
            supervisor,
            driver=self._driver,
            pool=settings.node_name,
            policy=HealthPolicy(
                effect=_TAINTS[settings.health_taint],
                unhealthy_after=settings.unhealthy_after,
                healthy_after=settings.healthy_after,
            ),
            rescan_period=settings.rescan_period,
            quarantined=lambda: {one.device: "KillsBackend" for one in supervisor.quarantined()},
            publish=publish,
        )
        front.start_soon(cache.run, name=f"watch of the slices of {self._driver}")
        front.start_soon(reconciler.run, name=f"slices of {self._driver}")
        parts.start_soon(telemetry.run, name=f"telemetry of {self._driver}")
        if Method.MEASURE in self._facts.methods:
            keep = partial(self._around.metrics.samples.replace, self._facts.name)
            parts.start_soon(partial(run_measuring, supervisor, period=settings.measure_period, keep=keep))

    def _build_sweep(self, claims: ClaimPreparer) -> Sweep:
        return Sweep(
            driver=self._driver,
            boot_id=self._boot_id,
            fetch_claim=self._fetch_claim_metadata,
            checkpoints=self._checkpoints,
            cdi=StoredCdiFiles(self._cdi),
            service=claims,
            period=self._settings.sweep_period,
            fetch_deadline=self._settings.fetch_deadline,
            report=self._report,
        )

    def _build_plugin(self, claims: ClaimPreparer) -> KubeletPlugin:
        return KubeletPlugin(
            self._driver,
            prepare=_claim_by_claim(claims.prepare),
            unprepare=_claim_by_claim(claims.unprepare),
            registry_directory=self._settings.registry_directory,
            plugin_directory=self._directory,
            health=self._board,
            pod_uid=self._settings.pod_uid,
            health_period=self._settings.health_period,
            drain_grace=self._settings.drain_grace,
            report=self._hear_kubelet,
        )

    async def _run_sweep(self) -> None:
        await self._sockets_tried.wait()  # it asks for every claim that is held: half a second of CPU for 1000
        await self._sweep.run()

    def _hear_kubelet(self, event: KubeletEvent) -> None:
        if isinstance(event, Serving | Waiting):
            self._sockets_tried.set()
        match event:
            case Waiting(problem=problem):
                self._missing(problem)
            case Registered():
                self._missing("")
            case RegistrationRefused(message=message):
                self._missing(f"the kubelet refuses it: {message}")
            case Serving():
                self._missing("the kubelet has not registered it yet")
        self._report(event)

    def _hear_claims(self, event: ClaimEvent) -> None:
        match event:
            case ClaimUnprepared(ref=ref):
                self._supervisor.release(ref.uid)
            case ClaimFailed(error=DeviceInUse()):
                self._sweep.hint()  # whoever holds the device may be gone
        self._report(event)

    async def _fetch_claim(self, ref: ClaimRef) -> JsonObject:
        return await self._around.client.get(
            RESOURCE_CLAIMS, ref.name, namespace=ref.namespace, deadline=self._settings.fetch_deadline
        )

    async def _fetch_claim_metadata(self, ref: ClaimRef) -> JsonObject:
        return await self._around.client.get(
            RESOURCE_CLAIMS,
            ref.name,
            namespace=ref.namespace,
            metadata_only=True,
            deadline=self._settings.fetch_deadline,
        )

    async def _find_claim_names(self) -> Names:
        found = await self._around.client.list(RESOURCE_CLAIMS, metadata_only=True)
        metadata = (claim["metadata"] for claim in found.items)
        return {one["uid"]: (one["namespace"], one["name"]) for one in metadata}

    async def _read_present(self, prepared: Sequence[PreparedDevice]) -> tuple[PreparedDevice, ...]:
        return await resolve(prepared, root=self._settings.host_root)

    def _count(self, stage: Stage) -> float:
        return sum(record.stage is stage for record in self._checkpoints.records().values())


def _claim_by_claim(
    operation: Callable[[Sequence[ClaimRef]], Awaitable[Mapping[str, OutcomeT]]],
) -> Callable[[ClaimRef], asyncio.Future[OutcomeT]]:
    """The preparer's operation in the form that the kubelet plugin calls."""

    async def serve(ref: ClaimRef) -> OutcomeT:
        return (await operation([ref]))[ref.uid]

    return lambda ref: asyncio.get_running_loop().create_task(serve(ref))


_TAINTS = {
    HealthTaint.NONE: None,
    HealthTaint.NO_SCHEDULE: TaintEffect.NO_SCHEDULE,
    HealthTaint.NO_EXECUTE: TaintEffect.NO_EXECUTE,
}
