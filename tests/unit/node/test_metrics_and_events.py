"""Reports: every event of every part is counted or recorded, and the words reach the right object."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from pydra.agent.inventory_loop import DevicesStale
from pydra.agent.metrics_and_events import OWN_REASONS, Reports
from pydra.backends.supervisor_events import BackendEvent
from pydra.checkpoint.store import UnreadableRecord
from pydra.claim import AllocatedDevice, Claim, ClaimRef
from pydra.claims.device_status import DeviceWarning
from pydra.claims.gc import GarbageCollected, GarbageCounts
from pydra.claims.work_queue import ClaimEvent, Operation, OperationEnded, StepsLeftOver
from pydra.devices import DeviceHealth, HealthStatus, Pool
from pydra.errors import (
    ClaimError,
    Conflict,
    Invalid,
    InvalidConfig,
    KubeError,
    NotFound,
    Unavailable,
    Unsupported,
    of_call,
)
from pydra.inventory.build_pool import Published
from pydra.kube.client import RequestDone
from pydra.kube.event_recorder import EventRequest
from pydra.kube.informer import WatchFailed
from pydra.kubelet.health_service import HealthStreams
from pydra.kubelet.plugin import KubeletEvent
from pydra.kubelet.registration import Registered, RegistrationRefused
from pydra.observability.metrics import Metrics
from pydra.slices.foreign_slices import ForeignSlices
from pydra.slices.reconciler import FieldsKept, PublishFailed, SliceEvent
from pydra.slices.server_limitations import FieldsDropped

DRIVER = "sim.pydra.dev"
REF = ClaimRef(uid="u-1", namespace="team", name="gpu")
CLAIM = Claim(uid="u-9", namespace="", name="", devices=(AllocatedDevice(request="", pool="node-1", device="gpu-0"),))
PREPARES = f'pydra_claim_operation_duration_seconds_count{{driver="{DRIVER}",operation="prepare",result='


class Desk:
    """Reports over fresh metrics, and what was said."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.metrics.announce_driver(DRIVER)
        self.requests: list[EventRequest] = []
        self.report = Reports(self.metrics, self.requests.append, node="node-1", driver=DRIVER)

    def value(self, series: str) -> float:
        """The value of a series, given with its labels."""
        for line in self.metrics.text().decode().splitlines():
            if line.startswith(f"{series} "):
                return float(line.rpartition(" ")[2])
        raise AssertionError(f"no series {series}")


@pytest.fixture
def desk() -> Desk:
    return Desk()


def kinds(*unions: Any) -> list[type]:
    """The classes that a union, or a single alias, stands for."""
    return [kind for union in unions for kind in (get_args(union) or (union,))]


EVENTS = kinds(
    BackendEvent, ClaimEvent, GarbageCollected, UnreadableRecord, KubeletEvent, SliceEvent, RequestDone, WatchFailed
)


def test_every_event_of_every_part_has_a_handler() -> None:
    assert [kind for kind in EVENTS if kind not in Reports.HANDLERS] == []


def test_an_event_of_nobody_is_a_bug_that_is_not_passed_over(desk: Desk) -> None:
    with pytest.raises(TypeError, match="no handler for str"):
        desk.report("surprise")


