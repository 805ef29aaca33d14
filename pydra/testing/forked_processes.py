"""A backend's processes for its checks: the first is started as on a node, those after crashes are forked."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from signal import SIGKILL

from pydra.backends.child.conformance_main import PROGRAM
from pydra.backends.process import ChildProcess, Descriptors, spawn_program

_ANSWER_BYTES = 100


class ForkedProcesses:
    """Starts processes for one run.

    What is forked comes from a process that has imported pydra and nothing of the backend, so each crash is followed
    by a new import of the backend. It shares the seed of hashes with others that were forked, and not with the first.
    """

    def __init__(self) -> None:
        self._starts = 0
        self._requests: socket.socket | None = None
        self._template: ChildProcess | None = None
        self._running: _ForkedProcess | None = None

    async def spawn(
        self, arguments: Sequence[str], descriptors: Descriptors, environ: Mapping[str, str] | None
    ) -> ChildProcess:
        """Start a process; the last of the arguments is the backend's target."""
        self._starts += 1
        is_free = self._running is None or self._running.returncode is not None
        if self._starts == 1 or not is_free:
            return await spawn_program(arguments, descriptors, environ)
        if self._requests is None:
            self._requests = await self._start_template(environ)
        socket.send_fds(self._requests, [arguments[-1].encode()], descriptors)
        pid = await asyncio.get_running_loop().sock_recv(self._requests, _ANSWER_BYTES)
        if not pid:
            raise OSError("the process that others are forked from has ended")
        self._running = _ForkedProcess(int(pid), self._requests)
        return self._running

    async def _start_template(self, environ: Mapping[str, str] | None) -> socket.socket:
        ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with theirs:
            arguments = (sys.executable, "-u", "-P", "-m", PROGRAM, str(theirs.fileno()), str(os.getpid()))
            self._template = await spawn_program(arguments, (theirs.fileno(), 1, 2), environ)
        return ours

    async def close(self) -> None:
        """End the process that others are forked from, and with it a fork that still runs."""
        if self._template is not None and self._requests is not None:
            with suppress(ProcessLookupError):
                self._template.send_signal(SIGKILL)
            await self._template.wait()
            if self._running is not None:
                await self._running.wait()
            self._requests.close()


class _ForkedProcess:
    """A process whose end another one reports."""

    def __init__(self, pid: int, answers: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._end = asyncio.ensure_future(self._read_end(answers))

    async def _read_end(self, answers: socket.socket) -> int:
        status = await asyncio.get_running_loop().sock_recv(answers, _ANSWER_BYTES)
        self.returncode = int(status) if status else -SIGKILL  # as it dies with the one that it was forked from
        return self.returncode

    async def wait(self) -> int:
        """Wait for its end."""
        return await asyncio.shield(self._end)

    def send_signal(self, signal: int) -> None:
        """Send it a signal. Raises ProcessLookupError."""
        os.kill(self.pid, signal)
