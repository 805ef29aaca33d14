"""One backend on this node: its process, and, once it says which driver it is, that driver's service.

What cannot be served (a backend that breaks its contract, a driver name that another has) is said,
counted in `missing`, and costs the other backends nothing.
"""

from __future__ import annotations

import logging

import anyio

from pydra.agent.early import EarlyBackend
from pydra.agent.reports import Reports
from pydra.agent.served import Served
from pydra.agent.surroundings import Surroundings
from pydra.backends.events import BackendFacts
from pydra.errors import ContractError, SettingsError

_log = logging.getLogger(__name__)


class Driver:
    """One backend. `run` returns after `stop` was set and the calls in flight have ended."""

    def __init__(self, early: EarlyBackend, around: Surroundings) -> None:
        self.backend = early.source.name
        self._called = early.source.called
        self._named = early.driver
        self._around = around
        self._missing = f"backend {self.backend}: is starting"
        self._starting = anyio.CancelScope()
        self._supervisor = early.supervisor
        self._reports = Reports(around.metrics, around.record, node=around.settings.node_name)
        around.metrics.announce_backend(self.backend)
        early.report_to(self._reports)

    def missing(self) -> str:
        """What keeps the driver from serving claims, in words; empty when nothing does."""
        return self._missing

    async def run(self, stop: anyio.Event) -> None:
        """Serve until `stop`."""
        async with anyio.create_task_group() as serving:
            serving.start_soon(self._serve_when_ready, stop)
            await stop.wait()
            # Only what is not served yet: the rest has calls in flight, and ends after them.
            self._starting.cancel()

    async def _serve_when_ready(self, stop: anyio.Event) -> None:
        served: Served | None = None
        with self._starting:
            served = await self._start()
        if served is not None:
            await served.run(stop)

    async def _start(self) -> Served | None:
        try:
            facts = await self._supervisor.wait_ready()
        except (ContractError, SettingsError) as error:  # which the supervisor has reported
            self._missing = str(error)
            return None
        try:
            driver = self._name_driver(facts)
            served = Served(driver, facts, self._supervisor, self._around, self._set_missing)
        except SettingsError as error:
            self._missing = str(error)
            _log.error("%s", error)
            self._reports.not_served(str(error))
            return None
        self._around.metrics.announce_driver(driver)
        await served.open()
        return served

    def _set_missing(self, text: str) -> None:
        self._missing = text and f"driver of backend {self.backend}: {text}"

    def _name_driver(self, facts: BackendFacts) -> str:
        driver = self._named or facts.driver
        if not driver:
            raise SettingsError(
                [f"backend {self.backend} has no driver name of its own; give it one: --driver {self._called}=NAME"]
            )
        holder = self._around.taken.setdefault(driver, self.backend)
        if holder != self.backend:
            raise SettingsError(
                [
                    f"backend {self.backend}: driver {driver} is served by backend {holder} already; "
                    f"give one of them another name: --driver {self._called}=NAME"
                ]
            )
        return driver
