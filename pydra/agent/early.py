"""A backend whose process starts before the agent's own parts are there: what it tells meanwhile is kept for them.

Loads no more than a supervisor needs.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from pydra.backends.discovery import BackendSource
from pydra.backends.events import BackendEvent
from pydra.backends.supervisor import BackendSupervisor, Deadlines
from pydra.settings import Settings


class EarlyBackend:
    """A supervisor, to be run by its owner, and the name of the driver if the settings give it one."""

    def __init__(self, source: BackendSource, settings: Settings, *, driver: str = "") -> None:
        self.source = source
        self.driver = driver
        self.supervisor = BackendSupervisor(
            source,
            deadlines=Deadlines(connect=settings.connect_deadline, discover=settings.discover_deadline),
            environ=dict(os.environ),
            settings=settings.backend_settings.get(source.called, {}),
            report=self._tell,
        )
        self._kept: list[BackendEvent] = []
        self._report: Callable[[BackendEvent], None] = self._kept.append

    def report_to(self, report: Callable[[BackendEvent], None]) -> None:
        """From now on; what was kept comes first."""
        self._report = report
        for event in self._kept:
            report(event)
        self._kept.clear()

    def _tell(self, event: BackendEvent) -> None:
        self._report(event)
