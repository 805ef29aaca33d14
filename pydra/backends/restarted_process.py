"""A backend's process, started again whenever it ends, until the backend is refused.

A process that ends concludes the calls that were in flight in it: those that did not cause the end can be called again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import anyio
import anyio.to_thread
import msgspec

from pydra.backends.crash_attribution import CrashAttribution, Involvement, build_failure
from pydra.backends.crash_diagnosis import CallInFlight, Diagnosis, Ending, diagnose
from pydra.backends.discovery import BackendSource
from pydra.backends.error_codec import FaultKind, limit_fault, parse_fault
from pydra.backends.process import BackendProcess, ProcessOptions
from pydra.backends.supervisor_events import (
    AnswerRejected,
    BackendEnded,
    BackendEvent,
    BackendFacts,
    BackendReady,
    BackendRefused,
    BackendState,
    BackendTrouble,
    Trouble,
    build_trouble,
)
from pydra.backends.timeouts import RestartPolicy
from pydra.backends.wire import Call, Hello, Method, Refusal
from pydra.backoff import find_pause
from pydra.errors import BackendUnavailable, ClaimQuarantined, ContractError, PydraError, SettingsError

_log = logging.getLogger(__name__)


class RestartedProcess:
    """The present process, or why there is none. `on_ready` is called with what a new process is, before any call.

    `refresh` finds the backend again, perhaps in a newer version, before its next process is started.
    """

    def __init__(
        self,
        source: BackendSource,
        options: ProcessOptions,
        *,
        connect: float,
        restarts: RestartPolicy,
        attribution: CrashAttribution,
        refresh: Callable[[BackendSource], BackendSource],
        on_ready: Callable[[BackendFacts], None],
        report: Callable[[BackendEvent], None],
    ) -> None:
        self._source = source
        self._options = options
        self._connect = connect
        self._restarts = restarts
        self._attribution = attribution
        self._refresh = refresh
        self._on_ready = on_ready
        self._report = report
        self._incompatible: tuple[str, ...] = ()
        self._refused: BackendRefused | None = None
        self._why = "is not started yet"
        self._cause = ""  # of the last end or failed start; empty while a process is ready
        self._unkillable: list[BackendProcess] = []
        self._changed = anyio.Event()
        self.has_restored = False  # a process, the present one or one before it
        self.has_failed_to_restore = False
        self.facts: BackendFacts | None = None
        self.state = BackendState.STARTING
        self.starts = 0
        self.present: BackendProcess | None = None

    @property
    def name(self) -> str:
        """The backend's name."""
        return self._source.name

    @property
    def open(self) -> BackendProcess | None:
        """The process, if it can be called at all: it has said what it is, and has not ended."""
        return self.present if self.present is not None and self.present.open else None

    @property
    def restored(self) -> BackendProcess | None:
        """The process, if it can be called and knows what the node holds."""
        process = self.present
        return process if process is not None and process.open and process.restored else None

    # State

    async def wait_change(self) -> None:
        """Wait until something is different: the process, a call in flight, what was noted."""
        await self._changed.wait()

    def note_change(self) -> None:
        """Wake everything that waits for a change."""
        self._changed.set()
        self._changed = anyio.Event()

    def note_restored(self, process: BackendProcess) -> None:
        """Note that the process knows what the node holds."""
        process.restored = self.has_restored = True
        self._move(self.state, "")

    def note_restore_failed(self) -> None:
        """Note that a process, which may have ended, does not know what the node holds."""
        self.has_failed_to_restore = True

    def note_not_restored(self, why: str) -> None:
        """Note why calls have to wait until the process knows what the node holds."""
        self._move(self.state, f"cannot be called until restore has succeeded: {why}")

    def find_end(self) -> PydraError | None:
        """Return a new ContractError, SettingsError or BackendUnavailable if no process will be started any more."""
        if self._refused is not None:
            return self._refusal_error(self._refused)
        return self.unavailable() if self.state is BackendState.STOPPED else None

    def unavailable(self) -> BackendUnavailable:
        """Return a new error that says why there is no process for a call."""
        trying = "is being tested for which of several calls ended its process; try again"
        return BackendUnavailable(self.name, self._why or (trying if self._attribution.suspects else "is not ready"))

    def _move(self, state: BackendState, why: str) -> None:
        self.state, self._why = state, why
        self.note_change()

    # One process after the other

    async def run(self) -> None:
        """Start processes until the backend is refused: the same code would be refused again."""
        failures = 0
        try:
            while True:
                await self._wait_for_process_slot()
                began = anyio.current_time()
                event = await self._run_process()
                if isinstance(event, BackendRefused):
                    self._refuse(event)
                    break
                failures = 1 if anyio.current_time() - began >= self._restarts.healthy else failures + 1
                delay = find_pause(failures, first=self._restarts.first, cap=self._restarts.cap)
                self._report_down(event, delay)
                await anyio.sleep(delay)
                await self._check_for_upgrade()
            await anyio.sleep_forever()
        finally:
            self._move(BackendState.STOPPED, "is stopped")

    async def _wait_for_process_slot(self) -> None:
        """Wait while there are too many unkillable processes: they hold the hardware, and more would not help."""
        while len(unkillable := [one for one in self._unkillable if one.exists]) >= self._restarts.unkillable:
            pids = ", ".join(str(one.pid) for one in unkillable)
            self._move(BackendState.DOWN, f"has processes that cannot be killed (pids: {pids})")
            await anyio.sleep(self._restarts.unkillable_look)
        self._unkillable = unkillable

    async def _run_process(self) -> BackendEnded | BackendTrouble | BackendRefused:
        """Run one process from start to end; return what to report about it."""
        self.starts += 1
        self._move(BackendState.STARTING, f"is starting again, after: {self._cause}" if self._cause else "is starting")
        process = self.present = BackendProcess(
            self._source,
            self._options,
            on_change=self.note_change,
            on_ready=self._handle_hello,
            on_unsolicited=self._reject_unsolicited,
            on_slow=self._report_slow,
        )
        try:
            ending = await process.run(self._connect)
            if process.exists:
                self._unkillable.append(process)
                message = f"process {process.pid} cannot be killed; it hangs in the kernel, in a device driver"
                self._report(build_trouble(self.name, Trouble.UNKILLABLE, message))
            if process.refusal is not None:
                return self._read_refusal(process.refusal)
            if self._incompatible:
                return BackendRefused(backend=self.name, violations=self._incompatible, details="")
            return self._conclude_calls(process, ending)
        except (OSError, SettingsError) as error:
            return build_trouble(self.name, Trouble.START, f"cannot be started: {error}")
        finally:
            self.present = None
            self._why = "is stopped"
            process.in_flight.conclude_all(self.unavailable)  # those left when the agent stops

    def _handle_hello(self, process: BackendProcess, hello: Hello) -> None:
        source = self._source
        facts = BackendFacts(
            name=source.name,
            distribution=source.distribution,
            version=source.version,
            **msgspec.structs.asdict(hello),
        )
        self._incompatible = self.facts.find_changes(facts) if self.facts is not None else ()
        if self._incompatible:
            process.kill()
            return
        self.facts = facts
        self._on_ready(facts)
        process.restored = Method.RESTORE not in hello.methods
        self.has_restored = self.has_restored or process.restored
        self._cause = ""
        self._move(BackendState.READY, "" if process.restored else "does not know yet what this node holds")
        again = " again" if self.starts > 1 else ""
        _log.info("backend %s: ready%s in process %d after %.2f s", source, again, process.pid, process.age)
        self._report(
            BackendReady(backend=source.name, facts=facts, pid=process.pid, starts=self.starts, seconds=process.age)
        )

    async def _check_for_upgrade(self) -> None:
        """Use a newly installed version, and forget the crashes of the former one."""
        try:
            source = await anyio.to_thread.run_sync(self._refresh, self._source)
        except RuntimeError:  # no thread can be started, and so no process either: asked before the next one
            return
        if source != self._source:
            _log.info("backend %s: now %s", self._source, source)
            self._source = source
            self._attribution.reset()

    # The end of a process

    def _conclude_calls(self, process: BackendProcess, ending: Ending) -> BackendEnded:
        """Conclude every call that was in flight, by its involvement in the end."""
        diagnosis = diagnose(ending)
        involvements = self._attribution.note_end(ending)
        waiting = process.in_flight.describe()
        for one in waiting:
            involvement = involvements.get(one.id, Involvement.BYSTANDER)
            call = process.in_flight.find(one.id)
            if involvement is Involvement.AT_FAULT and call is not None:
                process.in_flight.conclude(one.id, self._attribute_crash(call, one, ending, diagnosis))
            else:
                process.in_flight.conclude(one.id, involvement)
        for call_id in involvements.keys() - {one.id for one in waiting}:  # cancelled by its caller meanwhile
            self._attribution.forget_call(call_id)
        return BackendEnded(backend=self.name, diagnosis=diagnosis, calls=ending.calls)

    def _attribute_crash(self, call: Call, one: CallInFlight, ending: Ending, diagnosis: Diagnosis) -> PydraError:
        """Return the error of the call at fault, which names no other; terminal if its claim is quarantined now."""
        line = diagnosis.describe_for(one)
        quarantined = self._attribution.note_crash(call.claim, call.method, line) if call.claim is not None else None
        if call.claim is not None and quarantined is not None:
            error = ClaimQuarantined(quarantined.explain(self.name))
            _log.error("%s", error)
            return error
        return build_failure(self.name, call, one, ending.cause, diagnosis)

    def _read_refusal(self, refusal: Refusal) -> BackendTrouble | BackendRefused:
        fault = limit_fault(refusal.fault)
        if refusal.final and self.facts is None:
            return BackendRefused(
                backend=self.name,
                violations=fault.problems,
                details=fault.traceback,
                invalid_settings=fault.kind is FaultKind.INVALID_SETTINGS,
            )
        # A backend that could be called before: its files are being replaced, or cannot be read now.
        why = "; ".join(fault.problems) if refusal.final else parse_fault(fault, self.name, "connect")
        return build_trouble(self.name, Trouble.START, why, details=fault.traceback)

    def _refuse(self, event: BackendRefused) -> None:
        self._refused = event
        _log.error("%s", self._refusal_error(event), extra={"fields": {"backend": event.backend}})
        if event.details:  # the line above says where; `pydra check` shows the rest to the backend's author
            fields = {"backend": event.backend, "details": event.details}
            _log.debug("why backend %s is refused", event.backend, extra={"fields": fields})
        self._move(BackendState.REFUSED, "is refused")
        self._report(event)

    def _refusal_error(self, event: BackendRefused) -> ContractError | SettingsError:
        if event.invalid_settings:
            return SettingsError([f"backend {self.name}: {problem}" for problem in event.violations])
        return ContractError(self.name, event.violations, details=event.details)

    def _report_down(self, event: BackendEnded | BackendTrouble, delay: float) -> None:
        if isinstance(event, BackendEnded):
            brief, line, details = event.diagnosis.brief, event.diagnosis.line, event.diagnosis.report
        else:
            brief, line, details = event.message, event.message, event.details
        fields = {"backend": self.name, **({"details": details} if details else {})}
        _log.error("backend %s: %s; it starts again in %.1f s", self._source, line, delay, extra={"fields": fields})
        self._cause = brief
        self._move(BackendState.DOWN, f"{brief}; it starts again {delay:.1f} s after that")
        self._report(event)

    # What a process does

    def _reject_unsolicited(self, call_id: int) -> None:
        violation = f"an answer to call {call_id}, which is not in flight"
        _log.error("backend %s: %s", self._source, violation)
        self._report(AnswerRejected(backend=self.name, method=None, claim=None, violations=(violation,)))

    def _report_slow(self, call: Call, seconds: float, where: str) -> None:
        waiting = f"; it is waiting in {where}" if where else ""
        message = f"{call} has been running for {seconds:.0f} s{waiting}"
        claim = {"claim": str(call.claim), "uid": call.claim.uid} if call.claim else {}
        _log.warning("backend %s: %s", self._source, message, extra={"fields": {"backend": self.name, **claim}})
        if call.claim is None:  # the duration of a claim's call is reported when it ends
            self._report(build_trouble(self.name, Trouble.SLOW, message))
