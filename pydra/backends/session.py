"""One life of a backend's process: greeting, calls in flight, signs of life, end.

Who is to blame for an end, and what happens next, is decided by `pydra.backends.supervisor`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import anyio

from pydra.backends.crash_attribution import Verdict
from pydra.backends.diagnosis import Cause, Ending, Flight
from pydra.backends.discovery import BackendSource
from pydra.backends.faults import FaultKind
from pydra.backends.limits import Patience
from pydra.backends.process import ChildProcess, spawn
from pydra.backends.wire import Call, Cancel, Failure, Hello, Method, Refusal, Reply, ToAgent, WireError
from pydra.errors import BackendTimeout, BackendUnavailable, PydraError, TerminalError

Outcome = Reply | Failure | Verdict | PydraError
"""Of a call: what the backend said; or, when its process ended, the error, or a verdict that says to call again."""

_LAST_OUTPUT_SECONDS = 0.2
_EXIT_SECONDS = 0.5


class _Flying:
    """A call in flight."""

    def __init__(self, call: Call, deadline: float) -> None:
        self.call = call
        self.deadline = deadline
        self.started = time.monotonic()
        self.landed = anyio.Event()
        self.outcome: Outcome | None = None

    def land(self, outcome: Outcome) -> None:
        if self.outcome is None:
            self.outcome = outcome
            self.landed.set()

    def describe(self) -> Flight:
        call = self.call
        return Flight(
            id=call.id,
            method=call.method,
            elapsed=time.monotonic() - self.started,
            deadline=self.deadline,
            claim=f"{call.claim.namespace}/{call.claim.name}" if call.claim else "",
            uid=call.claim.uid if call.claim else "",
        )


class Session:
    """A process from spawn to burial. `run` is its life; `call` may be used while it is `alive`."""

    def __init__(
        self,
        source: BackendSource,
        *,
        patience: Patience,
        environ: Mapping[str, str] | None,
        on_spawn: Callable[[], None],
        on_stray: Callable[[int], None],
    ) -> None:
        self._source = source
        self._patience = patience
        self._environ = environ
        self._on_spawn = on_spawn
        self._on_stray = on_stray
        self._flying: dict[int, _Flying] = {}
        self._abandoned: set[int] = set()
        self._child: ChildProcess | None = None
        self._born = self._heard = time.monotonic()
        self._greeted = anyio.Event()
        self._over = anyio.Event()
        self._ending: Ending | None = None
        self.hello: Hello | None = None
        self.refusal: Refusal | None = None
        self.restored = False

    @property
    def alive(self) -> bool:
        """Whether it can be called."""
        return self.hello is not None and not self._over.is_set()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._child.pid if self._child is not None else 0

    @property
    def undead(self) -> bool:
        """Whether the process still exists, although it was buried."""
        return self._child is not None and self._child.status is None

    @property
    def age(self) -> float:
        """Seconds since it was spawned."""
        return time.monotonic() - self._born

    def flights(self) -> tuple[Flight, ...]:
        """The calls in flight, in the order of their start."""
        return tuple(flying.describe() for flying in self._flying.values())

    @property
    def busy(self) -> bool:
        """Whether anything but `wait_changed` is in flight."""
        return any(flying.call.method is not Method.WAIT_CHANGED for flying in self._flying.values())

    def call_in_flight(self, call_id: int) -> Call | None:
        """The call whose caller still waits."""
        flying = self._flying.get(call_id)
        return flying.call if flying is not None else None

    def conclude(self, call_id: int, outcome: Outcome) -> None:
        """After the end: tell a caller that still waits."""
        flying = self._flying.get(call_id)
        if flying is not None:
            flying.land(outcome)

    # Its life

    async def run(self, connect: float, on_ready: Callable[[Session, Hello], None]) -> Ending:
        """Spawn, be greeted within `connect` seconds, watch over, bury. Raises OSError when it cannot be spawned.

        When cancelled the process is asked to leave, and killed if it does not.
        """
        self._child = await spawn(
            self._source.name,
            self._source.target,
            heartbeat=self._patience.heartbeat,
            environ=self._environ,
            on_message=lambda message: self._receive(message, on_ready),
            on_end=self._disconnected,
        )
        child = self._child
        self._on_spawn()
        try:
            await self._watch(child, connect)
            return await self._bury(child, self._ending or self._describe_end(Cause.DIED))
        except anyio.get_cancelled_exc_class():
            await self._leave(child)
            raise
        finally:
            child.kill()
            with anyio.CancelScope(shield=True):
                await child.aclose()

    async def _watch(self, child: ChildProcess, connect: float) -> None:
        async with anyio.create_task_group() as watches:
            watches.start_soon(self._watch_exit, child, name=f"exit of {self._source.name}")
            watches.start_soon(self._watch_life, connect, name=f"signs of life of {self._source.name}")
            await self._over.wait()
            watches.cancel_scope.cancel()

    def _receive(self, message: ToAgent, on_ready: Callable[[Session, Hello], None]) -> None:
        if self._over.is_set():
            return  # the end is judged by what was in flight at that moment; the stacks' signal may wake a sleeper
        self._heard = time.monotonic()
        match message:
            case Reply(id=call_id) | Failure(id=call_id):
                self._land(call_id, message)
            case Hello() if self.hello is None:
                self.hello = message
                self._greeted.set()
                on_ready(self, message)
            case Refusal():
                self.refusal = message
                self._end(Cause.DIED)

    def _land(self, call_id: int, answer: Reply | Failure) -> None:
        flying = self._flying.get(call_id)
        if flying is not None and flying.outcome is None:
            flying.land(answer)
        elif call_id in self._abandoned:
            self._abandoned.discard(call_id)
        else:
            self._on_stray(call_id)

    def _disconnected(self, error: WireError | None) -> None:
        if error is None:
            self._end(Cause.DIED)
        else:
            self._end(Cause.GARBLED, reason=str(error))

    async def _watch_exit(self, child: ChildProcess) -> None:
        await child.wait()  # beside the end of the connection, which a forked child of its own may hold open
        self._end(Cause.DIED)

    async def _watch_life(self, connect: float) -> None:
        with anyio.move_on_after(connect):
            await self._greeted.wait()
        if not self._greeted.is_set():
            self._end(Cause.LATE, reason=f"within {connect:g} s")
        while True:
            quiet = time.monotonic() - self._heard
            if quiet >= self._patience.silence:
                # A second look: if the agent itself was held up, what has arrived meanwhile is read first.
                await anyio.sleep(self._patience.heartbeat)
                quiet = time.monotonic() - self._heard
                if quiet >= self._patience.silence:
                    self._end(Cause.SILENT, reason=f"for {quiet:.1f} s")
            await anyio.sleep(max(self._patience.silence - quiet, 0.01))

    def _end(self, cause: Cause, *, culprit: int | None = None, reason: str = "") -> None:
        """The first reason counts; what was in flight at that moment is kept."""
        if self._ending is None:
            self._ending = self._describe_end(cause, culprit=culprit, reason=reason)
            self._over.set()

    def _describe_end(self, cause: Cause, *, culprit: int | None = None, reason: str = "") -> Ending:
        return Ending(
            cause=cause,
            status=None,
            age=self.age,
            flights=self.flights(),
            culprit=culprit,
            reason=reason,
        )

    async def _bury(self, child: ChildProcess, ending: Ending) -> Ending:
        """Kill what still runs, and complete the description of the end. Not to be cancelled."""
        with anyio.CancelScope(shield=True):
            await self._end_process(child, ending)
        return Ending(
            cause=ending.cause,
            status=child.status,
            age=ending.age,
            flights=ending.flights,
            culprit=ending.culprit,
            output=child.stderr.tail(),
            reason=ending.reason,
        )

    async def _end_process(self, child: ChildProcess, ending: Ending) -> None:
        if ending.cause in (Cause.WEDGED, Cause.SILENT, Cause.LATE):
            await child.write_stacks(self._patience.stacks)
        elif ending.cause is Cause.DIED:
            if self.refusal is not None:
                child.channel.close()
            with anyio.move_on_after(_EXIT_SECONDS):
                await child.wait()
        child.kill()
        with anyio.move_on_after(self._patience.burial):
            await child.wait()
        await child.wait_output(_LAST_OUTPUT_SECONDS)

    async def _leave(self, child: ChildProcess) -> None:
        """End in good order: the end of our half of the connection asks for it. Not to be cancelled."""
        for flying in self._flying.values():
            flying.land(BackendUnavailable(self._source.name, "is stopped"))
        with anyio.CancelScope(shield=True):
            child.channel.finish()
            with anyio.move_on_after(self._patience.leave):
                await child.wait()
            child.kill()
            with anyio.move_on_after(self._patience.burial):
                await child.wait()
            await child.wait_output(_LAST_OUTPUT_SECONDS)

    # Calls

    async def call(self, call: Call, *, deadline: float, until: float) -> Outcome:
        """Call the backend; wait for the answer until `until` (monotonic), then for the call to be called off.

        Raises BackendTimeout (`deadline` seconds, for the message) when the backend obeyed that, and
        TerminalError for a claim too large to be sent.
        """
        flying = self._flying[call.id] = _Flying(call, deadline)
        try:
            recalled = await self._fly(flying, until)
        except WireError as error:
            failure = TerminalError(f"the claim is too large for its backend: {error}")
            failure.reached_backend = False
            raise failure from error
        finally:
            del self._flying[call.id]
            if flying.outcome is None and self._child is not None:
                self._abandoned.add(call.id)
                self._child.channel.send(Cancel(id=call.id))
        outcome = flying.outcome
        if recalled and isinstance(outcome, Failure) and outcome.fault.kind is FaultKind.CANCELLED:
            raise BackendTimeout(self._source.name, call.method.value, deadline, details=outcome.fault.traceback)
        assert outcome is not None
        return outcome

    async def _fly(self, flying: _Flying, until: float) -> bool:
        """Wait for the outcome; True when the call had to be called off."""
        child = self._child
        if child is None or self._over.is_set():
            flying.land(Verdict.BYSTANDER)
            return False
        with anyio.move_on_after(until - time.monotonic()):
            await child.channel.drain()
            child.channel.send(flying.call)
            await flying.landed.wait()
            return False
        child.channel.send(Cancel(id=flying.call.id))
        with anyio.move_on_after(self._patience.recall):
            await flying.landed.wait()
            return True
        if time.monotonic() - self._heard > 2 * self._patience.heartbeat:
            # Its whole event loop stands still: any call in flight may be the one that blocks it.
            self._end(Cause.SILENT, reason="and a call did not end")
        else:
            self._end(Cause.WEDGED, culprit=flying.call.id)
        await flying.landed.wait()  # the burial is bounded, and its verdict follows
        return True
