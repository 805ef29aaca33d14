"""The series that agents and webhooks serve, as Prometheus names them: what dashboards and alerts may ask for."""

from __future__ import annotations

from pydra.admission.webhook import AdmissionMetrics
from pydra.observability.metrics import Metrics


def find_series() -> dict[str, set[str]]:
    """Names with their labels."""
    found: dict[str, set[str]] = {}
    for metric in (*vars(Metrics()).values(), *vars(AdmissionMetrics()).values()):
        if hasattr(metric, "_labelnames"):
            suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}.get(metric._type, ("",))
            for suffix in suffixes:
                own = {"le"} if suffix == "_bucket" else set()
                found[f"{metric._name}{suffix}"] = {*metric._labelnames, *own}
    return found
