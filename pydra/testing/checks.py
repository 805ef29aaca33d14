"""Makes the conformance checks of one run, in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from pydra.backends.discovery import BackendSource
from pydra.backends.supervisor_events import BackendFacts, Trouble
from pydra.backends.timeouts import ProcessTimeouts
from pydra.backends.wire import Method
from pydra.checkpoint.record_files import StoredRecord
from pydra.devices import Inventory
from pydra.errors import PydraError, SettingsError
from pydra.testing.available_devices import AgentRecords, take_free
from pydra.testing.check_recorder import NotChecked, Progress, Recorder
from pydra.testing.claim_checks import ClaimChecks
from pydra.testing.leaks import Leaks
from pydra.testing.process_failures import BackendEvents
from pydra.testing.reading_checks import ReadingChecks
from pydra.testing.report import Check
from pydra.testing.rules import Rule
from pydra.testing.session import Session

_LATE_SECONDS = 30.0
"""For what starts the process, and ends it if it is late: then it is known where the process was."""


class Checks:
    """The checks of one run."""

    def __init__(
        self,
        source: BackendSource,
        session: Session,
        events: BackendEvents,
        progress: Progress,
        timeouts: ProcessTimeouts,
        *,
        environ: Mapping[str, str],
        config: Mapping[str, Any],
        device: str,
    ) -> None:
        """`device` is the name of the device to prepare; empty for the first one that is free. Raises SettingsError."""
        self._source = source
        self._session = session
        self._events = events
        self._timeouts = timeouts
        self._device = device
        self._host_root = environ.get("PYDRA_HOST_ROOT", "/")
        self._records = AgentRecords(source, environ, config)
        self._recorder = Recorder(session, events, progress)
        self._leaks = Leaks(session, events)
        self._invalid_settings: SettingsError | None = None

    async def run(self, *, connect: float, prepare: bool) -> tuple[Check, ...]:
        """Make the checks; `connect` is the limit of a start in seconds."""
        session, recorder = self._session, self._recorder
        await recorder.make(Rule.CONNECT, lambda: self._connect(connect))
        facts = session.facts
        if self._invalid_settings is not None or (facts is not None and facts.settings):
            await recorder.make(Rule.SETTINGS, self._settings)
        if facts is None:
            return tuple(recorder.checks)
        stored = self._records.list(facts.driver)
        if stored and session.has(Method.RESTORE):
            # `restore` would end what no claim of this run explains: the work of running pods.
            recorder.skip(Rule.CALLED, _explain(stored))
            return tuple(recorder.checks)
        session.backend.restore_from(session.hold_all)
        reading = ReadingChecks(session, facts, recorder, self._leaks, self._source.configured_name)
        await reading.run()
        claims = ClaimChecks(
            *(session, facts, self._events, recorder, reading),
            leaks=self._leaks,
            free=take_free(reading.inventory or Inventory(), stored),
            device=self._device,
            host_root=self._host_root,
            cancel_limit=self._timeouts.cancel_timeout,
        )
        if not prepare:
            claims.skip("asked to leave the hardware alone")
        elif stored and session.has(Method.PLAN):  # it would have to know them, and their steps
            claims.skip(_explain(stored))
        elif reading.inventory is None:
            claims.skip("discover failed")
        else:
            await claims.run()
        if session.has(Method.RESTORE):
            await recorder.make(Rule.RESTORE, claims.restore)
        self._conclude(facts)
        return tuple(recorder.checks)

    async def undo(self) -> None:
        """Unprepare what a failed check still holds; the report already has the failure."""
        if self._events.describe(Trouble.RESTORE):  # no call is made
            return
        for held in tuple(self._session.records.values()):
            with suppress(PydraError):
                await self._session.release(held.claim)

    async def _connect(self, limit: float) -> list[str]:
        ready = self._session.backend.wait_ready()
        try:
            self._session.facts = await self._events.wait_started(ready, limit + _LATE_SECONDS)
        except SettingsError as error:
            self._invalid_settings = error
            raise NotChecked("its settings are invalid") from error
        if self._session.facts is not None:
            return []
        found = [*self._events.describe(Trouble.START), *self._events.describe_ends()]
        return found or [f"it was not ready within {limit:g} s"]

    async def _settings(self) -> list[str]:
        """Show the settings; the agent refuses invalid ones before anything else."""
        if self._invalid_settings is not None:
            raise self._invalid_settings
        self._recorder.lines += [
            f"{one.name} = {one.value} (allowed: {one.allowed}; default: {one.default}; from: {one.source}; "
            f"variable: {one.variable})"
            for one in (self._session.facts.settings if self._session.facts is not None else ())
        ]
        return []

    def _conclude(self, facts: BackendFacts) -> None:
        """Report what can only be told at the end."""
        conclude = self._recorder.conclude
        if Method.WAIT_CHANGED in facts.methods:
            conclude(Rule.HINTS, self._events.describe(Trouble.HINTS))
        observed = self._session.observations()
        blocked = {one.place: one.blocked for one in sorted(observed, key=lambda one: one.blocked) if one.blocked}
        conclude(Rule.BLOCKING, [f"it was blocked for {one:.1f} s: {at}" for at, one in blocked.items()])
        conclude(Rule.AWAITED, [one.unawaited for one in observed if one.unawaited])
        conclude(Rule.FORKED, [one.forked for one in observed if one.forked])
        for rule, problems in self._leaks.problems.items():
            conclude(rule, problems)


def _explain(stored: Sequence[StoredRecord]) -> str:
    return f"an agent has prepared claims on this node ({stored[0].path}); check the backend on a node without"
