"""Runs one child process, from spawn to end: its connection, liveness checks, kill.

Which call crashed the process, and what happens next, is decided in `pydra.backends.supervisor`. What the process sends
is read at a bounded rate, so it cannot slow down others.
"""

from __future__ import annotations

import asyncio
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

from pydra.backends.calls_in_flight import CallsInFlight
from pydra.backends.crash_diagnosis import Cause, Ending
from pydra.backends.discovery import BackendSource, variable_prefix
from pydra.backends.process_command import prepare_command
from pydra.backends.process_output import ProcessOutput
from pydra.backends.resource_limits import find_memory_excess, has_oom_kill
from pydra.backends.timeouts import ProcessTimeouts
from pydra.backends.wire import (
    Call,
    Channel,
    Failure,
    Held,
    Hello,
    LogLine,
    Ping,
    Refusal,
    Reply,
    Start,
    ToAgent,
    Waiting,
    WireError,
    parse_to_agent,
)
from pydra.errors import BackendUnavailable
from pydra.settings import ProcessRights

_DESCRIPTORS = resource.getrlimit(resource.RLIMIT_NOFILE)
"""The limits that the agent was started with. It raises its own; a backend's libraries may use select()."""

_IDLE_PING_SECONDS = 30.0
_LAST_OUTPUT_SECONDS = 0.2
_EXIT_SECONDS = 0.5


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


class ProcessOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How processes of a backend are run: `settings` are the backend's own, `program` is the module that they run."""

    timeouts: ProcessTimeouts
    environ: Mapping[str, str] | None
    settings: Mapping[str, Any]
    program: str
    rights: ProcessRights
    spawn: Spawn


