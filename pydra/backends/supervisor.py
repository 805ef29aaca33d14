"""The coroutines of a backend, called in its process, across restarts of it.

A call that did not crash the process survives its end: it is repeated in the next process. What a coroutine returns is
decoded, and refused if it violates the contract; errors that the backend raised arrive as pydra's own ones. Supervisors
share nothing.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import anyio
import msgspec

from pydra.backends.contract import Inheritance
from pydra.backends.contract_validation import (
    find_inheritance_violations,
    find_json_violations,
    find_prepared_violations,
    find_sample_violations,
    find_size_violations,
    find_value_violations,
    sort_prepared,
)
from pydra.backends.crash_attribution import CrashAttribution, Involvement, Quarantined
from pydra.backends.discovery import BackendSource, refresh_source
from pydra.backends.error_codec import parse_fault
from pydra.backends.held_claims_sync import HeldClaims, HeldClaimsSync
from pydra.backends.process import BackendProcess, ProcessOptions, Spawn, spawn_program
from pydra.backends.process_command import CHILD
from pydra.backends.restarted_process import RestartedProcess
from pydra.backends.supervisor_events import (
    AnswerRejected,
    BackendEvent,
    BackendFacts,
    BackendState,
    BackendStatistics,
)
from pydra.backends.timeouts import CallDeadlines, ProcessTimeouts, RestartPolicy
from pydra.backends.wait_changed import Hints
from pydra.backends.wire import MAX_CONTAINERS, Call, Failure, Method, Reply, count_containers
from pydra.claim import Claim, ClaimStep, HeldClaim, PreparedDevice, answers_exactly
from pydra.devices import Inventory, Sample
from pydra.errors import BackendTimeout, ClaimQuarantined, ContractError, PydraError, of_call
from pydra.settings import ProcessRights

T = TypeVar("T")

_log = logging.getLogger(__name__)


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
        report: Callable[[BackendEvent], None] = lambda _: None,
    ) -> None:
        """`settings` are the backend's own, from the agent's settings file; `program` is what its process runs."""
        self._deadlines = deadlines
        self._answers = AnswerReader(source.name, report)
        self._attribution = CrashAttribution(restarts.crashes)
        self._ids = itertools.count(1)
        options = ProcessOptions(
            timeouts=timeouts, environ=environ, settings=settings, program=program, rights=rights, spawn=spawn
        )
        self._process = RestartedProcess(
            source,
            options,
            connect=deadlines.connect,
            restarts=restarts,
            attribution=self._attribution,
            refresh=refresh,
            on_ready=self._take_up,
            report=report,
        )
        self._held = HeldClaimsSync(
            self._process, self._attribution, ids=self._ids, seconds=deadlines.discover, report=report
        )
        self._hints = Hints(self._process, self._attribution, ids=self._ids, report=report)

    @property
    def name(self) -> str:
        """The backend's name."""
        return self._process.name

    async def run(self) -> None:
        """Keep the process running until cancelled, then stop it."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._hints.run, name=f"hints of {self.name}")
            tasks.start_soon(self._held.run, name=f"restore of {self.name}")
            tasks.start_soon(self._process.run, name=f"process of {self.name}")

    async def wait_spawned(self) -> None:
        """Wait until the process was started, or could not be."""
        process = self._process
        while process.state is BackendState.STARTING and (process.present is None or not process.present.pid):
            await process.wait_change()

    async def wait_ready(self) -> BackendFacts:
        """Wait until the backend can be called.

        Raises ContractError or SettingsError if it is refused, BackendUnavailable if stopped.
        """
        while self._process.open is None or self._process.facts is None:
            if (error := self._process.find_end()) is not None:
                raise error
            await self._process.wait_change()
        return self._process.facts

    def note_held(self, uid: str, held: HeldClaim | None) -> None:
        """Note that the node holds the claim like this from now on, or does not hold it any more."""
        self._held.note(uid, held)

    def restore_from(self, held: HeldClaims) -> None:
        """Set the source of the held claims for `restore`: entered for each new process, left when `restore` has ended.

        Until it is set, a backend that has `restore` is not called, except for `inherit`.
        """
        self._held.restore_from(held)

    def _take_up(self, facts: BackendFacts) -> None:
        self._held.begin(facts)
        if self._process.starts > 1:
            self._hints.give()  # the hardware may have changed since the last process

    # The backend's coroutines

    async def discover(self) -> Inventory:
        """Return the current inventory of the hardware."""
        call = self._new_call(Method.DISCOVER, self._deadlines.discover)
        try:
            reply = await self._ask(call)
        finally:
            self._hints.note_discovered()
        return self._answers.read_inventory(reply)

    async def plan(self, claim: Claim, *, until: float) -> Claim:
        """Return the claim with its plan and its steps; only for a backend with PLAN. One call at a time."""
        facts = self._process.facts or await self.wait_ready()
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
        facts = self._process.facts or await self.wait_ready()
        if Method.UNPREPARE in facts.methods:
            given: dict[str, Any] = {"claim": claim, "prepared": tuple(prepared)}
            await self._ask(Call(id=next(self._ids), method=Method.UNPREPARE, **given, until=until))

    async def measure(self) -> tuple[Sample, ...]:
        """Return samples for `/metrics`; none if the backend does not measure."""
        facts = self._process.facts or await self.wait_ready()
        if Method.MEASURE not in facts.methods:
            return ()
        call = self._new_call(Method.MEASURE, self._deadlines.measure)
        return self._answers.read_samples(await self._ask(call))

    async def inherit(self, directory: str) -> Inheritance:
        """Return what another driver left in the plugin directory; nothing if the backend replaces no other driver."""
        facts = self._process.facts or await self.wait_ready()
        if Method.INHERIT not in facts.methods:
            return Inheritance()
        call = self._new_call(Method.INHERIT, self._deadlines.discover, directory=directory)
        return self._answers.read_inheritance(await self._ask(call))

    async def wait_changed(self) -> None:
        """Wait for a hint to call `discover`: from the backend, or because its process was replaced."""
        await self._hints.wait()

    # State

    def statistics(self) -> BackendStatistics:
        """Return a snapshot."""
        process = self._process.open
        return BackendStatistics(
            state=self._process.state,
            pid=process.pid if process is not None else 0,
            starts=self._process.starts,
            in_flight=process.in_flight.describe() if process is not None else (),
        )

    def missing(self) -> str:
        """Return why no process serves calls, as text with the backend's name; empty if one does."""
        return "" if self._process.state is BackendState.READY else str(self._process.unavailable())

    async def wait_restored(self, patience: float) -> None:
        """Wait until a process knows what the node holds; more than `patience` seconds only if `restore` fails."""
        process = self._process
        with anyio.move_on_after(patience):
            while not process.has_restored:
                await process.wait_change()
        while process.has_failed_to_restore and not process.has_restored:
            await process.wait_change()

    async def wait_restore_failed(self) -> None:
        """Wait until `restore` has failed, for ever if a process knows what the node holds."""
        process = self._process
        while not process.has_restored:
            if process.has_failed_to_restore:
                return
            await process.wait_change()
        await anyio.sleep_forever()

    def missing_restore(self) -> str:
        """Return why no process knows yet what the node holds, as text; empty if one did since the agent started."""
        return "" if self._process.has_restored else str(self._process.unavailable())

    def quarantined(self) -> tuple[Quarantined, ...]:
        """Return the devices of quarantined claims."""
        return self._attribution.quarantined()

    def release(self, uid: str) -> None:
        """Forget the crashes of a claim that was unprepared; `discover` follows if its devices are free again."""
        if self._attribution.remembers and self._attribution.release(uid):
            self._hints.give()

    # Calls

    def _new_call(self, method: Method, seconds: float, **arguments: Any) -> Call:
        return Call(id=next(self._ids), method=method, until=anyio.current_time() + seconds, **arguments)

    async def _ask(self, call: Call) -> Reply:
        """Call until there is an answer; more than once only if the process ended and this call did not cause it."""
        attribution, process, reached, repeated = self._attribution, self._process.restored, False, False
        assert call.until is not None
        deadline = call.until - anyio.current_time()
        if deadline <= 0:
            raise of_call(BackendTimeout(self.name, str(call), 0), reached_backend=False)
        if attribution.remembers:
            self._refuse_quarantined(call)
        try:
            while True:
                if process is None or attribution.suspects:
                    process = await self._wait_admission(call, reached=reached)
                reached = True
                if self._held.unsent:
                    self._held.send(process)
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
                self._process.note_change()

    def _refuse_quarantined(self, call: Call) -> None:
        quarantined = self._attribution.begin(call.id, call.claim, call.method) if call.claim is not None else None
        if quarantined is not None:
            raise of_call(ClaimQuarantined(quarantined.explain(self.name)), reached_backend=False)

    def _read_failure(
        self, process: BackendProcess, call: Call, failure: Failure | PydraError, *, repeated: bool
    ) -> PydraError:
        if isinstance(failure, Failure) or process.open:  # else its process has ended; here it may have been cancelled
            self._attribution.note_answer(call.claim, call.method, succeeded=False)
        if isinstance(failure, PydraError):
            return failure
        error = parse_fault(failure.fault, self.name, str(call), repeated=repeated)
        if isinstance(error, ContractError):
            return self._answers.reject(call.method, error.violations, call.claim)
        return error

    async def _wait_admission(self, call: Call, *, reached: bool) -> BackendProcess:
        """Return a process that this call may use now. Raises BackendUnavailable if there is none in time.

        `reached` says whether an earlier process already had the call.
        """
        assert call.until is not None
        with anyio.move_on_after(call.until - anyio.current_time()):
            while self._process.find_end() is None:
                # Claims that `inherit` returns are not held yet: a `restore` before it would end them.
                process = self._process.open if call.method is Method.INHERIT else self._process.restored
                if process is not None and self._attribution.may_call(call.id, busy=not process.in_flight.idle):
                    return process
                if self._attribution.suspects:
                    self._hints.pause()  # so that a suspect is alone
                await self._process.wait_change()
        raise of_call(self._process.find_end() or self._process.unavailable(), reached_backend=reached)


