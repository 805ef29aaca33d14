"""Keeps one backend's process running: starts it, has its end judged, replaces it.

Decisions are made in `diagnosis` and `guilt`, and applied here. Calls are made by `supervisor`.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping

import anyio
import anyio.to_thread
import msgspec

from pydra.backends.crash_attribution import Court, Verdict
from pydra.backends.diagnosis import Cause, Diagnosis, Ending, Flight, diagnose
from pydra.backends.discovery import BackendSource
from pydra.backends.events import (
    AnswerRejected,
    BackendEnded,
    BackendEvent,
    BackendFacts,
    BackendReady,
    BackendRefused,
    BackendStartFailed,
    BackendState,
    BackendStatistics,
    BackendUndead,
    ClaimSentenced,
    RestoreFailed,
)
from pydra.backends.faults import parse_fault
from pydra.backends.limits import Patience, RestartPolicy
from pydra.backends.session import Session
from pydra.backends.wire import Call, Hello, Method, Refusal
from pydra.errors import (
    BackendDied,
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    ClaimQuarantined,
    ContractError,
    PydraError,
)

_log = logging.getLogger(__name__)
_UNDEAD_LOOK_SECONDS = 5.0


class Keeper:
    """The state of one backend through the lives of its processes."""

    def __init__(
        self,
        source: BackendSource,
        *,
        connect: float,
        patience: Patience,
        restarts: RestartPolicy,
        environ: Mapping[str, str] | None,
        refresh: Callable[[BackendSource], BackendSource],
        report: Callable[[BackendEvent], None],
    ) -> None:
        self.court = Court(restarts.strikes)
        self.facts: BackendFacts | None = None
        self.refused: ContractError | None = None
        self._source = source
        self._connect = connect
        self._patience = patience
        self._restarts = restarts
        self._environ = environ
        self._refresh = refresh
        self._report = report
        self._state = BackendState.STARTING
        self._why = "is not started yet"
        self._session: Session | None = None
        self._undead: list[Session] = []
        self._starts = 0
        self._endings: Counter[str] = Counter()
        self._changed = anyio.Event()

    # What callers ask

    @property
    def session(self) -> Session | None:
        """The process, when it can be called."""
        return self._session if self._session is not None and self._session.alive else None

    def refuse_if_over(self) -> None:
        """Raises ContractError or BackendUnavailable when waiting for the process is in vain."""
        if self.refused is not None:
            error = ContractError(self._source.name, self.refused.violations)
            error.details = self.refused.details  # a new one each time: a raised error collects tracebacks
            raise error from None
        if self._state is BackendState.STOPPED:
            raise self.unavailable()

    def unavailable(self) -> BackendUnavailable:
        """The error that says why there is no process to call."""
        trial = "is busy finding out which of several calls ended its process; try again"
        return BackendUnavailable(
            self._source.name, self._why or (trial if self.court.in_session else "cannot be called")
        )

    async def wait_spawned(self) -> None:
        """Wait until there is a process, ready or not, or none could be started."""
        while self._state is BackendState.STARTING and (self._session is None or not self._session.pid):
            await self.wait_changed()

    async def wait_changed(self) -> None:
        """Wait until the answers to the questions above may have changed."""
        await self._changed.wait()

    def note_change(self) -> None:
        """Wake whoever waits for one."""
        self._changed.set()
        self._changed = anyio.Event()

    def statistics(self) -> BackendStatistics:
        """A snapshot."""
        session = self.session
        return BackendStatistics(
            backend=self._source.name,
            state=self._state,
            pid=session.pid if session is not None else 0,
            starts=self._starts,
            endings=dict(sorted(self._endings.items())),
            in_flight=session.flights() if session is not None else (),
            on_trial=self.court.in_session,
            condemned=self.court.condemned(),
            undead=sum(one.undead for one in self._undead),
        )

    # The lives

    async def run(self) -> None:
        """Until cancelled. After a refusal nothing is started any more: the same code would be refused again."""
        failures = 0
        try:
            while True:
                await self._wait_for_room()
                began = time.monotonic()
                event = await self._live_once()
                if isinstance(event, BackendRefused):
                    self._refuse(event)
                    break
                failures = 1 if time.monotonic() - began >= self._restarts.healthy else failures + 1
                delay = self._restarts.delay(failures)
                self._tell_down(msgspec.structs.replace(event, restart_in=delay))
                await anyio.sleep(delay)
                await self._look_for_upgrade()
            await anyio.sleep_forever()
        finally:
            self._move(BackendState.STOPPED, "is stopped")

    async def _wait_for_room(self) -> None:
        """Unkillable processes hold the hardware; more of them would not help."""
        while len(undead := [one for one in self._undead if one.undead]) >= self._restarts.undead:
            pids = ", ".join(str(one.pid) for one in undead)
            self._move(BackendState.DOWN, f"has {len(undead)} processes that the kernel cannot end (pids {pids})")
            await anyio.sleep(_UNDEAD_LOOK_SECONDS)
        self._undead = undead

    async def _live_once(self) -> BackendEnded | BackendStartFailed | BackendRefused:
        """One process from start to end, and what to tell of it."""
        name = self._source.name
        self._starts += 1
        self._move(BackendState.STARTING, "is starting")
        session = self._session = Session(
            self._source,
            patience=self._patience,
            environ=self._environ,
            on_spawn=self.note_change,
            on_stray=self._reject_stray,
        )
        try:
            ending = await session.run(self._connect, self._greet)
            if session.undead:
                self._undead.append(session)
                self._report(BackendUndead(backend=name, pid=session.pid))
            if session.refusal is not None:
                return _of_refusal(name, session.refusal)
            return self._settle(session, ending)
        except OSError as error:
            message = f"cannot be started: {error}"
            return BackendStartFailed(backend=name, message=message, details="", restart_in=0)
        finally:
            self._session = None
            self._why = "is stopped"
            for flight in session.flights():  # left over when the agent stops
                session.conclude(flight.id, self.unavailable())

    def _greet(self, session: Session, hello: Hello) -> None:
        source = self._source
        self.facts = BackendFacts(
            name=source.name,
            distribution=source.distribution,
            version=source.version,
            driver=hello.driver,
            methods=hello.methods,
            config_kinds=hello.config_kinds,
            device_classes=hello.device_classes,
            reasons=hello.reasons,
            survives_reboot=hello.survives_reboot,
        )
        session.restored = Method.RESTORE not in hello.methods
        self._move(BackendState.READY, "" if session.restored else "has not yet been told what this node holds")
        _log.info("backend %s: ready in process %d after %.2f s", source, session.pid, session.age)
        self._report(
            BackendReady(
                backend=source.name, facts=self.facts, pid=session.pid, starts=self._starts, seconds=session.age
            )
        )

    def _settle(self, session: Session, ending: Ending) -> BackendEnded:
        """Tell every caller that was in flight what became of its call."""
        diagnosis = diagnose(ending)
        self._endings[diagnosis.signal or _label(ending)] += 1
        verdicts = self.court.hear(ending)
        for flight in session.flights():
            verdict = verdicts.get(flight.id, Verdict.BYSTANDER)
            call = session.call_in_flight(flight.id)
            if verdict is Verdict.GUILTY and call is not None:
                session.conclude(flight.id, self._convict(call, flight, ending, diagnosis))
            else:
                session.conclude(flight.id, verdict)
        waiting = {flight.id for flight in session.flights()}
        for call_id in verdicts.keys() - waiting:  # its caller has given up meanwhile
            self.court.dismiss(call_id)
        return BackendEnded(backend=self._source.name, diagnosis=diagnosis, flights=ending.flights, restart_in=0)

    def _convict(self, call: Call, flight: Flight, ending: Ending, diagnosis: Diagnosis) -> PydraError:
        """The error of the guilty call, which names no other; terminal when its claim is condemned by it."""
        name, line = self._source.name, diagnosis.blame(flight)
        if call.claim is not None and self.court.convict(call.claim, call.method, line):
            condemned = self.court.sentence(call.claim, call.method)
            error = ClaimQuarantined(condemned.explain(name) if condemned else line)
            _log.error("%s", error)
            self._report(ClaimSentenced(backend=name, claim=call.claim, method=call.method, message=str(error)))
            return error
        failure = _name_failure(name, call.method, flight, ending.cause, line)
        failure.details, failure.logged = diagnosis.report, True
        return failure

    # What is told

    def _refuse(self, event: BackendRefused) -> None:
        self.refused = ContractError(self._source.name, event.violations)
        self.refused.details = event.details
        _log.error("%s", self.refused, extra={"fields": {"backend": event.backend}})
        if event.details:  # the line above says where; the rest is for the backend's author, whom `pydra check` tells
            fields = {"backend": event.backend, "details": event.details}
            _log.debug("how backend %s came to be refused", event.backend, extra={"fields": fields})
        self._move(BackendState.REFUSED, "is refused")
        self._report(event)

    def _tell_down(self, event: BackendEnded | BackendStartFailed) -> None:
        if isinstance(event, BackendEnded):
            brief, line, details = event.diagnosis.brief, event.diagnosis.line, event.diagnosis.report
        else:
            brief, line, details = event.message, event.message, event.details
        fields = {"backend": self._source.name, **({"details": details} if details else {})}
        _log.error(
            "backend %s: %s; it starts again in %.1f s", self._source, line, event.restart_in, extra={"fields": fields}
        )
        self._move(BackendState.DOWN, f"{brief}; it starts again {event.restart_in:.1f} s after that")
        self._report(event)

    def tell_not_restored(self, error: PydraError, retry_in: float) -> None:
        """Nothing is called until `restore` has succeeded."""
        details = error.details if isinstance(error, BackendError) else ""
        fields = {"backend": self._source.name, **({"details": details} if details else {})}
        message = str(error).removeprefix(f"backend {self._source.name}: ")
        _log.error("backend %s: %s; tried again in %.1f s", self._source, message, retry_in, extra={"fields": fields})
        self._move(self._state, f"cannot be called until restore has succeeded: {message}")
        self._report(RestoreFailed(backend=self._source.name, message=message, details=details, retry_in=retry_in))

    def _reject_stray(self, call_id: int) -> None:
        violation = f"an answer to call {call_id}, which is not in flight"
        _log.error("backend %s: %s", self._source, violation)
        self._report(AnswerRejected(backend=self._source.name, method=None, claim=None, violations=(violation,)))

    def _move(self, state: BackendState, why: str) -> None:
        self._state, self._why = state, why
        self.note_change()

    async def _look_for_upgrade(self) -> None:
        """Another version is another backend: it is not judged by what its predecessor did."""
        source = await anyio.to_thread.run_sync(self._refresh, self._source)
        if source != self._source:
            _log.info("backend %s: now %s", self._source, source)
            self._source = source
            self.court.amnesty()


def _name_failure(name: str, method: Method, flight: Flight, cause: Cause, line: str) -> BackendError:
    match cause:
        case Cause.GARBLED:
            return ContractError(name, [f"{method.value}: {line}"])
        case Cause.WEDGED | Cause.SILENT:
            return BackendTimeout(name, method.value, min(round(flight.elapsed, 1), flight.deadline))
        case _:
            return BackendDied(name, line)


def _of_refusal(name: str, refusal: Refusal) -> BackendStartFailed | BackendRefused:
    fault = refusal.fault
    if refusal.final:
        return BackendRefused(backend=name, violations=fault.problems, details=fault.traceback)
    message = str(parse_fault(fault, name, "connect")).removeprefix(f"backend {name}: ")
    return BackendStartFailed(backend=name, message=message, details=fault.traceback, restart_in=0)


def _label(ending: Ending) -> str:
    if ending.cause is Cause.DIED and ending.status is not None:
        return f"exit {ending.status}"
    return ending.cause.value
