"""The daemon's metrics."""

from __future__ import annotations

from pydra.controllers import ProcessMetrics


class DaemonMetrics(ProcessMetrics):
    """All series are present from the start."""

    def __init__(self) -> None:
        super().__init__()
        self.ready = self.gauge("imex_ready", "1 while the node's nvidia-imex is ready, else 0.")
        self.starts = self.counter("imex_starts", "How often nvidia-imex was started.")
        self.reloads = self.counter("imex_reloads", "How often nvidia-imex was signalled to look up its peers.")
