"""Every Prometheus series of the webhook, in one registry; each exists from the start, at zero."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.process_collector import ProcessCollector

from pydra.admission.places import PLACES
from pydra.admission.verdict import RESULTS

MALFORMED = "malformed"
OTHER = "other"
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1)


class AdmissionMetrics:
    """The registry and its series; `resource` is a resource of resource.k8s.io, or `other`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.build = Gauge(
            "pydra_build_info", "Always 1; the version is in the label.", ("version",), registry=self.registry
        )
        self.reviews = Counter(
            "pydra_admission_reviews",
            "Reviews, by result: allowed, denied, not_ours (passed without a look), malformed (answered 4xx).",
            ("resource", "result"),
            registry=self.registry,
        )
        self.seconds = Histogram(
            "pydra_admission_review_duration_seconds",
            "How long the judgement of one review took, without the network.",
            registry=self.registry,
            buckets=_SECONDS,
        )
        self.expiry = Gauge(
            "pydra_admission_certificate_expiry_timestamp_seconds",
            "When the certificate that is served expires, in Unix time; 0 without TLS.",
            registry=self.registry,
        )
        self.loads = Counter(
            "pydra_admission_certificate_loads",
            "Certificates that were found in the files, by result: ok, or failed (the one before is kept).",
            ("result",),
            registry=self.registry,
        )
        for resource in PLACES:
            for result in RESULTS:
                self.reviews.labels(resource, result)
        self.reviews.labels(OTHER, "not_ours")
        self.reviews.labels(OTHER, MALFORMED)
        for result in ("ok", "failed"):
            self.loads.labels(result)

    def text(self) -> bytes:
        """All series in the Prometheus text format."""
        return bytes(generate_latest(self.registry))
