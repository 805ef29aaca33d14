"""The controller's metrics."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.process_collector import ProcessCollector

from pydra.controllers import JsonObject


class ControllerMetrics:
    """All series are present from the start."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.domains = Gauge("pydra_compute_domains", "ComputeDomains, by status.", ("status",), registry=self.registry)
        self.reconciles = Counter(
            "pydra_compute_domain_reconciles",
            "Looks at a ComputeDomain, by result: ok, conflict (an object changed meanwhile), error.",
            ("result",),
            registry=self.registry,
        )
        self.count(())
        for result in ("ok", "conflict", "error"):
            self.reconciles.labels(result)

    def count(self, domains: Iterable[JsonObject]) -> None:
        """Count all domains again."""
        found = Tally((one.get("status") or {}).get("status") or "NotReady" for one in domains)
        for status in ("Ready", "NotReady"):
            self.domains.labels(status).set(found[status])

    def text(self) -> bytes:
        """All series in the Prometheus text format."""
        return bytes(generate_latest(self.registry))
