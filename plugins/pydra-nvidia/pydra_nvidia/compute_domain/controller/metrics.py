"""The controller's metrics."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable

from pydra.controllers import JsonObject, ProcessMetrics


class ControllerMetrics(ProcessMetrics):
    """All series are present from the start."""

    def __init__(self) -> None:
        super().__init__()
        self.domains = self.gauge("compute_domains", "ComputeDomains, by status.", "status")
        self.reconciles = self.counter(
            "compute_domain_reconciles",
            "Looks at a ComputeDomain, by result: ok, conflict (an object changed meanwhile), error.",
            "result",
        )
        self.count(())
        for result in ("ok", "conflict", "error"):
            self.reconciles.labels(result)

    def count(self, domains: Iterable[JsonObject]) -> None:
        """Count all domains again."""
        found = Tally((one.get("status") or {}).get("status") or "NotReady" for one in domains)
        for status in ("Ready", "NotReady"):
            self.domains.labels(status).set(found[status])