class BackendProcess:
    """One process: `run` runs it, and it can be called (`in_flight.call`) while it is `open`.

    `restored`: it knows what the node holds.
    """

    def __init__(
        self,
        source: BackendSource,
        options: ProcessOptions,
        *,
        on_change: Callable[[], None],
        on_ready: Callable[[BackendProcess, Hello], None],
        on_unsolicited: Callable[[int], None],
        on_slow: Callable[[Call, float, str], None],
    ) -> None:
        self._source = source
        self._options = options
        self._timeouts = options.timeouts
        self._on_change = on_change
        self._on_ready = on_ready
        self._loop = asyncio.get_running_loop()
        self._output = ProcessOutput(source.name)
        self._channel: Channel[ToAgent] = Channel(parse_to_agent, self._receive, self._disconnected)
        self._process: ChildProcess | None = None
        self._cgroup: Path | None = None
        self._born = self._asked = self._loop.time()
        self._unanswered: float | None = None
        self._missed_ping = False
        self._ended: asyncio.Future[Ending] = self._loop.create_future()
        self.in_flight = CallsInFlight(
            source.name,
            self._channel.send,
            timeouts=options.timeouts,
            end=self._end,
            on_change=on_change,
            on_unsolicited=on_unsolicited,
            on_slow=on_slow,
        )
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

    def send_held(self, held: Held) -> None:
        """Send what the node holds."""
        self._channel.send(held)

    def _receive(self, message: ToAgent) -> None:
        if self._ended.done():
            return  # what was in flight at the end decides; the signal for the stacks may wake a sleeping call
        if isinstance(message, LogLine):  # may come from what blocks the event loop: does not count as a ping's answer
            self._output.log(message)
            return
        self._unanswered = None
        match message:
            case Reply():
                self.in_flight.receive_reply(message)
            case Failure():
                self.in_flight.receive_failure(message)
            case Waiting():
                self.in_flight.receive_place(message)
            case Refusal():
                self.refusal = message
                self._end(Ending(cause=Cause.DIED))
            case Hello() if self.hello is None:
                self.hello, self.open = message, True
                self._on_ready(self, message)

    # Lifetime

    async def run(self, connect: float) -> Ending:
        """Spawn the process, wait `connect` seconds for its Hello, monitor and reap it. Raises OSError from spawning.

        When cancelled, asks the process to exit, and kills it if it does not.
        """
        await self._spawn()
        self._on_change()
        exited = asyncio.ensure_future(self._wait_exit())
        late = self._loop.call_later(connect, self._fail_late_start, connect)
        self._timer = self._loop.call_later(self._timeouts.ping_interval, self._tick)
        try:
            return await self._reap(await asyncio.shield(self._ended))
        except asyncio.CancelledError:
            await self._stop()
            raise
        finally:
            for timer in (late, self._timer):
                timer.cancel()
            exited.cancel()
            self.kill()
            with anyio.CancelScope(shield=True):
                await self._close()

    async def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        writers: list[int] = []
        try:
            options = self._options
            command = prepare_command(self._source, theirs.fileno(), rights=options.rights, program=options.program)
            self._cgroup = command.cgroup
            ours.setblocking(False)
            await self._output.open(writers)
            files = (theirs.fileno(), writers[0], writers[1])
            self._process = await options.spawn(command.arguments, files, options.environ)
            await self._channel.open(ours)
            first = Start(
                backend=self._source.configured_name,
                prefix=f"{variable_prefix(self._source.name)}_",
                settings=options.settings,
                log_level=self._output.level,
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
        self._end(Ending(cause=Cause.DIED))

    def _disconnected(self, error: WireError | None) -> None:
        if error is None:
            self._end(Ending(cause=Cause.DIED))
        else:
            self._end(Ending(cause=Cause.GARBLED, reason=str(error)))

    def _fail_late_start(self, connect: float) -> None:
        if self.hello is None:
            self._end(Ending(cause=Cause.LATE, reason=f"within {connect:g} s"))

    def _tick(self) -> None:
        """Check the process and its calls, and end a process that uses too much memory or does not answer."""
        now = self._loop.time()
        self._output.flush()
        if excess := find_memory_excess(self.pid, self._options.rights):
            self._end(Ending(cause=Cause.OVER_MEMORY, reason=excess))
        if self.hello is not None and not self._ended.done():
            self._ping(now)
        self.in_flight.locate_slow()
        self._timer = self._loop.call_later(self._timeouts.ping_interval, self._tick)

    def _ping(self, now: float) -> None:
        """Ping while calls are in flight, and sometimes when idle; end a process that does not answer."""
        if self._unanswered is None:
            if self.in_flight.busy or now - self._asked >= _IDLE_PING_SECONDS:
                self._unanswered = self._asked = now
                self._missed_ping = False
                self._channel.send(Ping())
        elif now - self._unanswered >= self._timeouts.ping_timeout:
            if self._missed_ping:
                self._end(Ending(cause=Cause.STUCK_LOOP, reason=f"for {now - self._unanswered:.1f} s"))
            self._missed_ping = True  # if the agent itself was blocked, what has arrived meanwhile is read first

    def _end(self, ending: Ending) -> None:
        """Record the end, with the calls in flight; only the first counts."""
        if not self._ended.done():
            self.open = False
            self._ended.set_result(msgspec.structs.replace(ending, age=self.age, calls=self.in_flight.close()))

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
        ending = msgspec.structs.replace(ending, status=status, output=self._output.tail())
        was_killed = status == -signal.SIGKILL and ending.cause is Cause.DIED
        if was_killed and self._cgroup is not None and has_oom_kill(self._cgroup):
            reason = f"its memoryLimit is {self._options.rights.memory_limit}"
            return msgspec.structs.replace(ending, cause=Cause.OVER_MEMORY, reason=reason)
        return ending

    async def _stop(self) -> None:
        """Stop the process by closing our half of the connection. Shielded from cancellation."""
        self.in_flight.conclude_all(lambda: BackendUnavailable(self._source.name, "is stopped"))
        with anyio.CancelScope(shield=True):
            self._channel.finish()
            with anyio.move_on_after(self._timeouts.exit_timeout):
                await self._wait()
            await self._kill_and_wait()

    async def _kill_and_wait(self) -> None:
        self.kill()
        with anyio.move_on_after(self._timeouts.kill_timeout):
            await self._wait()
        with anyio.move_on_after(_LAST_OUTPUT_SECONDS):
            await self._output.wait_closed()

    async def _write_stacks(self) -> None:
        """Request the Python stacks of all threads on stderr, and wait for them.

        A signal handler in C writes them, so they show a call that holds the GIL, too.
        """
        before = self._output.received()
        with suppress(ProcessLookupError):
            if self._process is not None and self.exists:
                self._process.send_signal(signal.SIGUSR1)
                await self._output.wait_quiet(before, self._timeouts.stack_dump_timeout)

    def kill(self) -> None:
        """SIGKILL; the only signal that a call holding the GIL cannot delay.

        Also for programs that it has started, which would change the hardware beside the next process, and which may
        outlive it. What is to go on, such as a daemon, has a session of its own.
        """
        if self._process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _wait(self) -> None:
        """Wait for its end; forever, if the kernel cannot kill it."""
        if self._process is not None:
            await self._process.wait()

    def _release(self) -> None:
        self._channel.close()
        self._output.close()

    async def _close(self) -> None:
        """Close the socket and the pipes, and wait until that is done: one or two event loop iterations."""
        self._release()
        await self._channel.wait_closed()
        await self._output.wait_closed()
