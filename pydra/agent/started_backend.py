"""A backend whose process starts before the parts of the agent that its events go to."""

from __future__ import annotations

import os
from collections.abc import Callable

from pydra.backends.discovery import BackendSource
from pydra.backends.process_command import build_environ
from pydra.backends.supervisor import BackendSupervisor
from pydra.backends.supervisor_events import BackendEvent
from pydra.backends.timeouts import CallDeadlines
from pydra.settings import Settings


class StartedBackend:
    """A backend whose process is started, and the driver's name if the settings give one.

    What the supervisor reports before the agent's parts are there is kept for them.
    """

    def __init__(self, source: BackendSource, settings: Settings, *, driver: str = "") -> None:
        self.source = source
        self.driver = driver
        self._kept: list[BackendEvent] = []
        self._report: Callable[[BackendEvent], None] = self._kept.append
        self.supervisor = BackendSupervisor(
            source,
            deadlines=CallDeadlines(connect=settings.connect_deadline, discover=settings.discover_deadline),
            environ=build_environ(os.environ),
            settings=settings.backend_settings.get(source.configured_name, {}),
            rights=settings.process_rights(source.configured_name),
            report=self._forward,
        )

    def report_to(self, report: Callable[[BackendEvent], None]) -> None:
        """Report to this function from now on; what was kept comes first."""
        self._report = report
        for event in self._kept:
            report(event)
        self._kept.clear()

    def _forward(self, event: BackendEvent) -> None:
        self._report(event)
