"""Event handlers that record metrics and Kubernetes Events.

One handler for each kind of event that a component reports. Components write their own log lines, except for warnings
of claims; here is only what a dashboard counts, what `kubectl describe` shows, and the spans of claims, if tracing is
configured.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from pydra.agent.inventory_loop import NAMES_SHOWN, DevicesStale, list_by_message
from pydra.backends.supervisor_events import (
    AnswerRejected,
    BackendEnded,
    BackendReady,
    BackendRefused,
    BackendTrouble,
    Trouble,
)
from pydra.checkpoint.store import UnreadableRecord
from pydra.claim import ClaimRef
from pydra.claims.device_status import DeviceWarning, StatusWritten
from pydra.claims.gc import GarbageCollected
from pydra.claims.work_queue import OperationEnded, StepsLeftOver
from pydra.devices import DeviceHealth, HealthStatus
from pydra.errors import PydraError, Unavailable, Unsupported
from pydra.inventory.build_pool import Published
from pydra.kube.client import RequestDone
from pydra.kube.event_recorder import EventRequest, Subject
from pydra.kube.informer import WatchFailed
from pydra.kubelet.health_service import HealthStreams
from pydra.kubelet.plugin import Serving, Stopped, Waiting
from pydra.kubelet.registration import Registered, RegistrationRefused
from pydra.message_text import list_names
from pydra.observability.metrics import Metrics
from pydra.observability.tracing import Tracer
from pydra.slices.foreign_slices import ForeignSlices
from pydra.slices.reconciler import FieldsKept, PoolPublished, PublishFailed, SliceWritten
from pydra.slices.server_limitations import FieldsDropped

_log = logging.getLogger(__name__)
Record = Callable[[EventRequest], None]
OWN_REASONS = 32
"""Number of a backend's own reasons that are used as labels; beyond that, pydra's reason is."""


class Reports:
    """Handles any event of any component when called. `driver` is empty while the backend's driver is not known."""

    def __init__(
        self, metrics: Metrics, record: Record, *, node: str, driver: str = "", tracer: Tracer | None = None
    ) -> None:
        self._metrics = metrics
        self._record = record
        # The kubelet's own Events name its Node by name as uid, and kubectl describe looks for that.
        self._node = Subject(api_version="v1", kind="Node", name=node, uid=node)
        self._driver = driver
        self._tracer = tracer
        self._recorded: dict[str, Sequence[str]] = {}
        self._warnings: Sequence[DeviceWarning] = ()
        self._unhealthy: dict[str, str] = {}
        self._own_reasons: set[str] = set()
        self._gates_off: frozenset[str] = frozenset()

    def __call__(self, event: object) -> None:
        """Handle an event."""
        handler = self.HANDLERS.get(type(event))
        if handler is None:
            raise TypeError(f"no handler for {type(event).__name__}")
        handler(self, event)

    # The backend's process

    def _backend_ready(self, event: BackendReady) -> None:
        self._metrics.backend_up.labels(event.backend).set(1)
        if event.starts > 1:
            self._metrics.backend_restarts.labels(event.backend).inc()

    def _backend_ended(self, event: BackendEnded) -> None:
        self._metrics.backend_up.labels(event.backend).set(0)
        self._metrics.backend_crashes.labels(event.backend, event.diagnosis.how).inc()
        # The failed claim gets an Event of its own; the others need not know which one it was.
        self._record_event(self._node, "BackendDied", f"backend {event.backend}: {event.diagnosis.line}", "Run")

    def _backend_refused(self, event: BackendRefused) -> None:
        self._metrics.backend_up.labels(event.backend).set(0)
        if not event.invalid_settings:
            self._metrics.backend_violations.labels(event.backend).inc(len(event.violations))
        note = f"backend {event.backend} is not served: " + "; ".join(event.violations)
        self._record_event(
            self._node, "BackendSettings" if event.invalid_settings else "BackendContract", note, "Start"
        )

    def _backend_trouble(self, event: BackendTrouble) -> None:
        if event.trouble is Trouble.START:
            self._metrics.backend_up.labels(event.backend).set(0)
        follows = "; no claim is served until restore succeeds" if event.trouble is Trouble.RESTORE else ""
        action = "Start" if event.trouble in {Trouble.START, Trouble.RESTORE} else "Run"
        note = f"backend {event.backend}: {event.message}{follows}"
        self._record_event(self._node, event.trouble.value, note, action)

    def _answer_rejected(self, event: AnswerRejected) -> None:
        self._metrics.backend_violations.labels(event.backend).inc(len(event.violations))
        if event.claim is None:
            note = f"backend {event.backend} violated its contract: " + "; ".join(event.violations)
            self._record_event(self._node, "BackendContract", note, "Run")

    def not_served(self, why: str) -> None:
        """Report a valid backend that cannot be served with these settings."""
        self._record_event(self._node, "BackendNotServed", why, "Start")

    def not_yet_served(self, why: str) -> None:
        """Report a driver that cannot be served yet."""
        self._record_event(self._node, "DriverNotServed", why, "Start")

    # Claims

    def _operation_ended(self, event: OperationEnded) -> None:
        operation, error = event.operation.value, event.error
        outcome = ("ok", "") if error is None else (self._label(error), str(error.retryable).lower())
        self._metrics.calls.labels(event.driver, operation, *outcome).observe(event.seconds)
        if error is not None:
            self._record_event(claim_subject(event.ref), error.reason, str(error), operation)
        if self._tracer is not None:
            self._tracer.record(
                operation,
                seconds=event.seconds,
                timings=event.timings,
                failure=str(error or ""),
                driver=event.driver,
                claim=str(event.ref),
                uid=event.ref.uid,
            )

    def _steps_left_over(self, event: StepsLeftOver) -> None:
        note = f"driver {event.driver}: claim {event.ref} has ended, and is not completely undone: {event.reason}"
        self._record_event(self._node, "StepsLeftOver", note, "Unprepare")

    def _garbage_collected(self, event: GarbageCollected) -> None:
        failed = bool(event.problem or event.counts.failed)
        self._metrics.sweeps.labels(event.driver, "failed" if failed else "ok").inc()
        counts = event.counts
        for kind, count in (
            ("record", counts.claims_unprepared + counts.started_undone),
            ("cdi_file", counts.files_removed),
            ("cdi_restored", counts.files_restored),
        ):
            self._metrics.swept.labels(event.driver, kind).inc(count)

    def _unreadable_record(self, event: UnreadableRecord) -> None:
        what = f"driver {self._driver}: the record of claim {event.claim.uid} "
        if event.is_newer:
            note = f"{what}was written by a newer version of pydra and stays as it is: {event.why}"
            self._record_event(self._node, "CheckpointTooNew", note, "Read")
            return
        self._metrics.records_set_aside.labels(self._driver).inc()
        devices = ", ".join(device.device for device in event.claim.devices)
        held = (
            f"its devices ({devices}) stay held until the claim is unprepared" if devices else "its devices are unknown"
        )
        note = f"{what}cannot be read and was set aside as {event.path}: {event.why}; {held}"
        self._record_event(self._node, "CheckpointSetAside", note, "Read")

    # The kubelet

    def _registered(self, event: Registered) -> None:
        self._metrics.registered.labels(event.driver).set(1)

    def _registration_refused(self, event: RegistrationRefused) -> None:
        self._metrics.registered.labels(event.driver).set(0)
        self._record_event(self._node, "RegistrationRefused", f"driver {event.driver}: {event.message}", "Register")

    def _not_served(self, event: Waiting | Stopped) -> None:
        self._metrics.registered.labels(event.driver).set(0)

    def _serving(self, event: Serving) -> None:
        self._metrics.registered.labels(event.driver).set(event.registered)

    def _health_streams(self, event: HealthStreams) -> None:
        self._metrics.health_streams.labels(event.driver).set(event.count)

    # Slices and the API server

    def _slice_written(self, event: SliceWritten) -> None:
        self._metrics.slice_writes.labels(self._driver, event.kind.value).inc()

    def _pool_published(self, event: PoolPublished) -> None:
        self._metrics.slices.labels(self._driver).set(event.slices)

    def _publish_failed(self, event: PublishFailed) -> None:
        self._metrics.publish_failures.labels(self._driver, event.error.reason).inc()
        if not event.is_race:
            self._record_event(self._node, "PublishFailed", f"driver {self._driver}: {event.error}", "Publish")

    def _fields_dropped(self, event: FieldsDropped) -> None:
        if event.gates or event.refused:
            self._count_gates(event.gates, withheld=len(event.withheld) + len(event.refused))
        self._record_event(self._node, "FieldsDropped", f"driver {self._driver}: {event}", "Publish")

    def _fields_kept(self, event: FieldsKept) -> None:
        self._count_gates((), withheld=0)

    def _foreign_slices(self, event: ForeignSlices) -> None:
        self._metrics.foreign_slices.labels(self._driver).set(len(event.slices))
        if event.slices:
            self._record_event(self._node, "ForeignSlices", f"driver {self._driver}: {event}", "Publish")

    def _status_written(self, event: StatusWritten) -> None:
        self._metrics.claim_statuses.labels(event.driver, "failed" if event.problem else "ok").inc()
        if event.problem:
            note = f"driver {event.driver}: the status of its devices is not written: {event.problem}"
            self._record_event(claim_subject(event.ref), "DeviceStatusNotWritten", note, "Publish")

    def cluster_unsupported(self, error: Unsupported) -> None:
        """Report that the cluster is not supported."""
        self._metrics.cluster_unsupported.set(1)
        self._record_event(self._node, "ClusterUnsupported", f"nothing is served to this cluster: {error}", "Start")

    def cluster_supported(self) -> None:
        """Report that the cluster is supported."""
        self._metrics.cluster_unsupported.set(0)

    def _watch_failed(self, event: WatchFailed) -> None:
        # Also counted as a request. A refusal lasts until an admin grants the permission, and without a list no slice
        # is written, which nothing else would report.
        if not isinstance(event.error, Unavailable):
            self._metrics.publish_failures.labels(self._driver, event.error.reason).inc()
            self._record_event(self._node, "PublishFailed", f"driver {self._driver}: {event.error}", "Publish")

    def _request_done(self, event: RequestDone) -> None:
        self._metrics.requests.labels(event.verb, event.resource, event.status).observe(event.seconds)

    def _devices_stale(self, event: DevicesStale) -> None:
        self._metrics.devices_stale.labels(event.driver).set(bool(event.why))
        if event.why:
            self._record_event(self._node, "DevicesStale", f"driver {event.driver}: {event.why}", "Discover")
        else:
            note = f"driver {event.driver}: devices are discovered again"
            self._record_event(self._node, "DevicesCurrent", note, "Discover", warning=False)

    def published(self, published: Published) -> None:
        """Count devices by health; record Events for changes of health, and for devices that were left out."""
        for status in HealthStatus:
            count = sum(device.status is status for device in published.health)
            self._metrics.devices.labels(self._driver, status.value).set(count)
        self._metrics.devices_dropped.labels(self._driver).set(len(published.dropped))
        self._metrics.hardware_unreadable.labels(self._driver).set(len(published.unreadable))
        self._record_new("DeviceDropped", published.dropped)
        self._record_new("InventoryInvalid", published.problems)
        self._record_new("HardwareUnreadable", published.unreadable)
        self._record_health(published.health)

    def warned(self, warnings: Sequence[DeviceWarning]) -> None:
        """Log each warning that was not there the last time, and record an Event on its claim."""
        for one in warnings:
            if one not in self._warnings:
                _log.warning("claim %s: %s", one.ref, one.message)
                note = f"driver {self._driver}: {one.message}"
                self._record_event(claim_subject(one.ref), "DeviceWarning", note, "Discover")
        self._warnings = warnings

    def _record_new(self, reason: str, texts: Sequence[str]) -> None:
        """Record an Event for each text that was not there the last time: the same devices are left out each time."""
        for text in texts:
            if text not in self._recorded.get(reason, ()):
                self._record_event(self._node, reason, f"driver {self._driver}: {text}", "Discover")
        self._recorded[reason] = texts

    def _record_health(self, devices: Iterable[DeviceHealth]) -> None:
        """Record one Event for all devices that became unhealthy for the same reason, one for all that recovered.

        A device whose health is unknown keeps the last recorded state. One that has another problem than before (a lost
        GPU whose reset removed its partitions) is recorded again; the same problem in other words is not.
        """
        unhealthy, recovered, fallen = dict[str, str](), list[str](), list[DeviceHealth]()
        for one in devices:
            if one.status is HealthStatus.HEALTHY:
                if one.device in self._unhealthy:
                    recovered.append(one.device)
            elif one.status is HealthStatus.UNHEALTHY:
                unhealthy[one.device] = one.problem
                if self._unhealthy.get(one.device) != one.problem:
                    fallen.append(one)
            elif one.device in self._unhealthy:
                unhealthy[one.device] = self._unhealthy[one.device]
        for line in list_by_message(fallen):
            self._record_event(self._node, "DeviceUnhealthy", f"driver {self._driver}: {line}", "Discover")
        if recovered:
            note = f"driver {self._driver}: {list_names(recovered, NAMES_SHOWN)}"
            self._record_event(self._node, "DeviceHealthy", note, "Discover", warning=False)
        self._unhealthy = unhealthy

    def _count_gates(self, gates: Sequence[str], *, withheld: int) -> None:
        for gate in self._gates_off.union(gates):
            self._metrics.fields_dropped.labels(self._driver, gate).set(gate in gates)
        self._gates_off = frozenset(gates)
        self._metrics.devices_withheld.labels(self._driver).set(withheld)

    def _label(self, error: PydraError) -> str:
        """Return the error's reason as a label; their number is limited, since backends are not trusted."""
        pydras = type(error).reason
        if error.reason != pydras and len(self._own_reasons) < OWN_REASONS:
            self._own_reasons.add(error.reason)
        return error.reason if error.reason in self._own_reasons else pydras

    def _record_event(self, subject: Subject, reason: str, note: str, action: str, *, warning: bool = True) -> None:
        action = action[:1].upper() + action[1:]
        self._record(EventRequest(subject=subject, reason=reason, note=note, action=action, warning=warning))

    HANDLERS: ClassVar[Mapping[type, Callable[[Reports, Any], None]]] = {
        BackendReady: _backend_ready,
        BackendEnded: _backend_ended,
        BackendRefused: _backend_refused,
        BackendTrouble: _backend_trouble,
        AnswerRejected: _answer_rejected,
        OperationEnded: _operation_ended,
        StepsLeftOver: _steps_left_over,
        GarbageCollected: _garbage_collected,
        UnreadableRecord: _unreadable_record,
        Registered: _registered,
        RegistrationRefused: _registration_refused,
        Waiting: _not_served,
        Serving: _serving,
        Stopped: _not_served,
        HealthStreams: _health_streams,
        SliceWritten: _slice_written,
        PoolPublished: _pool_published,
        PublishFailed: _publish_failed,
        FieldsDropped: _fields_dropped,
        FieldsKept: _fields_kept,
        ForeignSlices: _foreign_slices,
        StatusWritten: _status_written,
        WatchFailed: _watch_failed,
        RequestDone: _request_done,
        DevicesStale: _devices_stale,
    }
    """By the event's exact type: each event of a component has one row."""


def claim_subject(ref: ClaimRef) -> Subject:
    """Return the claim as the subject of an Event."""
    return Subject(
        api_version="resource.k8s.io/v1", kind="ResourceClaim", name=ref.name, namespace=ref.namespace, uid=ref.uid
    )