# Answers


class _StepPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A `Plan` as the backend's process describes it."""

    steps: tuple[ClaimStep, ...] = ()
    data: Any = None


def _refuse_extension(code: int, _: memoryview) -> None:
    raise msgspec.ValidationError(f"an extension of msgpack, type {code}, is not JSON")


class AnswerReader:
    """Reads the answers of one backend. Each method raises ContractError, after it was logged and reported."""

    def __init__(self, backend: str, report: Callable[[AnswerRejected], None]) -> None:
        self._backend = backend
        self._report = report

    def read_inventory(self, reply: Reply) -> Inventory:
        """Return what `discover` returned."""
        return self._decode(reply, Inventory, Method.DISCOVER)

    def read_plan(self, reply: Reply, claim: Claim, *, has_steps: bool) -> Claim:
        """Return the claim with what `plan` returned."""
        self._check(Method.PLAN, find_size_violations(Method.PLAN, reply.result), claim)
        if not has_steps:
            data = self._decode(reply, object, Method.PLAN, claim)
            self._check(Method.PLAN, find_json_violations(Method.PLAN, data), claim)
            return msgspec.structs.replace(claim, plan=data)
        plan = self._decode(reply, _StepPlan, Method.PLAN, claim)
        # Steps have types, of which some, such as bytes, are texts in JSON; what else there is has none.
        said = {"steps": msgspec.to_builtins(plan.steps), "data": plan.data}
        self._check(Method.PLAN, find_json_violations(Method.PLAN, said), claim)
        return msgspec.structs.replace(claim, plan=plan.data, steps=plan.steps)

    def read_result(self, reply: Reply, claim: Claim) -> Any:
        """Return what `apply` returned for a step of the claim, as JSON."""
        self._check(Method.APPLY, find_size_violations(Method.APPLY, reply.result), claim)
        result = self._decode(reply, object, Method.APPLY, claim)
        self._check(Method.APPLY, find_json_violations(Method.APPLY, result), claim)
        return result

    def read_prepared(self, reply: Reply, claim: Claim) -> tuple[PreparedDevice, ...]:
        """Return what `prepare` returned, in the order of the claim's devices."""
        prepared = self._decode(reply, tuple[PreparedDevice, ...], Method.PREPARE, claim)
        if answers_exactly(claim, prepared):
            return prepared
        self._check(Method.PREPARE, find_prepared_violations(claim, prepared), claim)
        return sort_prepared(claim, prepared)

    def read_samples(self, reply: Reply) -> tuple[Sample, ...]:
        """Return what `measure` returned."""
        samples = self._decode(reply, tuple[Sample, ...], Method.MEASURE)
        self._check(Method.MEASURE, find_sample_violations(samples))
        return samples

    def read_inheritance(self, reply: Reply) -> Inheritance:
        """Return what `inherit` returned."""
        inheritance = self._decode(reply, Inheritance, Method.INHERIT)
        self._check(Method.INHERIT, find_inheritance_violations(inheritance))
        return inheritance

    def reject(self, method: Method, violations: tuple[str, ...], claim: Claim | None) -> ContractError:
        """Report that an answer violates the contract; return the error for its caller."""
        error = ContractError(self._backend, violations)
        _log.error("%s", error)
        self._report(AnswerRejected(backend=self._backend, method=method, claim=claim, violations=violations))
        return error

    def _decode(self, reply: Reply, wanted: type[T], method: Method, claim: Claim | None = None) -> T:
        if count_containers(reply.result) > MAX_CONTAINERS:
            said = f"{method.value} returned more than {MAX_CONTAINERS:,} lists and objects"
            raise self.reject(method, (said,), claim)
        try:  # here, not on the connection: an invalid result fails only its own call
            return msgspec.msgpack.decode(reply.result, type=wanted, ext_hook=_refuse_extension)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            violations = find_value_violations(reply.result, wanted) or (str(error),)
            raise self.reject(method, tuple(f"{method.value}: {one}" for one in violations), claim) from error

    def _check(self, method: Method, violations: tuple[str, ...], claim: Claim | None = None) -> None:
        if violations:
            raise self.reject(method, violations, claim)
