"""Runs one child process: spawn, calls, liveness checks, output, kill.

Which call crashed the process, and what happens next, is decided in `pydra.backends.supervisor`. Calls are plain
futures and timers, because the start of every pod waits for them. What the process sends is read at a bounded rate, so
it cannot slow down others.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import anyio
import msgspec

from pydra.backends.crash_attribution import Involvement
from pydra.backends.crash_diagnosis import CallInFlight, Cause, Ending, find_wait
from pydra.backends.discovery import BackendSource, variable_prefix
from pydra.backends.error_codec import FaultKind
from pydra.backends.process_command import prepare_command
from pydra.backends.process_output import LogLimit, OutputLog, OutputPipe, connect_pipe, is_stack
from pydra.backends.resource_limits import find_memory_excess, has_oom_kill
from pydra.backends.timeouts import ProcessTimeouts
from pydra.backends.wire import (
    MAX_EXCEPTION,
    MAX_MESSAGE,
    MAX_NAME,
    Call,
    Cancel,
    Channel,
    Failure,
    Held,
    Hello,
    Locate,
    LogLine,
    Method,
    Ping,
    Refusal,
    Reply,
    Start,
    ToAgent,
    Waiting,
    WireError,
    parse_to_agent,
)
from pydra.errors import BackendError, BackendTimeout, BackendUnavailable, PydraError, of_call
from pydra.foreign_text import cut
from pydra.settings import ProcessRights

Outcome: TypeAlias = Reply | Failure | Involvement | PydraError
"""Of a call: the backend's answer; or, if its process ended, the error, or an Involvement that says to call again."""

MAX_UNSOLICITED = 100
"""Unsolicited answers that a process may send before it is killed."""

_DESCRIPTORS = resource.getrlimit(resource.RLIMIT_NOFILE)
"""The limits that the agent was started with. It raises its own; a backend's libraries may use select()."""

_IDLE_PING_SECONDS = 30.0
_LAST_OUTPUT_SECONDS = 0.2
_EXIT_SECONDS = 0.5
_QUIET_SECONDS = 0.05


class ChildProcess(Protocol):
    """A process that was started, as an `asyncio.subprocess.Process`."""

    @property
    def pid(self) -> int:
        """The process id."""

    @property
    def returncode(self) -> int | None:
        """How it ended; None until it has been reaped."""

    async def wait(self) -> int:
        """Wait for its end."""

    def send_signal(self, signal: int) -> None:
        """Send it a signal. Raises ProcessLookupError."""


Descriptors: TypeAlias = tuple[int, int, int]
"""Of a process's connection, output and errors."""
Spawn: TypeAlias = Callable[[Sequence[str], Descriptors, Mapping[str, str] | None], Awaitable[ChildProcess]]
"""Starts a process with these arguments, descriptors and variables, in a session of its own. Raises OSError."""


async def spawn_program(
    arguments: Sequence[str], descriptors: Descriptors, environ: Mapping[str, str] | None
) -> ChildProcess:
    """Start the program that the arguments name."""
    connection, output, errors = descriptors
    return await asyncio.create_subprocess_exec(
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
        pass_fds=[connection],
        env=environ,
        start_new_session=True,  # so Ctrl-C reaches the agent only, and `kill` all that the process has started
    )


class _Pending(msgspec.Struct, kw_only=True, eq=False):
    """A call in flight."""

    call: Call
    deadline: float
    started: float
    answer: asyncio.Future[Outcome]
    timer: asyncio.TimerHandle | None = None
    cancel_sent: bool = False
    is_slow: bool = False
    is_located: bool = False
    loop_runs: bool = False
    where: str = ""


