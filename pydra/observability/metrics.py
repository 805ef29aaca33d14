"""Definitions of the agent's Prometheus metrics.

One registry has them all, and each series exists from the start, at zero. Only failed operations on claims appear with
their first failure, since there is a histogram for each reason. `pydra.agent.metrics_and_events` does the counting.
Conventions: base units, `_total` for counters, label values from small closed sets (claims are never labels).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from pydra.devices import HealthStatus, Sample, find_left_out, list_labels
from pydra.errors import KubeError

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40)
_CRASHES = ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGKILL", "SIGSYS", "exit", "hang", "memory")


class ProcessMetrics:
    """The metrics of one process of pydra: those that every process has, and a way to make others."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.build = self.gauge("build_info", "Always 1; the version is in the label.", "version")

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        """Make a counter."""
        return Counter(f"pydra_{name}", text, labels, registry=self.registry)

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        """Make a gauge."""
        return Gauge(f"pydra_{name}", text, labels, registry=self.registry)

    def histogram(self, name: str, text: str, *labels: str, buckets: Sequence[float] = _SECONDS) -> Histogram:
        """Make a histogram of seconds."""
        return Histogram(f"pydra_{name}", text, labels, buckets=buckets, registry=self.registry)

    def text(self) -> bytes:
        """Return all series in the Prometheus text format."""
        return bytes(generate_latest(self.registry))


