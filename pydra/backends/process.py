"""Starts the process of a backend, reads what it prints, signals it, and sees it end.

Calls and their meaning are not known here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence

import anyio

from pydra.backends.channel import Channel
from pydra.backends.output import OutputLog, is_stack
from pydra.backends.wire import ToAgent, WireError, parse_to_agent

_QUIET_SECONDS = 0.05
_DESCRIPTORS = resource.getrlimit(resource.RLIMIT_NOFILE)
"""What this process was started with. The agent raises its own; a backend's libraries may use select()."""


def build_command(target: str, fd: int, *, parent: int, heartbeat: float) -> list[str]:
    """The command line of a backend's process.

    `-u`: what it printed last is seen though it crashes. `-P`: the working directory is not on its
    module path, PYTHONPATH is.
    """
    flags = ["-X", "faulthandler", "-u", "-P", "-m", "pydra.backends.child"]
    own = [str(fd), "--parent", str(parent), "--backend", target, "--heartbeat", str(heartbeat)]
    return [sys.executable, *flags, *own]


class _Pipe(asyncio.Protocol):
    """The read end of stdout or stderr."""

    def __init__(self, output: OutputLog, on_data: Callable[[], None]) -> None:
        self._output = output
        self._on_data = on_data
        self.ended = anyio.Event()

    def data_received(self, data: bytes) -> None:
        self._output.feed(data)
        self._on_data()

    def connection_lost(self, exc: Exception | None) -> None:
        self._output.close()
        self.ended.set()
        self._on_data()


async def connect_pipe(reader: int, protocol: asyncio.Protocol) -> asyncio.ReadTransport:
    """Read the pipe's end from now on; it belongs to the transport, and is closed with it, once.

    asyncio leaves closing the descriptor to the file that it was given. uvloop closes it itself, and then the file: in
    between another thread may have got the number for a record that it writes, which would be closed under it.
    """
    loop = asyncio.get_running_loop()
    file = os.fdopen(reader, "rb", buffering=0, closefd=not type(loop).__module__.startswith("uvloop"))
    transport, _ = await loop.connect_read_pipe(lambda: protocol, file)
    return transport


class ChildProcess:
    """A running backend process. Made by `spawn`."""

    def __init__(self, backend: str, channel: Channel[ToAgent]) -> None:
        log = logging.getLogger(f"pydra.backend.{backend}")
        self.channel = channel
        self.stdout = OutputLog(log.info)
        self.stderr = OutputLog(lambda line: log.log(logging.DEBUG if is_stack(line) else logging.WARNING, line))
        self._pipes: list[tuple[asyncio.BaseTransport, _Pipe]] = []
        self._process: asyncio.subprocess.Process | None = None
        self._written = anyio.Event()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid if self._process is not None else 0

    @property
    def status(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        return self._process.returncode if self._process is not None else None

    async def start(self, command: Callable[[int], Sequence[str]], environ: Mapping[str, str] | None) -> None:
        """Run the command that `command` makes of its socket's descriptor. Raises OSError."""
        ours, theirs = socket.socketpair()
        writers: list[int] = []
        try:
            ours.setblocking(False)
            for output in (self.stdout, self.stderr):
                reader, writer = os.pipe()
                writers.append(writer)
                await self._read_from(reader, output)
            self._process = await asyncio.create_subprocess_exec(
                *command(theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=writers[0],
                stderr=writers[1],
                pass_fds=[theirs.fileno()],
                env=environ,
                start_new_session=True,  # Ctrl-C is for the agent, which then ends the process in good order
            )
            with contextlib.suppress(OSError):  # it may have ended already
                resource.prlimit(self._process.pid, resource.RLIMIT_NOFILE, _DESCRIPTORS)
            await self.channel.open(ours)
        except BaseException:
            ours.close()
            self.kill()
            self.close()
            raise
        finally:
            theirs.close()
            for fd in writers:
                os.close(fd)

    async def _read_from(self, reader: int, output: OutputLog) -> None:
        protocol = _Pipe(output, self._note_written)
        self._pipes.append((await connect_pipe(reader, protocol), protocol))

    def _note_written(self) -> None:
        self._written.set()
        self._written = anyio.Event()

    async def write_stacks(self, limit: float) -> None:
        """Ask for the Python stacks of all threads on stderr; wait until they are there, at most `limit` seconds.

        Answered by a signal handler in C, so that a call which holds the GIL is seen as well.
        """
        if not self._signal(signal.SIGUSR1):
            return
        before = self.stderr.received
        with anyio.move_on_after(limit):
            while self.stderr.received == before:
                await self._written.wait()
        quiet = False
        with anyio.move_on_after(limit):
            while not quiet:
                with anyio.move_on_after(_QUIET_SECONDS) as pause:
                    await self._written.wait()
                quiet = pause.cancelled_caught

    def kill(self) -> None:
        """SIGKILL; the only signal that a call holding the GIL cannot delay."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> bool:
        if self._process is None or self._process.returncode is not None:
            return False
        try:
            self._process.send_signal(number)
        except ProcessLookupError:
            return False
        return True

    async def wait(self) -> int:
        """Wait for its end; forever, when the kernel cannot kill it."""
        if self._process is None:
            return 0
        return await self._process.wait()

    async def wait_output(self, limit: float) -> None:
        """Wait for the last output, at most `limit` seconds: its own children may hold the pipes open."""
        with anyio.move_on_after(limit):
            for _, pipe in self._pipes:
                await pipe.ended.wait()

    def close(self) -> None:
        """Let go of the socket and the pipes."""
        self.channel.close()
        for transport, _ in self._pipes:
            transport.close()

    async def aclose(self) -> None:
        """Let go of them, and wait until they are gone: a turn of the event loop or two."""
        self.close()
        await self.channel.wait_closed()
        for _, pipe in self._pipes:
            await pipe.ended.wait()


async def spawn(
    backend: str,
    target: str,
    *,
    heartbeat: float,
    environ: Mapping[str, str] | None,
    on_message: Callable[[ToAgent], None],
    on_end: Callable[[WireError | None], None],
) -> ChildProcess:
    """Start a backend in a process of its own. Raises OSError when the machine has no room for one."""
    child = ChildProcess(backend, Channel(parse_to_agent, on_message, on_end))

    def command(fd: int) -> list[str]:
        return build_command(target, fd, parent=os.getpid(), heartbeat=heartbeat)

    await child.start(command, environ)
    return child