def test_a_warning_is_reported_on_its_claim_and_logged_once_as_long_as_it_stays(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = (DeviceWarning(ref=REF, message=text) for text in ("slow", "slower"))
    for warnings in ((one,), (one, other), (), (one,)):
        desk.report.warned(warnings)
    told = ("slow", "slower", "slow")
    assert [(said.subject.name, said.reason, said.note.rpartition(": ")[2]) for said in desk.requests] == [
        ("gpu", "DeviceWarning", text) for text in told
    ]
    assert [one.getMessage() for one in caplog.records] == [f"claim {REF}: {text}" for text in told]


def test_a_prepare_is_counted_with_its_result(desk: Desk) -> None:
    desk.report(OperationEnded(driver=DRIVER, operation=Operation.PREPARE, ref=REF, seconds=0.02))
    assert desk.value(f'{PREPARES}"ok",retryable=""}}') == 1
    assert desk.requests == []


def test_a_failed_claim_is_counted_by_reason_and_reported_on_the_claim(desk: Desk) -> None:
    error = InvalidConfig(["$.clockMHz: 99999 is too large"])
    desk.report(OperationEnded(driver=DRIVER, operation=Operation.PREPARE, ref=REF, error=error, seconds=0.01))
    assert desk.value(f'{PREPARES}"InvalidConfig",retryable="false"}}') == 1
    (request,) = desk.requests
    assert (request.subject.kind, request.subject.namespace, request.subject.name) == ("ResourceClaim", "team", "gpu")
    assert request.subject.uid == "u-1"
    assert request.reason == "InvalidConfig"
    assert "clockMHz" in request.note
    assert request.warning


def test_a_backends_own_reasons_are_labels_as_long_as_they_are_few(desk: Desk) -> None:
    for number in range(OWN_REASONS + 3):
        error = of_call(ClaimError("no"), reason=f"Invented{number}")
        desk.report(OperationEnded(driver=DRIVER, operation=Operation.PREPARE, ref=REF, error=error, seconds=0.01))
    end = ',retryable="true"}'
    for name in ("Invented0", f"Invented{OWN_REASONS - 1}"):
        assert desk.value(f'{PREPARES}"{name}"{end}') == 1
    assert desk.value(f'{PREPARES}"ClaimFailed"{end}') == 3
    assert f"Invented{OWN_REASONS}" not in desk.metrics.text().decode()
    assert desk.requests[-1].reason == f"Invented{OWN_REASONS + 2}", "the Event has the backend's word all the same"


def test_slices_that_may_not_be_listed_are_reported_on_the_node_and_a_silent_server_is_not(desk: Desk) -> None:
    for error in (KubeError("list resourceslices.resource.k8s.io: forbidden"), Unavailable("no answer in time")):
        desk.report(WatchFailed(resource="resourceslices.resource.k8s.io", error=error, pause=1.0))
    (request,) = desk.requests
    assert (request.subject.kind, request.subject.name, request.reason) == ("Node", "node-1", "PublishFailed")
    assert request.note == f"driver {DRIVER}: list resourceslices.resource.k8s.io: forbidden"
    series = f'pydra_resourceslice_publish_failures_total{{driver="{DRIVER}",reason='
    assert desk.value(f'{series}"KubernetesAPI"}}') == 1


def test_a_write_that_another_one_forestalled_is_an_event_only_if_it_stays(desk: Desk) -> None:
    for error, pause in (
        (NotFound("a went"), 0.1),
        (Conflict("b changed"), 0.05),
        (Invalid("c"), 5.0),
        (Conflict("d"), 3.0),
    ):
        desk.report(PublishFailed(error=error, pause=pause))
    assert [request.note for request in desk.requests] == [f"driver {DRIVER}: {text}" for text in ("c", "d")]


def test_a_sweep_counts_what_it_put_right(desk: Desk) -> None:
    counts = GarbageCounts(claims_unprepared=2, started_undone=1, files_removed=3, files_restored=4)
    desk.report(GarbageCollected(driver=DRIVER, counts=counts))
    assert desk.value(f'pydra_sweeps_total{{driver="{DRIVER}",result="ok"}}') == 1
    assert desk.value(f'pydra_swept_total{{driver="{DRIVER}",kind="record"}}') == 3
    assert desk.value(f'pydra_swept_total{{driver="{DRIVER}",kind="cdi_file"}}') == 3
    assert desk.value(f'pydra_swept_total{{driver="{DRIVER}",kind="cdi_restored"}}') == 4


def test_a_sweep_that_could_not_look_at_everything_failed(desk: Desk) -> None:
    desk.report(GarbageCollected(driver=DRIVER, counts=GarbageCounts(), problem="the API server is down"))
    assert desk.value(f'pydra_sweeps_total{{driver="{DRIVER}",result="failed"}}') == 1


def test_a_record_that_was_set_aside_is_reported_on_the_node_with_its_file(desk: Desk) -> None:
    desk.report(
        UnreadableRecord(claim=CLAIM, path="/run/d/claims/corrupt/u-9", why="its checksum is wrong"),
    )
    assert desk.value(f'pydra_checkpoint_records_set_aside_total{{driver="{DRIVER}"}}') == 1
    (request,) = desk.requests
    assert (request.subject.kind, request.subject.name) == ("Node", "node-1")
    assert "/run/d/claims/corrupt/u-9" in request.note
    assert "its devices (gpu-0) stay held until the claim is unprepared" in request.note


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (UnreadableRecord(claim=CLAIM, path="/run/d/u-9.json", why="schema 3", is_newer=True), "CheckpointTooNew"),
        (StepsLeftOver(driver=DRIVER, ref=REF, reason="the GPU is lost"), "StepsLeftOver"),
    ],
)
def test_what_stays_on_the_node_is_an_event_of_the_node(desk: Desk, event: object, reason: str) -> None:
    desk.report(event)
    assert [(one.subject.kind, one.reason) for one in desk.requests] == [("Node", reason)]
    assert desk.value(f'pydra_checkpoint_records_set_aside_total{{driver="{DRIVER}"}}') == 0


