"""One backend as the agent sees it: its coroutines, called in the backend's process.

A call survives the end of that process if it was not to blame for it. What a backend answers is
checked here; errors that it raised arrive as pydra's own. Supervisors share nothing.
"""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias, TypeVar

import anyio
import msgspec

from pydra.backends.answers import (
    find_inheritance_violations,
    find_inventory_violations,
    find_plan_violations,
    find_prepared_violations,
    find_sample_violations,
    find_value_violations,
)
from pydra.backends.crash_attribution import Condemned
from pydra.backends.discovery import BackendSource, refresh_source
from pydra.backends.events import (
    AnswerRejected,
    BackendEvent,
    BackendFacts,
    BackendReady,
    BackendStatistics,
    HintsFailed,
)
from pydra.backends.faults import FaultKind, parse_fault
from pydra.backends.keeper import Keeper
from pydra.backends.limits import Deadlines, Patience, RestartPolicy
from pydra.backends.session import Session
from pydra.backends.wire import Call, Failure, Method, Reply
from pydra.claim import Claim, HeldClaim, Inheritance, PreparedDevice
from pydra.devices import Inventory, Sample
from pydra.errors import BackendError, BackendUnavailable, ClaimQuarantined, ContractError, PydraError

T = TypeVar("T")
E = TypeVar("E", bound=PydraError)

HeldClaims: TypeAlias = Callable[[], AbstractAsyncContextManager[Sequence[HeldClaim]]]

_log = logging.getLogger(__name__)
_HINT_PAUSE_SECONDS = 0.1
_HINT_RETRY_CAP_SECONDS = 60.0
_RESTORE_RETRY_CAP_SECONDS = 30.0


def ignore_event(event: BackendEvent) -> None:
    """Report to nobody."""


