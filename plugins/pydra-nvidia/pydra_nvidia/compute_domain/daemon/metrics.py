"""The daemon's metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest


class DaemonMetrics:
    """All series are present from the start."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.ready = Gauge(
            "pydra_imex_ready", "1 while the node's nvidia-imex is ready, else 0.", registry=self.registry
        )
        self.starts = Counter("pydra_imex_starts", "How often nvidia-imex was started.", registry=self.registry)
        self.reloads = Counter(
            "pydra_imex_reloads", "How often nvidia-imex was signalled to look up its peers.", registry=self.registry
        )

    def text(self) -> bytes:
        """All series in the Prometheus text format."""
        return bytes(generate_latest(self.registry))