def test_registration_is_a_gauge_and_a_refusal_an_event(desk: Desk) -> None:
    desk.report(Registered(driver=DRIVER))
    assert desk.value(f'pydra_registered{{driver="{DRIVER}"}}') == 1
    desk.report(RegistrationRefused(driver=DRIVER, message="no supported version"))
    assert desk.value(f'pydra_registered{{driver="{DRIVER}"}}') == 0
    assert "no supported version" in desk.requests[0].note
    desk.report(HealthStreams(driver=DRIVER, count=2))
    assert desk.value(f'pydra_health_streams{{driver="{DRIVER}"}}') == 2


def test_dropped_fields_name_the_gates_that_are_off_until_they_are_kept(desk: Desk) -> None:
    series = f'pydra_resourceslice_fields_dropped{{driver="{DRIVER}",feature='
    withheld = f'pydra_devices_withheld{{driver="{DRIVER}"}}'
    desk.report(FieldsDropped(pool="node-1", gates=("DRADeviceTaints", "DRAListTypeAttributes"), withheld=("a", "b")))
    assert desk.value(f'{series}"DRADeviceTaints"}}') == desk.value(f'{series}"DRAListTypeAttributes"}}') == 1
    assert desk.value(withheld) == 2
    assert "DRADeviceTaints" in desk.requests[0].note
    desk.report(FieldsDropped(pool="node-1", gates=()))
    assert desk.value(f'{series}"DRADeviceTaints"}}') == 1, "something else was dropped besides"
    desk.report(FieldsDropped(pool="node-1", gates=("DRAListTypeAttributes",)))
    assert desk.value(f'{series}"DRADeviceTaints"}}') == 0
    assert desk.value(f'{series}"DRAListTypeAttributes"}}') == 1
    assert desk.value(withheld) == 0
    desk.report(FieldsKept())
    assert desk.value(f'{series}"DRAListTypeAttributes"}}') == 0


def test_foreign_slices_are_counted_and_named(desk: Desk) -> None:
    series = f'pydra_foreign_resourceslices{{driver="{DRIVER}"}}'
    desk.report(ForeignSlices(pool="node-1", slices=("a (of node node-2)",)))
    assert desk.value(series) == 1
    assert "a (of node node-2)" in desk.requests[0].note
    desk.report(ForeignSlices(pool="node-1", slices=()))
    assert (desk.value(series), len(desk.requests)) == (0, 1)


def test_a_cluster_that_is_not_supported_is_reported_on_the_node_and_a_gauge(desk: Desk) -> None:
    desk.report.cluster_unsupported(Unsupported("this cluster runs Kubernetes v1.33.2"))
    assert desk.value("pydra_cluster_unsupported") == 1
    (request,) = desk.requests
    assert (request.subject.kind, request.reason) == ("Node", "ClusterUnsupported")
    assert "v1.33.2" in request.note
    desk.report.cluster_supported()
    assert desk.value("pydra_cluster_unsupported") == 0


def test_devices_are_counted_by_health_and_those_left_out_are_reported(desk: Desk) -> None:
    health = tuple(
        DeviceHealth(pool="node-1", device=name, status=status)
        for name, status in (("a", HealthStatus.HEALTHY), ("b", HealthStatus.UNHEALTHY), ("c", HealthStatus.HEALTHY))
    )
    published = Published(
        pool=Pool(name="node-1"),
        health=health,
        dropped=("device 'X' is not published",),
        problems=("device 'Y': at most 16 taints are allowed",),
    )
    for _ in range(2):
        desk.report.published(published)
    assert desk.value(f'pydra_devices{{driver="{DRIVER}",health="Healthy"}}') == 2
    assert desk.value(f'pydra_devices{{driver="{DRIVER}",health="Unhealthy"}}') == 1
    assert desk.value(f'pydra_devices_dropped{{driver="{DRIVER}"}}') == 1
    assert [(one.reason, one.note.partition(": ")[2]) for one in desk.requests] == [
        ("DeviceDropped", "device 'X' is not published"),
        ("InventoryInvalid", "device 'Y': at most 16 taints are allowed"),
        ("DeviceUnhealthy", "b: the backend gives no reason"),
    ]