class BackendSupervisor:
    """A backend, whatever becomes of its process. `run` must be running for calls to be answered.

    Every call waits, within its deadline, for a process that is starting or being replaced. Errors
    of calls: ClaimError and below as the backend raised them; ContractError for a wrong answer;
    BackendTimeout, BackendDied, BackendUnavailable; TerminalError for a condemned claim;
    BackendError for any other exception of the backend.
    """

    def __init__(
        self,
        source: BackendSource,
        *,
        deadlines: Deadlines = Deadlines(),  # noqa: B008 - frozen
        patience: Patience = Patience(),  # noqa: B008 - frozen
        restarts: RestartPolicy = RestartPolicy(),  # noqa: B008 - frozen
        environ: Mapping[str, str] | None = None,
        refresh: Callable[[BackendSource], BackendSource] = refresh_source,
        report: Callable[[BackendEvent], None] = ignore_event,
    ) -> None:
        self._name = source.name
        self._deadlines = deadlines
        self._report = report
        self._keeper = Keeper(
            source,
            connect=deadlines.connect,
            patience=patience,
            restarts=restarts,
            environ=environ,
            refresh=refresh,
            report=self._pass_on,
        )
        self._ids = itertools.count(1)
        self._hinted = anyio.Event()
        self._hint_taken = anyio.Event()
        self._held: HeldClaims | None = None

    @property
    def name(self) -> str:
        """The backend's name."""
        return self._name

    async def run(self) -> None:
        """Until cancelled: keep the process running. Ends it in good order when cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._keep_hinting, name=f"hints of {self._name}")
            tasks.start_soon(self._keep_restoring, name=f"restore of {self._name}")
            tasks.start_soon(self._keeper.run, name=f"process of {self._name}")

    async def wait_spawned(self) -> None:
        """Wait until its process was started, or could not be."""
        await self._keeper.wait_spawned()

    async def wait_ready(self) -> BackendFacts:
        """Wait until it can be called. Raises ContractError when it is refused, BackendUnavailable when stopped."""
        while self._keeper.session is None or self._keeper.facts is None:
            self._keeper.refuse_if_over()
            await self._keeper.wait_changed()
        return self._keeper.facts

    def restore_from(self, held: HeldClaims) -> None:
        """What this node holds, for `restore`: entered for each new process, and left when `restore` has ended.

        Without it a backend that has `restore` is not called, except for `inherit`.
        """
        self._held = held
        self._keeper.note_change()

    # Its coroutines

    async def discover(self) -> Inventory:
        """The hardware as it is now."""
        reply = await self._ask(self._new_call(Method.DISCOVER))
        inventory = self._decode(reply, Inventory, Method.DISCOVER)
        self._reject(Method.DISCOVER, find_inventory_violations(inventory))
        return inventory

    async def plan(self, claim: Claim, held: Sequence[HeldClaim], *, until: float) -> Any:
        """What `prepare` will do for the claim, as JSON; only for a backend that has PLAN. One call at a time.

        `until`, here and below, is the call's deadline, a time of the event loop's clock.
        """
        reply = await self._ask(self._new_call(Method.PLAN, claim, held=held), until)
        plan = self._decode(reply, object, Method.PLAN, claim)
        self._reject(Method.PLAN, find_plan_violations(plan), claim)
        return plan

    async def prepare(self, claim: Claim, *, until: float) -> tuple[PreparedDevice, ...]:
        """One prepared device for each of the claim's, in their order."""
        call = self._new_call(Method.PREPARE, claim)
        reply = await self._ask(call, until)
        prepared = self._decode(reply, tuple[PreparedDevice, ...], Method.PREPARE, claim)
        self._reject(Method.PREPARE, find_prepared_violations(claim, prepared), claim)
        order = {_identity(device): place for place, device in enumerate(claim.devices)}
        return tuple(sorted(prepared, key=lambda device: order[_identity(device)]))

    async def unprepare(self, claim: Claim, prepared: Sequence[PreparedDevice], *, until: float) -> None:
        """Undo."""
        await self._ask(self._new_call(Method.UNPREPARE, claim, prepared), until)

    async def measure(self) -> tuple[Sample, ...]:
        """Numbers for `/metrics`; none when the backend does not measure."""
        facts = await self.wait_ready() if self._keeper.facts is None else self._keeper.facts
        if Method.MEASURE not in facts.methods:
            return ()
        reply = await self._ask(self._new_call(Method.MEASURE))
        samples = self._decode(reply, tuple[Sample, ...], Method.MEASURE)
        self._reject(Method.MEASURE, find_sample_violations(samples))
        return samples

    async def inherit(self, directory: str) -> Inheritance:
        """What another driver left in the plugin directory; nothing when the backend takes nobody's place."""
        facts = await self.wait_ready() if self._keeper.facts is None else self._keeper.facts
        if Method.INHERIT not in facts.methods:
            return Inheritance()
        reply = await self._ask(Call(id=next(self._ids), method=Method.INHERIT, directory=directory))
        inheritance = self._decode(reply, Inheritance, Method.INHERIT)
        self._reject(Method.INHERIT, find_inheritance_violations(inheritance))
        return inheritance

    async def wait_changed(self) -> None:
        """Wait until `discover` is worth calling: the backend says so, or its process was replaced."""
        await self._hinted.wait()
        self._hinted = anyio.Event()
        self._hint_taken.set()

    # About it

    def statistics(self) -> BackendStatistics:
        """A snapshot."""
        return self._keeper.statistics()

    def quarantined(self) -> tuple[Condemned, ...]:
        """The devices of quarantined claims."""
        return self._keeper.court.condemned()

    def release(self, uid: str) -> None:
        """Forget what a claim did: it no longer exists. What kept others from its devices is worth another look."""
        if self._keeper.court.pardon(uid):
            self._hinted.set()

    # Calls

    def _new_call(
        self,
        method: Method,
        claim: Claim | None = None,
        prepared: Sequence[PreparedDevice] = (),
        held: Sequence[HeldClaim] = (),
    ) -> Call:
        return Call(id=next(self._ids), method=method, claim=claim, prepared=tuple(prepared), held=tuple(held))

    async def _ask(self, call: Call, until: float | None = None) -> Reply:
        """Call until there is an answer; several times only if the process ended through no fault of this call.

        An error of a call that was never handed to the backend's code says so, in `reached_backend`.
        """
        court, method = self._keeper.court, call.method
        condemned = court.sentence(call.claim, method) if call.claim is not None else None
        if condemned is not None:
            raise _unreached(ClaimQuarantined(condemned.explain(self._name)))
        if call.claim is not None:
            court.admit(call.id, call.claim, method)
        now = time.monotonic()
        until = now + self._deadlines.of(method) if until is None else until
        call, deadline, reached = msgspec.structs.replace(call, until=until), until - now, False
        try:
            while True:
                try:
                    session = await self._admission(call, until)
                except BackendError as failure:
                    raise failure if reached else _unreached(failure) from None
                reached = True
                match await session.call(call, deadline=deadline, until=until):
                    case Reply() as reply:
                        if call.claim is not None:
                            court.acquit(call.claim, method)
                        return reply
                    case Failure(fault=fault):
                        if call.claim is not None:
                            court.trust(call.claim, method)
                        if fault.kind is FaultKind.CONTRACT:
                            self._reject(method, fault.problems, call.claim)
                        raise parse_fault(fault, self._name, method.value)
                    case PydraError() as error:
                        raise error
        finally:
            court.dismiss(call.id)
            self._keeper.note_change()

    async def _admission(self, call: Call, until: float) -> Session:
        """A process that this call may use now. Raises BackendUnavailable when there is none in time."""
        with anyio.move_on_after(until - time.monotonic()):
            while True:
                self._keeper.refuse_if_over()
                session = self._keeper.session
                if (
                    session is not None
                    and (session.restored or call.method is Method.INHERIT)
                    and self._keeper.court.may_call(call.id, busy=session.busy)
                ):
                    return session
                await self._keeper.wait_changed()
        raise self._keeper.unavailable()

    def _decode(self, reply: Reply, wanted: type[T], method: Method, claim: Claim | None = None) -> T:
        try:
            return msgspec.msgpack.decode(reply.result, type=wanted)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            violations = find_value_violations(reply.result, wanted) or (str(error),)
            self._reject(method, tuple(f"{method.value}: {one}" for one in violations), claim)
            raise AssertionError from error  # _reject raises when there are violations

    def _reject(self, method: Method, violations: tuple[str, ...], claim: Claim | None = None) -> None:
        if violations:
            error = ContractError(self._name, violations)
            _log.error("%s", error)
            self._report(AnswerRejected(backend=self._name, method=method, claim=claim, violations=violations))
            raise error

    # What the node holds

    async def _keep_restoring(self) -> None:
        """Give each new process what this node holds, before anything else is asked of it."""
        failures = 0
        while True:
            session = self._keeper.session
            if session is None or session.restored or self._held is None:
                await self._keeper.wait_changed()
                continue
            try:
                async with self._held() as held:
                    error = await self._restore(session, held)
            except PydraError as failure:  # what is held cannot be read
                error = failure
            if error is None:
                failures = 0
                session.restored = True
                self._keeper.note_change()
            elif session is self._keeper.session:
                failures += 1
                delay = min(2.0 ** (failures - 1), _RESTORE_RETRY_CAP_SECONDS)
                self._keeper.tell_not_restored(error, delay)
                await anyio.sleep(delay)

    async def _restore(self, session: Session, held: Sequence[HeldClaim]) -> PydraError | None:
        call, seconds = self._new_call(Method.RESTORE, held=held), self._deadlines.connect
        until = time.monotonic() + seconds
        try:
            match await session.call(msgspec.structs.replace(call, until=until), deadline=seconds, until=until):
                case Reply():
                    return None
                case Failure(fault=fault):
                    return parse_fault(fault, self._name, Method.RESTORE.value)
                case PydraError() as error:
                    return error
                case _:  # a bystander of the process's end: there is nobody to restore
                    return BackendUnavailable(self._name, "its process ended")
        except PydraError as error:
            return error
        finally:
            self._keeper.court.dismiss(call.id)
            self._keeper.note_change()

    # Hints

    def _pass_on(self, event: BackendEvent) -> None:
        if isinstance(event, BackendReady) and event.starts > 1:
            self._hinted.set()  # whatever the last process knew, the hardware may be another now
        self._report(event)

    async def _keep_hinting(self) -> None:
        """Keep a `wait_changed` in flight."""
        failures = 0
        while True:
            call = self._new_call(Method.WAIT_CHANGED)
            session = await self._hinting_session(call.id)
            if not self._hints():
                await self._keeper.wait_changed()
                continue
            match await session.call(call, deadline=math.inf, until=math.inf):
                case Reply():
                    failures = 0
                    await self._hint()
                case Failure(fault=fault):
                    failures += 1
                    error = parse_fault(fault, self._name, Method.WAIT_CHANGED.value)
                    fields = {"backend": self._name, "details": fault.traceback}
                    _log.warning("%s", error, extra={"fields": fields})
                    self._report(HintsFailed(backend=self._name, message=str(error), details=fault.traceback))
                    await anyio.sleep(min(2.0**failures, _HINT_RETRY_CAP_SECONDS))

    def _hints(self) -> bool:
        return self._keeper.facts is not None and Method.WAIT_CHANGED in self._keeper.facts.methods

    async def _hinting_session(self, call_id: int) -> Session:
        """A process, outside of trials: what else is in flight would blur them."""
        while True:
            session = self._keeper.session
            if session is not None and session.restored and self._keeper.court.may_call(call_id):
                return session
            await self._keeper.wait_changed()

    async def _hint(self) -> None:
        """Pass a hint on, and wait until somebody took it: hints that nobody looks at are not collected."""
        self._hint_taken = anyio.Event()
        self._hinted.set()
        await self._hint_taken.wait()
        await anyio.sleep(_HINT_PAUSE_SECONDS)


def _unreached(error: E) -> E:
    error.reached_backend = False
    return error


def _identity(device: Any) -> tuple[str, str, str, str | None]:
    return (device.request, device.pool, device.device, device.share_id)
