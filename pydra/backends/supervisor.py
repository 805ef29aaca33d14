"""Starts, monitors and restarts a backend's process, and exposes its coroutines.

A call that did not crash the process survives its end: it is repeated in the next process. Results are validated, and
errors that the backend raised arrive as pydra's own. Supervisors share nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

import anyio
import anyio.to_thread
import msgspec

from pydra.backends.answers import AnswerReader
from pydra.backends.calls_in_flight import Outcome
from pydra.backends.contract import Inheritance
from pydra.backends.crash_attribution import CrashAttribution, Involvement, Quarantined, build_failure
from pydra.backends.crash_diagnosis import CallInFlight, Diagnosis, Ending, diagnose
from pydra.backends.discovery import BackendSource, refresh_source
from pydra.backends.error_codec import FaultKind, parse_fault
from pydra.backends.held_claims_sync import HeldClaimsSync
from pydra.backends.process import BackendProcess, Spawn, spawn_program
from pydra.backends.process_command import CHILD
from pydra.backends.restart_policy import RestartPolicy
from pydra.backends.supervisor_events import (
    AnswerRejected,
    BackendEnded,
    BackendEvent,
    BackendFacts,
    BackendReady,
    BackendRefused,
    BackendState,
    BackendStatistics,
    BackendTrouble,
    Trouble,
)
from pydra.backends.timeouts import CallDeadlines, ProcessTimeouts
from pydra.backends.wire import Call, Failure, Hello, Method, Refusal, Reply
from pydra.claim import Claim, HeldClaim, PreparedDevice
from pydra.devices import Inventory
from pydra.errors import (
    BackendDied,
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    ClaimQuarantined,
    ContractError,
    PydraError,
    SettingsError,
    of_call,
)
from pydra.samples import Sample
from pydra.settings import ProcessRights

HeldClaims: TypeAlias = Callable[[], AbstractAsyncContextManager[Sequence[HeldClaim]]]

_log = logging.getLogger(__name__)
_HINT_PAUSE_SECONDS = 0.1
_HINT_RETRY_CAP_SECONDS = 60.0
_RESTORE_RETRY_CAP_SECONDS = 30.0


def ignore_event(event: BackendEvent) -> None:
    """Do not report."""


class BackendSupervisor:
    """Serves a backend's coroutines across restarts of its process, while `run` is running.

    Every call waits, within its deadline, for a process that is starting or being replaced. Errors of calls: ClaimError
    and its subclasses as the backend raised them; ContractError for a wrong answer; SettingsError for invalid settings;
    BackendTimeout, BackendDied, BackendUnavailable; ClaimQuarantined; BackendError for any other exception of the
    backend. `reached_backend` of the error is false if the backend's code was not called. CallDeadlines (`until`) are
    times of the event loop's clock.
    """

    def __init__(
        self,
        source: BackendSource,
        *,
        deadlines: CallDeadlines,
        timeouts: ProcessTimeouts = ProcessTimeouts(),  # noqa: B008 - frozen
        restarts: RestartPolicy = RestartPolicy(),  # noqa: B008 - frozen
        environ: Mapping[str, str] | None = None,
        settings: Mapping[str, Any] = {},
        program: str = CHILD,
        rights: ProcessRights = ProcessRights(),  # noqa: B008 - frozen
        spawn: Spawn = spawn_program,
        refresh: Callable[[BackendSource], BackendSource] = refresh_source,
        report: Callable[[BackendEvent], None] = ignore_event,
    ) -> None:
        """`settings` are the backend's own, from the agent's settings file; `program` is what its process runs."""
        self._source = source
        self._name = source.name
        self._deadlines = deadlines
        self._timeouts = timeouts
        self._restarts = restarts
        self._environ = environ
        self._settings = settings
        self._program, self._rights, self._spawn = program, rights, spawn
        self._refresh = refresh
        self._report = report
        self._answers = AnswerReader(source.name, report)
        self._attribution = CrashAttribution(restarts.crashes)
        self._ids = itertools.count(1)
        self._facts: BackendFacts | None = None
        self._incompatible: tuple[str, ...] = ()
        self._refused: BackendRefused | None = None
        self._state = BackendState.STARTING
        self._why = "is not started yet"
        self._cause = ""  # of the last end or failed start; empty while a process is ready
        self._process: BackendProcess | None = None
        self._discovered: BackendProcess | None = None  # the last process that `discover` was called in
        self._unkillable: list[BackendProcess] = []
        self._starts = 0
        self._held: HeldClaims | None = None
        self._updates = HeldClaimsSync()
        self._changed = anyio.Event()
        self._hinted = anyio.Event()
        self._hint_taken = anyio.Event()
        self._hint_call = anyio.CancelScope()

    @property
    def name(self) -> str:
        """The backend's name."""
        return self._name

    @property
    def _open_process(self) -> BackendProcess | None:
        """The process, if it can be called at all: it has said what it is, and has not ended."""
        return self._process if self._process is not None and self._process.open else None

    @property
    def _restored_process(self) -> BackendProcess | None:
        """The process, if it can be called and knows what the node holds."""
        process = self._process
        return process if process is not None and process.open and process.restored else None

    async def run(self) -> None:
        """Keep the process running until cancelled, then stop it."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._poll_hints, name=f"hints of {self._name}")
            tasks.start_soon(self._keep_restoring, name=f"restore of {self._name}")
            tasks.start_soon(self._keep_running, name=f"process of {self._name}")

    async def wait_spawned(self) -> None:
        """Wait until the process was started, or could not be."""
        while self._state is BackendState.STARTING and (self._process is None or not self._process.pid):
            await self._changed.wait()

    async def wait_ready(self) -> BackendFacts:
        """Wait until the backend can be called.

        Raises ContractError or SettingsError if it is refused, BackendUnavailable if stopped.
        """
        while self._open_process is None or self._facts is None:
            if (error := self._find_end()) is not None:
                raise error
            await self._changed.wait()
        return self._facts

    def note_held(self, uid: str, held: HeldClaim | None) -> None:
        """Note that the node holds the claim like this from now on, or does not hold it any more."""
        if not self._updates.unsent:
            asyncio.get_running_loop().call_soon(self._send_held)
        self._updates.note(uid, held)

    def _send_held(self) -> None:
        process = self._restored_process
        if process is not None and self._updates.unsent:
            self._updates.send(process)

    def restore_from(self, held: HeldClaims) -> None:
        """Set the source of the held claims for `restore`: entered for each new process, left when `restore` has ended.

        Until it is set, a backend that has `restore` is not called, except for `inherit`.
        """
        self._held = held
        self._note_change()

    # The backend's coroutines

    async def discover(self) -> Inventory:
        """Return the current inventory of the hardware."""
        call = self._new_call(Method.DISCOVER, self._deadlines.discover)
        try:
            reply = await self._ask(call)
        finally:
            if self._discovered is not self._process:
                self._discovered = self._process
                self._note_change()
        return self._answers.read_inventory(reply)

    async def plan(self, claim: Claim, *, until: float) -> Claim:
        """Return the claim with its plan and its steps; only for a backend with PLAN. One call at a time."""
        facts = self._facts or await self.wait_ready()
        reply = await self._ask(Call(id=next(self._ids), method=Method.PLAN, claim=claim, until=until))
        return self._answers.read_plan(reply, claim, has_steps=facts.has_steps)

    async def apply(self, claim: Claim, step: int, *, until: float) -> Any:
        """Carry out one of the claim's steps, by its place, and return its result as JSON."""
        call = Call(id=next(self._ids), method=Method.APPLY, claim=claim, step=step, until=until)
        return self._answers.read_result(await self._ask(call), claim)

    async def undo(self, claim: Claim, step: int, *, until: float) -> None:
        """Undo one of the claim's steps, by its place."""
        await self._ask(Call(id=next(self._ids), method=Method.UNDO, claim=claim, step=step, until=until))

    async def prepare(self, claim: Claim, *, until: float) -> tuple[PreparedDevice, ...]:
        """Return one prepared device for each of the claim's devices, in their order."""
        reply = await self._ask(Call(id=next(self._ids), method=Method.PREPARE, claim=claim, until=until))
        return self._answers.read_prepared(reply, claim)

    async def unprepare(self, claim: Claim, prepared: Sequence[PreparedDevice], *, until: float) -> None:
        """Undo `prepare`; nothing to do for a backend with steps and without `unprepare`."""
        facts = self._facts or await self.wait_ready()
        if Method.UNPREPARE in facts.methods:
            given: dict[str, Any] = {"claim": claim, "prepared": tuple(prepared)}
            await self._ask(Call(id=next(self._ids), method=Method.UNPREPARE, **given, until=until))

    async def measure(self) -> tuple[Sample, ...]:
        """Return samples for `/metrics`; none if the backend does not measure."""
        facts = self._facts or await self.wait_ready()
        if Method.MEASURE not in facts.methods:
            return ()
        call = self._new_call(Method.MEASURE, self._deadlines.measure)
        return self._answers.read_samples(await self._ask(call))

    async def inherit(self, directory: str) -> Inheritance:
        """Return what another driver left in the plugin directory; nothing if the backend replaces no other driver."""
        facts = self._facts or await self.wait_ready()
        if Method.INHERIT not in facts.methods:
            return Inheritance()
        call = self._new_call(Method.INHERIT, self._deadlines.discover, directory=directory)
        return self._answers.read_inheritance(await self._ask(call))

    async def wait_changed(self) -> None:
        """Wait for a hint to call `discover`: from the backend, or because its process was replaced."""
        await self._hinted.wait()
        self._hinted = anyio.Event()
        self._hint_taken.set()

    # State

    def statistics(self) -> BackendStatistics:
        """Return a snapshot."""
        process = self._open_process
        return BackendStatistics(
            state=self._state,
            pid=process.pid if process is not None else 0,
            starts=self._starts,
            in_flight=process.in_flight.describe() if process is not None else (),
        )

    def missing(self) -> str:
        """Return why no process serves calls, as text with the backend's name; empty if one does."""
        return "" if self._state is BackendState.READY else str(self._unavailable())

    def quarantined(self) -> tuple[Quarantined, ...]:
        """Return the devices of quarantined claims."""
        return self._attribution.quarantined()

    def release(self, uid: str) -> None:
        """Forget the crashes of a claim that was unprepared; `discover` follows if its devices are free again."""
        if self._attribution.remembers and self._attribution.release(uid):
            self._hinted.set()

    # Calls

    def _new_call(self, method: Method, seconds: float, **arguments: Any) -> Call:
        return Call(id=next(self._ids), method=method, until=anyio.current_time() + seconds, **arguments)

    async def _ask(self, call: Call) -> Reply:
        """Call until there is an answer; more than once only if the process ended and this call did not cause it."""
        attribution, process, reached, repeated = self._attribution, self._restored_process, False, False
        assert call.until is not None
        deadline = call.until - anyio.current_time()
        if deadline <= 0:
            raise of_call(BackendTimeout(self._name, str(call), 0), reached_backend=False)
        if attribution.remembers:
            self._refuse_quarantined(call)
        try:
            while True:
                if process is None or attribution.suspects:
                    process = await self._wait_admission(call, reached=reached)
                reached = True
                if self._updates.unsent:
                    self._updates.send(process)
                outcome = await process.in_flight.call(call, deadline=deadline)
                if isinstance(outcome, Reply):
                    if attribution.remembers:
                        attribution.note_answer(call.claim, call.method, succeeded=True)
                    return outcome
                if not isinstance(outcome, Involvement):
                    raise self._read_failure(process, call, outcome, repeated=repeated)
                # It ended, and this call did not cause it. Failing it would cost claims that did nothing wrong, within
                # the same call of the kubelet; called again alone, it shows whether it is the cause.
                process, repeated = None, True
        finally:
            if attribution.suspects:  # the next one may start once no other call is in flight
                attribution.forget_call(call.id)
                self._note_change()

    def _refuse_quarantined(self, call: Call) -> None:
        quarantined = self._attribution.begin(call.id, call.claim, call.method) if call.claim is not None else None
        if quarantined is not None:
            raise of_call(ClaimQuarantined(quarantined.explain(self._name)), reached_backend=False)

    def _read_failure(
        self, process: BackendProcess, call: Call, failure: Failure | PydraError, *, repeated: bool
    ) -> PydraError:
        if isinstance(failure, Failure) or process.open:  # else its process has ended; here it may have been cancelled
            self._attribution.note_answer(call.claim, call.method, succeeded=False)
        if isinstance(failure, PydraError):
            return failure
        if failure.fault.kind is FaultKind.CONTRACT:
            return self._answers.reject(call.method, failure.fault.problems, call.claim)
        return parse_fault(failure.fault, self._name, str(call), repeated=repeated)

    async def _wait_admission(self, call: Call, *, reached: bool) -> BackendProcess:
        """Return a process that this call may use now. Raises BackendUnavailable if there is none in time.

        `reached` says whether an earlier process already had the call.
        """
        assert call.until is not None
        with anyio.move_on_after(call.until - anyio.current_time()):
            while self._find_end() is None:
                # Claims that `inherit` returns are not held yet: a `restore` before it would end them.
                process = self._open_process if call.method is Method.INHERIT else self._restored_process
                if process is not None and self._attribution.may_call(call.id, busy=not process.in_flight.idle):
                    return process
                if self._attribution.suspects:
                    self._hint_call.cancel()  # so that a suspect is alone; `_wait_hinting` waits for the last of them
                await self._changed.wait()
        raise of_call(self._find_end() or self._unavailable(), reached_backend=reached)

    def _reject_unsolicited(self, call_id: int) -> None:
        violation = f"an answer to call {call_id}, which is not in flight"
        _log.error("backend %s: %s", self._source, violation)
        self._report(AnswerRejected(backend=self._name, method=None, claim=None, violations=(violation,)))

    def _report_slow(self, call: Call, seconds: float, where: str) -> None:
        waiting = f"; it is waiting in {where}" if where else ""
        message = f"{call} has been running for {seconds:.0f} s{waiting}"
        claim = {"claim": f"{call.claim.namespace}/{call.claim.name}", "uid": call.claim.uid} if call.claim else {}
        _log.warning("backend %s: %s", self._source, message, extra={"fields": {"backend": self._name, **claim}})
        if call.claim is None:  # the duration of a claim's call is reported when it ends
            self._report(self._trouble(Trouble.SLOW, message))

    # Waiting for the process

    def _note_change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def _move(self, state: BackendState, why: str) -> None:
        self._state, self._why = state, why
        self._note_change()

    def _find_end(self) -> PydraError | None:
        """Return a new ContractError, SettingsError or BackendUnavailable if no process will be started any more."""
        if self._refused is not None:
            return self._refusal_error(self._refused)
        return self._unavailable() if self._state is BackendState.STOPPED else None

    def _unavailable(self) -> BackendUnavailable:
        trying = "is being tested for which of several calls ended its process; try again"
        return BackendUnavailable(self._name, self._why or (trying if self._attribution.suspects else "is not ready"))

    # The process

    async def _keep_running(self) -> None:
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
                delay = self._restarts.delay(failures)
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
            self._move(BackendState.DOWN, f"has {len(unkillable)} processes that cannot be killed (pids {pids})")
            await anyio.sleep(self._restarts.unkillable_look)
        self._unkillable = unkillable

    async def _run_process(self) -> BackendEnded | BackendTrouble | BackendRefused:
        """Run one process from start to end; return what to report about it."""
        self._starts += 1
        self._move(BackendState.STARTING, f"is starting again, after: {self._cause}" if self._cause else "is starting")
        process = self._process = BackendProcess(
            self._source,
            timeouts=self._timeouts,
            environ=self._environ,
            settings=self._settings,
            program=self._program,
            rights=self._rights,
            spawn=self._spawn,
            on_change=self._note_change,
            on_ready=self._handle_hello,
            on_unsolicited=self._reject_unsolicited,
            on_slow=self._report_slow,
        )
        try:
            ending = await process.run(self._deadlines.connect)
            if process.exists:
                self._unkillable.append(process)
                message = f"process {process.pid} cannot be killed; it hangs in the kernel, in a device driver"
                self._report(self._trouble(Trouble.UNKILLABLE, message))
            if process.refusal is not None:
                return self._read_refusal(process.refusal)
            if self._incompatible:
                return BackendRefused(backend=self._name, violations=self._incompatible, details="")
            return self._conclude_calls(process, ending)
        except (OSError, SettingsError) as error:
            return self._trouble(Trouble.START, f"cannot be started: {error}")
        finally:
            self._process = None
            self._why = "is stopped"
            process.in_flight.conclude_all(self._unavailable)  # those left when the agent stops

    def _handle_hello(self, process: BackendProcess, hello: Hello) -> None:
        source = self._source
        facts = BackendFacts(
            name=source.name,
            distribution=source.distribution,
            version=source.version,
            **msgspec.structs.asdict(hello),
        )
        self._incompatible = self._facts.find_changes(facts) if self._facts is not None else ()
        if self._incompatible:
            process.kill()
            return
        self._facts = facts
        self._updates.begin(wanted=facts.reads_held)
        process.restored = Method.RESTORE not in hello.methods
        self._cause = ""
        self._move(BackendState.READY, "" if process.restored else "does not know yet what this node holds")
        again = " again" if self._starts > 1 else ""
        _log.info("backend %s: ready%s in process %d after %.2f s", source, again, process.pid, process.age)
        if self._starts > 1:
            self._hinted.set()  # the hardware may have changed since the last process
        self._report(
            BackendReady(
                backend=source.name, facts=self._facts, pid=process.pid, starts=self._starts, seconds=process.age
            )
        )

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
        return BackendEnded(backend=self._name, diagnosis=diagnosis, calls=ending.calls)

    def _attribute_crash(self, call: Call, one: CallInFlight, ending: Ending, diagnosis: Diagnosis) -> PydraError:
        """Return the error of the call at fault, which names no other; terminal if its claim is quarantined now."""
        line = diagnosis.describe_for(one)
        quarantined = self._attribution.note_crash(call.claim, call.method, line) if call.claim is not None else None
        if call.claim is not None and quarantined is not None:
            error = ClaimQuarantined(quarantined.explain(self._name))
            _log.error("%s", error)
            return error
        return build_failure(self._name, call, one, ending.cause, diagnosis)

    def _read_refusal(self, refusal: Refusal) -> BackendTrouble | BackendRefused:
        fault = refusal.fault
        if refusal.final and self._facts is None:
            return BackendRefused(
                backend=self._name,
                violations=fault.problems,
                details=fault.traceback,
                invalid_settings=fault.kind is FaultKind.INVALID_SETTINGS,
            )
        # A backend that could be called before: its files are being replaced, or cannot be read now.
        why = "; ".join(fault.problems) if refusal.final else parse_fault(fault, self._name, "connect")
        return self._trouble(Trouble.START, why, details=fault.traceback)

    def _trouble(self, trouble: Trouble, message: object, *, details: str = "", ended: bool = False) -> BackendTrouble:
        text = str(message).removeprefix(f"backend {self._name}: ")
        return BackendTrouble(backend=self._name, trouble=trouble, message=text, details=details, ended=ended)

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
            return SettingsError([f"backend {self._name}: {problem}" for problem in event.violations])
        return ContractError(self._name, event.violations, details=event.details)

    def _report_down(self, event: BackendEnded | BackendTrouble, delay: float) -> None:
        if isinstance(event, BackendEnded):
            brief, line, details = event.diagnosis.brief, event.diagnosis.line, event.diagnosis.report
        else:
            brief, line, details = event.message, event.message, event.details
        fields = {"backend": self._name, **({"details": details} if details else {})}
        _log.error("backend %s: %s; it starts again in %.1f s", self._source, line, delay, extra={"fields": fields})
        self._cause = brief
        self._move(BackendState.DOWN, f"{brief}; it starts again {delay:.1f} s after that")
        self._report(event)

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

    # Held claims

    async def _keep_restoring(self) -> None:
        """Pass the held claims to each new process, before any other call."""
        failures = 0
        while True:
            process, held = self._open_process, self._held
            if process is None or process.restored or held is None:
                await self._changed.wait()
                continue
            try:
                async with held() as claims:
                    await self._restore(process, claims)
            except PydraError as error:
                if process is self._open_process:
                    failures += 1
                    delay = min(2.0 ** (failures - 1), _RESTORE_RETRY_CAP_SECONDS)
                    self._report_restore_failed(error, delay)
                    await anyio.sleep(delay)
            else:
                failures = 0

    async def _restore(self, process: BackendProcess, held: Sequence[HeldClaim]) -> None:
        seconds = self._deadlines.discover
        call = self._new_call(Method.RESTORE, seconds)
        self._updates.send_all(process, held)
        try:
            match await process.in_flight.call(call, deadline=seconds):
                case Reply():
                    process.restored = True
                    self._move(self._state, "")
                case Failure(fault=fault):
                    raise parse_fault(fault, self._name, Method.RESTORE.value)
                case PydraError() as error:
                    raise error
        finally:
            self._attribution.forget_call(call.id)

    def _report_restore_failed(self, error: PydraError, delay: float) -> None:
        details = error.details if isinstance(error, BackendError) else ""
        event = self._trouble(Trouble.RESTORE, error, details=details)
        fields = {"backend": self._name, **({"details": details} if details else {})}
        _log.error(
            "backend %s: %s; tried again in %.1f s", self._source, event.message, delay, extra={"fields": fields}
        )
        self._move(self._state, f"cannot be called until restore has succeeded: {event.message}")
        self._report(event)

    # Hints

    async def _poll_hints(self) -> None:
        """Keep a `wait_changed` in flight."""
        failures = 0
        while True:
            call = Call(id=next(self._ids), method=Method.WAIT_CHANGED)
            process = await self._wait_hinting(call.id)
            outcome: Outcome | None = None
            with anyio.CancelScope() as self._hint_call:
                outcome = await process.in_flight.call(call, deadline=float("inf"))
            match outcome:
                case Reply():
                    failures = 0
                    await self._hint()
                    continue
                case Failure(fault=fault):
                    error = parse_fault(fault, self._name, Method.WAIT_CHANGED.value)
                    fields = {"backend": self._name, "details": fault.traceback}
                    _log.warning("%s", error, extra={"fields": fields})
                    self._report(self._trouble(Trouble.HINTS, error, details=fault.traceback))
                case BackendDied(details=details) as died:  # the log has it already
                    self._report(self._trouble(Trouble.HINTS, died, details=details, ended=True))
                case _:
                    continue
            failures += 1
            await anyio.sleep(min(2.0**failures, _HINT_RETRY_CAP_SECONDS))

    async def _wait_hinting(self, call_id: int) -> BackendProcess:
        """Wait for a process that gives hints, while no suspects are tried: another call would make that ambiguous.

        Before the first `discover` has ended there is nothing that could have changed since.
        """
        while True:
            process, facts = self._restored_process, self._facts
            if (
                process is not None
                and process is self._discovered
                and facts is not None
                and Method.WAIT_CHANGED in facts.methods
                and self._attribution.may_call(call_id)
            ):
                return process
            await self._changed.wait()

    async def _hint(self) -> None:
        """Forward a hint, and wait until it was taken: further hints are not collected meanwhile."""
        self._hint_taken = anyio.Event()
        self._hinted.set()
        await self._hint_taken.wait()
        await anyio.sleep(_HINT_PAUSE_SECONDS)