class BackendProcess:
    """One process: `run` runs it, `call` works while it is `open`. `restored`: it knows what the node holds."""

    def __init__(
        self,
        source: BackendSource,
        *,
        timeouts: ProcessTimeouts,
        environ: Mapping[str, str] | None,
        settings: Mapping[str, Any],
        program: str,
        rights: ProcessRights,
        spawn: Spawn,
        on_change: Callable[[], None],
        on_ready: Callable[[BackendProcess, Hello], None],
        on_unsolicited: Callable[[int], None],
        on_slow: Callable[[Call, float, str], None],
    ) -> None:
        self._source = source
        self._timeouts = timeouts
        self._environ = environ
        self._settings = settings
        self._program = program
        self._rights = rights
        self._spawn_process = spawn
        self._on_change = on_change
        self._on_ready = on_ready
        self._on_unsolicited = on_unsolicited
        self._on_slow = on_slow
        self._loop = asyncio.get_running_loop()
        self._log = logging.getLogger(f"pydra.backend.{source.name}")
        self._limits = [LogLimit(self._log.warning) for _ in range(3)]  # one each, so none can silence the others
        stdout = OutputLog(self._log.info, self._limits[0])
        self._stderr = OutputLog(self._log_stderr, self._limits[1])
        self._pipes = [OutputPipe(output, self._note_written, self._loop) for output in (stdout, self._stderr)]
        self._transports: list[asyncio.BaseTransport] = []
        self._written = asyncio.Event()
        self._channel: Channel[ToAgent] = Channel(parse_to_agent, self._receive, self._disconnected)
        self._process: ChildProcess | None = None
        self._cgroup: Path | None = None
        self._pending: dict[int, _Pending] = {}
        self._abandoned: dict[int, float] = {}
        self._unsolicited = 0
        self._born = self._asked = self._loop.time()
        self._unanswered: float | None = None
        self._missed_ping = False
        self._ended: asyncio.Future[Ending] = self._loop.create_future()
        self.hello: Hello | None = None
        self.refusal: Refusal | None = None
        self.open = False
        self.restored = False

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid if self._process is not None else 0

    @property
    def exists(self) -> bool:
        """Whether the process still exists, perhaps although it was killed."""
        return self._process is not None and self._process.returncode is None

    @property
    def age(self) -> float:
        """Seconds since the process was spawned."""
        return self._loop.time() - self._born

    @property
    def busy(self) -> bool:
        """Whether anything but `wait_changed` is in flight."""
        return any(pending.call.method is not Method.WAIT_CHANGED for pending in self._pending.values())

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight, `wait_changed` and calls that are just being cancelled included."""
        recent = self._loop.time() - self._timeouts.cancel_timeout
        return not self._pending and all(cancelled <= recent for cancelled in self._abandoned.values())

    def calls(self) -> tuple[CallInFlight, ...]:
        """Return the calls in flight, in the order of their start."""
        now = self._loop.time()
        return tuple(_describe(pending, now) for pending in self._pending.values())

    # Calls

    async def call(self, call: Call, *, deadline: float) -> Outcome:
        """Call the backend. At `call.until` the call is cancelled, and the process is killed if the call does not end.

        `deadline` is the same limit in seconds, for messages. The outcome is BackendTimeout for a call that ended when
        it was cancelled. Raises BackendError if the call is too large to be sent.
        """
        if self._ended.done():
            return Involvement.BYSTANDER
        answer = self._loop.create_future()
        pending = _Pending(call=call, deadline=deadline, started=self._loop.time(), answer=answer)
        self._pending[call.id] = pending
        if call.until is not None:
            pending.timer = self._loop.call_at(call.until, self._cancel, pending)
        try:
            self._channel.send(call)
            return await pending.answer
        except WireError as error:
            failure = BackendError(self._source.name, f"{call} cannot be called: {error}")
            raise of_call(failure, reached_backend=False) from error
        finally:
            if pending.timer is not None:
                pending.timer.cancel()
            del self._pending[call.id]
            if pending.answer.cancelled():  # by the caller
                self._abandoned[call.id] = self._loop.time()
                self._channel.send(Cancel(id=call.id))
                self._loop.call_later(self._timeouts.cancel_timeout, self._on_change)

    def send_held(self, held: Held) -> None:
        """Send what the node holds."""
        self._channel.send(held)

    def call_in_flight(self, call_id: int) -> Call | None:
        """Return the call if its caller still waits."""
        pending = self._pending.get(call_id)
        return pending.call if pending is not None and not pending.answer.done() else None

    def conclude(self, call_id: int, outcome: Outcome) -> None:
        """Pass the outcome to a caller that still waits, after the end of the process."""
        pending = self._pending.get(call_id)
        if pending is not None and not pending.answer.done():
            pending.answer.set_result(outcome)

    def _cancel(self, pending: _Pending) -> None:
        pending.cancel_sent = True
        self._channel.send(Cancel(id=pending.call.id))
        pending.timer = self._loop.call_later(self._timeouts.cancel_timeout, self._kill_for_timeout, pending)

    def _kill_for_timeout(self, pending: _Pending) -> None:
        """End the process for a call that did not end when cancelled; for its event loop, if that did not cancel it."""
        if pending.loop_runs:
            self._end(Cause.STUCK_CALL, failed_call=pending)
        else:
            self._end(Cause.STUCK_LOOP, reason=f"when {pending.call} had to be cancelled")

    def _receive(self, message: ToAgent) -> None:
        if self._ended.done():
            return  # what was in flight at the end decides; the signal for the stacks may wake a sleeping call
        if isinstance(message, Reply):
            self._unanswered = None
            pending = self._pending.get(message.id)
            if pending is not None and not pending.answer.done():
                pending.answer.set_result(message)
            else:
                self._note_unexpected(message.id)
        elif isinstance(
            message, LogLine
        ):  # may come from what blocks the event loop: does not count as a ping's answer
            self._log_line(message)
        else:
            self._unanswered = None
            self._receive_rest(message)

    def _receive_rest(self, message: ToAgent) -> None:
        match message:
            case Failure():
                self._fail(message)
            case Waiting(id=call_id, where=where):
                if (pending := self._pending.get(call_id)) is not None:
                    pending.where = cut(where, MAX_EXCEPTION)
                    pending.loop_runs = pending.cancel_sent
                    if pending.is_slow and not pending.is_located and not pending.cancel_sent:
                        pending.is_located = True
                        self._on_slow(pending.call, self._loop.time() - pending.started, find_wait(where))
            case Refusal():
                self.refusal = message
                self._end(Cause.DIED)
            case Hello() if self.hello is None:
                self.hello, self.open = message, True
                self._on_ready(self, message)

    def _fail(self, failure: Failure) -> None:
        pending = self._pending.get(failure.id)
        if pending is None or pending.answer.done():
            self._note_unexpected(failure.id)
        elif pending.cancel_sent and failure.fault.kind is FaultKind.CANCELLED:
            pending.answer.set_result(self._timed_out(pending, failure))
        else:
            pending.answer.set_result(failure)

    def _note_unexpected(self, call_id: int) -> None:
        if call_id in self._abandoned:
            del self._abandoned[call_id]
            self._on_change()
        else:
            self._unsolicited += 1
            self._on_unsolicited(call_id)
            if self._unsolicited >= MAX_UNSOLICITED:
                self._end(Cause.GARBLED, reason=f"{self._unsolicited} answers to calls that are not in flight")

    def _timed_out(self, pending: _Pending, answer: Failure) -> BackendTimeout:
        fault = answer.fault
        trace = pending.where or fault.traceback
        error = BackendTimeout(
            self._source.name, str(pending.call), pending.deadline, where=find_wait(trace), details=trace
        )
        return of_call(error, reached_backend=fault.reached)

    # Lifetime

    async def run(self, connect: float) -> Ending:
        """Spawn the process, wait `connect` seconds for its Hello, monitor and reap it. Raises OSError from spawning.

        When cancelled, asks the process to exit, and kills it if it does not.
        """
        await self._spawn()
        self._on_change()
        exited = asyncio.ensure_future(self._wait_exit())
        timers = [self._loop.call_later(connect, self._fail_late_start, connect)]
        self._timer = self._loop.call_later(self._timeouts.ping_interval, self._tick)
        try:
            return await self._reap(await asyncio.shield(self._ended))
        except asyncio.CancelledError:
            await self._stop()
            raise
        finally:
            for timer in (*timers, self._timer):
                timer.cancel()
            exited.cancel()
            self.kill()
            with anyio.CancelScope(shield=True):
                await self._close()

    async def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        writers: list[int] = []
        try:
            command = prepare_command(self._source, theirs.fileno(), rights=self._rights, program=self._program)
            self._cgroup = command.cgroup
            ours.setblocking(False)
            for pipe in self._pipes:
                reader, writer = os.pipe()
                writers.append(writer)
                self._transports.append(await connect_pipe(reader, pipe))
            files = (theirs.fileno(), writers[0], writers[1])
            self._process = await self._spawn_process(command.arguments, files, self._environ)
            await self._channel.open(ours)
            first = Start(
                backend=self._source.configured_name,
                prefix=f"{variable_prefix(self._source.name)}_",
                settings=self._settings,
                log_level=self._log.getEffectiveLevel(),
                descriptors=_DESCRIPTORS,
            )
            self._channel.send(first)
        except BaseException:
            ours.close()
            self.kill()
            self._release()
            raise
        finally:
            theirs.close()
            for fd in writers:
                os.close(fd)

    async def _wait_exit(self) -> None:
        await self._wait()  # a forked child may hold the connection open after the exit
        self._end(Cause.DIED)

    def _disconnected(self, error: WireError | None) -> None:
        if error is None:
            self._end(Cause.DIED)
        else:
            self._end(Cause.GARBLED, reason=str(error))

    def _fail_late_start(self, connect: float) -> None:
        if self.hello is None:
            self._end(Cause.LATE, reason=f"within {connect:g} s")

    def _tick(self) -> None:
        """Check the process and its calls, and end a process that uses too much memory or does not answer."""
        now = self._loop.time()
        for limit in self._limits:
            limit.flush()
        if excess := find_memory_excess(self.pid, self._rights):
            self._end(Cause.OVER_MEMORY, reason=excess)
        if self.hello is not None and not self._ended.done():
            self._ping(now)
        self._locate_slow_calls(now)
        self._timer = self._loop.call_later(self._timeouts.ping_interval, self._tick)

    def _ping(self, now: float) -> None:
        """Ping while calls are in flight, and sometimes when idle; end a process that does not answer."""
        if self._unanswered is None:
            if self.busy or now - self._asked >= _IDLE_PING_SECONDS:
                self._unanswered = self._asked = now
                self._missed_ping = False
                self._channel.send(Ping())
        elif now - self._unanswered >= self._timeouts.ping_timeout:
            if self._missed_ping:
                self._end(Cause.STUCK_LOOP, reason=f"for {now - self._unanswered:.1f} s")
            self._missed_ping = True  # if the agent itself was blocked, what has arrived meanwhile is read first

    def _locate_slow_calls(self, now: float) -> None:
        for pending in self._pending.values():
            if pending.call.until is not None and not pending.is_slow:  # wait_changed has no deadline
                pending.is_slow = now - pending.started >= self._timeouts.slow_call
                if pending.is_slow:
                    self._channel.send(Locate(id=pending.call.id))

    def _end(self, cause: Cause, *, failed_call: _Pending | None = None, reason: str = "") -> None:
        """Record the end, with the calls in flight; only the first cause counts."""
        if not self._ended.done():
            self.open = False
            ending = Ending(
                cause=cause,
                status=None,
                age=self.age,
                calls=self.calls(),
                failed_call=failed_call.call.id if failed_call is not None else None,
                where=failed_call.where if failed_call is not None else "",
                reason=reason,
            )
            self._ended.set_result(ending)

    async def _reap(self, ending: Ending) -> Ending:
        """Kill what still runs, and complete the description of the end. Shielded from cancellation."""
        closed_only = False
        with anyio.CancelScope(shield=True):
            if ending.cause in (Cause.STUCK_CALL, Cause.STUCK_LOOP, Cause.LATE):
                await self._write_stacks()
            elif ending.cause is Cause.DIED:
                if self.refusal is not None:
                    self._channel.close()
                with anyio.move_on_after(_EXIT_SECONDS):
                    await self._wait()
                closed_only = self.exists
            await self._kill_and_wait()
        status = self._process.returncode if self._process is not None and not closed_only else None
        ending = msgspec.structs.replace(ending, status=status, output=self._stderr.tail())
        if status == -signal.SIGKILL and ending.cause is Cause.DIED and self._is_out_of_memory():
            reason = f"its memoryLimit is {self._rights.memory_limit}"
            return msgspec.structs.replace(ending, cause=Cause.OVER_MEMORY, reason=reason)
        return ending

    def _is_out_of_memory(self) -> bool:
        return self._cgroup is not None and has_oom_kill(self._cgroup)

    async def _stop(self) -> None:
        """Stop the process by closing our half of the connection. Shielded from cancellation."""
        for pending in self._pending.values():
            if not pending.answer.done():
                pending.answer.set_result(BackendUnavailable(self._source.name, "is stopped"))
        with anyio.CancelScope(shield=True):
            self._channel.finish()
            with anyio.move_on_after(self._timeouts.exit_timeout):
                await self._wait()
            await self._kill_and_wait()

    async def _kill_and_wait(self) -> None:
        self.kill()
        with anyio.move_on_after(self._timeouts.kill_timeout):
            await self._wait()
        with anyio.move_on_after(_LAST_OUTPUT_SECONDS):  # its own children may hold the pipes open
            for pipe in self._pipes:
                await pipe.ended.wait()

    async def _write_stacks(self) -> None:
        """Request the Python stacks of all threads on stderr, and wait for them.

        A signal handler in C writes them, so they show a call that holds the GIL, too.
        """
        if not self._signal(signal.SIGUSR1):
            return
        before = self._stderr.received
        with anyio.move_on_after(self._timeouts.stack_dump_timeout):
            while self._stderr.received == before:
                await self._wait_written()
        quiet = False
        with anyio.move_on_after(self._timeouts.stack_dump_timeout):
            while not quiet:
                with anyio.move_on_after(_QUIET_SECONDS) as pause:
                    await self._wait_written()
                quiet = pause.cancelled_caught

    def kill(self) -> None:
        """SIGKILL; the only signal that a call holding the GIL cannot delay.

        Also for programs that it has started, which would change the hardware beside the next process, and which may
        outlive it. What is to go on, such as a daemon, has a session of its own.
        """
        if self._process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> bool:
        if self._process is None or self._process.returncode is not None:
            return False
        try:
            self._process.send_signal(number)
        except ProcessLookupError:
            return False
        return True

    async def _wait(self) -> None:
        """Wait for its end; forever, if the kernel cannot kill it."""
        if self._process is not None:
            await self._process.wait()

    def _release(self) -> None:
        self._channel.close()
        for transport in self._transports:
            transport.close()

    async def _close(self) -> None:
        """Close the socket and the pipes, and wait until that is done: one or two event loop iterations."""
        self._release()
        await self._channel.wait_closed()
        for pipe in self._pipes:
            await pipe.ended.wait()

    # Output and log

    def _note_written(self) -> None:
        self._written.set()

    async def _wait_written(self) -> None:
        self._written.clear()
        await self._written.wait()

    def _log_stderr(self, line: str) -> None:
        self._log.log(logging.DEBUG if is_stack(line) else logging.WARNING, line)

    def _log_line(self, line: LogLine) -> None:
        if not self._log.isEnabledFor(line.level):
            return
        if not self._limits[2].admit():
            self._limits[2].drop(1)
            return
        fields = {"backend": self._source.name}
        if line.uid:
            fields |= {"claim": line.claim[:MAX_NAME], "uid": line.uid[:MAX_NAME]}
        if line.exception:
            fields["details"] = line.exception[:MAX_EXCEPTION]
        # Without a logger of that name: a backend could create any number of them.
        name, message = f"{self._log.name}.{line.logger[:MAX_NAME]}", line.message[:MAX_MESSAGE]
        record = self._log.makeRecord(name, line.level, "", 0, message, (), None, extra={"fields": fields})
        self._log.handle(record)


def _describe(pending: _Pending, now: float) -> CallInFlight:
    call = pending.call
    return CallInFlight(
        id=call.id,
        method=call.method,
        doing=str(call),
        elapsed=now - pending.started,
        deadline=pending.deadline,
        claim=f"{call.claim.namespace}/{call.claim.name}" if call.claim else "",
        uid=call.claim.uid if call.claim else "",
    )