class Metrics(ProcessMetrics):
    """The agent's metrics; `driver` labels are names of drivers, `backend` labels names of backends."""

    def __init__(self) -> None:
        super().__init__()
        counter, gauge, histogram = self.counter, self.gauge, self.histogram
        self.calls = histogram(
            "claim_operation_duration_seconds",
            "How long one claim's prepare or unprepare took, by result: ok, or the reason of the error. Of errors, "
            "retryable is true unless the claim must change.",
            "driver",
            "operation",
            "result",
            "retryable",
        )
        self.in_flight = gauge(
            "claim_operations_in_flight", "Claims that are being prepared or unprepared.", "driver", "operation"
        )
        self.registered = gauge("registered", "1 while the driver is registered with the kubelet.", "driver")
        self.health_streams = gauge("health_streams", "Open health streams of the kubelet.", "driver")

        self.backend_up = gauge("backend_up", "1 while the backend's process serves calls.", "backend")
        self.backend_restarts = counter("backend_restarts", "Restarts of the backend's process.", "backend")
        self.backend_crashes = counter(
            "backend_crashes",
            "Unexpected ends of the backend's process, by signal (hang, memory: it was killed; exit: it ended).",
            "backend",
            "signal",
        )
        self.backend_violations = counter(
            "backend_contract_violations", "Answers of the backend that violated the contract.", "backend"
        )

        self.devices = gauge("devices", "Devices by health.", "driver", "health")
        self.devices_dropped = gauge(
            "devices_dropped", "Devices that are left out because they violate the API's rules.", "driver"
        )
        self.hardware_unreadable = gauge(
            "hardware_unreadable", "Pieces of hardware that are not published because they cannot be read.", "driver"
        )
        self.devices_stale = gauge(
            "devices_stale", "1 while the devices have not been discovered for longer than staleAfter.", "driver"
        )
        self.slices = gauge("resourceslices", "ResourceSlices that should exist.", "driver")
        self.foreign_slices = gauge(
            "foreign_resourceslices", "ResourceSlices of other nodes, or of none, in the pool of this node.", "driver"
        )
        self.slice_writes = counter("resourceslice_writes", "Writes of ResourceSlices.", "driver", "verb")
        self.publish_failures = counter(
            "resourceslice_publish_failures", "Attempts to publish that failed, by reason.", "driver", "reason"
        )
        self.fields_dropped = gauge(
            "resourceslice_fields_dropped",
            "1 while the API server drops fields because this feature gate is off.",
            "driver",
            "feature",
        )
        self.devices_withheld = gauge(
            "devices_withheld",
            "Devices that the API server refuses, or not published because it drops fields that make them safe.",
            "driver",
        )
        self.cluster_unsupported = gauge(
            "cluster_unsupported", "1 while the cluster is too old for pydra, or does not serve resource.k8s.io/v1."
        )
        self.requests = histogram(
            "kubernetes_request_duration_seconds",
            "Requests to the API server, by HTTP status (0: no answer).",
            "verb",
            "resource",
            "status",
        )

        self.records = gauge("checkpoint_records", "Claims with a record, by stage.", "driver", "stage")
        self.records_set_aside = counter(
            "checkpoint_records_set_aside", "Records that could not be read and were set aside.", "driver"
        )
        self.claims_left_over = gauge(
            "claims_left_over", "Claims that have ended, and of which steps cannot be undone yet.", "driver"
        )
        self.claim_statuses = counter(
            "claim_statuses", "Writes of the status of a claim's devices, by result.", "driver", "result"
        )
        self.sweeps = counter("sweeps", "Runs of garbage collection, by result.", "driver", "result")
        self.swept = counter("swept", "What garbage collection corrected, by kind.", "driver", "kind")
        self.events = counter("events", "Kubernetes Events written, by result.", "result")
        for result in ("ok", "failed", "gone", "dropped"):
            self.events.labels(result)
        self.samples = BackendSamples()
        self.registry.register(self.samples)

    def announce_backend(self, backend: str) -> None:
        """Create the series of a backend's process at zero, before it starts: one that never does is down."""
        self.backend_up.labels(backend).set(0)
        self.backend_restarts.labels(backend)
        self.backend_violations.labels(backend)
        for name in _CRASHES:
            self.backend_crashes.labels(backend, name)

    def announce_driver(self, driver: str) -> None:
        """Create the series of a driver at zero, so `rate` sees the first failure."""
        errors: tuple[type[KubeError], ...] = (KubeError, *KubeError.__subclasses__())
        for operation in ("prepare", "unprepare"):
            self.calls.labels(driver, operation, "ok", "")
        for metric, values in (
            (self.in_flight, ("prepare", "unprepare")),
            (self.devices, [status.value for status in HealthStatus]),
            (self.publish_failures, [error.reason for error in errors]),
            (self.slice_writes, ("create", "update", "delete")),
            (self.records, ("started", "completed")),
            (self.sweeps, ("ok", "failed")),
            (self.swept, ("record", "cdi_file", "cdi_restored")),
            (self.claim_statuses, ("ok", "failed")),
        ):
            for value in values:
                metric.labels(driver, value)
        for metric in (
            self.devices_dropped,
            self.hardware_unreadable,
            self.devices_withheld,
            self.devices_stale,
            self.slices,
            self.foreign_slices,
            self.registered,
            self.health_streams,
            self.claims_left_over,
            self.records_set_aside,
        ):
            metric.labels(driver)

    def announce_requests(self, requests: Iterable[tuple[str, str]]) -> None:
        """Create the series of successful API requests, by verb and resource."""
        for verb, resource in requests:
            self.requests.labels(verb, resource, "201" if verb == "create" else "200")


class BackendSamples(Collector):
    """The backends' own samples, replaced as a whole by each measurement."""

    def __init__(self) -> None:
        self._by_backend: dict[str, tuple[Sample, ...]] = {}

    def replace(self, backend: str, samples: Sequence[Sample]) -> None:
        """Replace the backend's samples; those that cannot be shown together are left out."""
        left_out = find_left_out(samples)
        self._by_backend[backend] = tuple(one for place, one in enumerate(samples) if place not in left_out)

    def describe(self) -> Iterable[Metric]:
        """Describe nothing: the samples are not known before the first measurement."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Collect one family for each name."""
        for backend, samples in sorted(self._by_backend.items()):
            families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
            for sample in samples:
                labels = list_labels(sample)
                name = f"pydra_{backend.replace('-', '_')}_{sample.name}"
                family = families.setdefault(name, _family(name, sample, tuple(labels)))
                family.add_metric(list(labels.values()), sample.value)
            yield from families.values()


def _family(name: str, sample: Sample, labels: tuple[str, ...]) -> GaugeMetricFamily | CounterMetricFamily:
    kind = CounterMetricFamily if sample.name.endswith("_total") else GaugeMetricFamily
    return kind(name, sample.help or f"Measured by the backend: {sample.name}.", labels=list(labels))