def test_hardware_that_cannot_be_read_is_counted_and_reported_once_for_each_text(desk: Desk) -> None:
    texts = ("the GPU at 0000:53:00.0 is not published: it is lost", "not all partitions of gpu-1 can be read")
    for published in (texts, texts[:1], texts[:1]):
        desk.report.published(Published(pool=Pool(name="node-1"), unreadable=published))
    assert desk.value(f'pydra_hardware_unreadable{{driver="{DRIVER}"}}') == 1
    assert [(one.reason, one.subject.kind) for one in desk.requests] == [("HardwareUnreadable", "Node")] * 2
    assert [one.note for one in desk.requests] == [f"driver {DRIVER}: {text}" for text in texts]


def test_health_is_reported_when_it_changes_and_once_for_all_devices_with_the_same_reason() -> None:
    desk = Desk()
    good, bad, unknown = HealthStatus.HEALTHY, HealthStatus.UNHEALTHY, HealthStatus.UNKNOWN
    looks: tuple[dict[str, tuple[HealthStatus, str]], ...] = (
        {"a": (good, ""), "b": (good, ""), "c": (bad, "was so before")},
        {"a": (bad, "too hot"), "b": (bad, "too hot"), "c": (bad, "in other words")},
        {"a": (unknown, "the backend is down"), "b": (unknown, ""), "c": (unknown, "")},
        {"a": (bad, "too hot"), "b": (good, "")},
        {"a": (good, ""), "c": (good, "")},
    )
    for look in looks:
        health = tuple(
            DeviceHealth(pool="node-1", device=name, status=status, message=message)
            for name, (status, message) in look.items()
        )
        desk.report.published(Published(pool=Pool(name="node-1"), health=health, problems=()))
    recorded = [(one.reason, one.warning, one.note.removeprefix(f"driver {DRIVER}: ")) for one in desk.requests]
    assert recorded == [
        ("DeviceUnhealthy", True, "c: was so before"),
        ("DeviceUnhealthy", True, "a, b: too hot"),
        ("DeviceHealthy", False, "b"),
        ("DeviceHealthy", False, "a"),
    ]


def test_an_unhealthy_device_that_has_another_problem_is_reported_again(desk: Desk) -> None:
    for problem, message in (
        ("gpu-lost", "it is lost"),
        ("gpu-lost", "lost for 9 s"),
        ("partition-gone", "it is gone"),
    ):
        device = DeviceHealth(
            pool="node-1", device="a", status=HealthStatus.UNHEALTHY, message=message, problem=problem
        )
        desk.report.published(Published(pool=Pool(name="node-1"), health=(device,)))
    notes = [one.note.removeprefix(f"driver {DRIVER}: ") for one in desk.requests]
    assert notes == ["a: it is lost", "a: it is gone"]


def test_devices_that_cannot_be_discovered_are_reported_on_the_node_and_counted(desk: Desk) -> None:
    desk.report(DevicesStale(driver=DRIVER, why="devices have not been discovered for 61 s: driver not loaded"))
    assert desk.value(f'pydra_devices_stale{{driver="{DRIVER}"}}') == 1
    desk.report(DevicesStale(driver=DRIVER))
    assert desk.value(f'pydra_devices_stale{{driver="{DRIVER}"}}') == 0
    assert [(one.subject.kind, one.reason, one.warning) for one in desk.requests] == [
        ("Node", "DevicesStale", True),
        ("Node", "DevicesCurrent", False),
    ]
    assert "driver not loaded" in desk.requests[0].note


def test_a_device_that_is_left_out_at_every_look_is_reported_once() -> None:
    desk = Desk()
    for problems in (("X is wrong",), ("X is wrong",), ("X is wrong", "Y is too"), (), ("X is wrong",)):
        desk.report.published(Published(pool=Pool(name="node-1"), health=(), problems=problems))
    assert [request.note.removeprefix(f"driver {DRIVER}: ") for request in desk.requests] == [
        "X is wrong",
        "Y is too",
        "X is wrong",
    ]
