"""The process nvidia-imex, and the questions of nvidia-imex-ctl."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from collections import deque

import anyio
from anyio.abc import Process

log = logging.getLogger(__name__)

STOP_SECONDS = 20.0
"""Less than the pod's grace period of 30 s."""
QUERY_SECONDS = 5.0
DOMAIN_SECONDS = 10.0
"""For questions to all nodes, which hang when packets to one are dropped."""


class ImexProcess:
    """One run of nvidia-imex. Its output is passed on; the last lines say why it ended."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._last = deque[str](maxlen=3)

    @classmethod
    async def start(cls, program: str, configuration: str) -> ImexProcess:
        """Start it in the foreground. Raises OSError."""
        command = [program, "-c", configuration]
        return cls(await anyio.open_process(command, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT))

    async def wait(self) -> str:
        """Wait until it has ended; return how."""
        assert self._process.stdout is not None
        rest = b""
        async for chunk in self._process.stdout:
            *lines, rest = (rest + chunk).split(b"\n")
            self._pass_on(lines)
            rest = rest[-4096:]
        self._pass_on([rest] if rest else [])
        code = await self._process.wait()
        how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
        said = f": {' / '.join(self._last)}" if self._last else ""
        return f"nvidia-imex ended {how}{said}"

    def _pass_on(self, lines: list[bytes]) -> None:
        for line in lines:
            text = line.decode(errors="replace").rstrip()
            if text:
                self._last.append(text[:300])
                sys.stderr.write(f"nvidia-imex: {text}\n")

    def reload(self) -> None:
        """Let it look up its peers again."""
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGUSR1)

    async def end(self) -> None:
        """End it: kindly, so that peers learn of it, and after a while by force."""
        with anyio.CancelScope(shield=True):
            if self._process.returncode is None:
                self._process.terminate()
                with anyio.move_on_after(STOP_SECONDS):
                    await self._process.wait()
            if self._process.returncode is None:
                log.warning("nvidia-imex does not end within %g s of SIGTERM; it is killed", STOP_SECONDS)
                self._process.kill()
                await self._process.wait()

    async def stop(self) -> None:
        """End it, and close its output."""
        with anyio.CancelScope(shield=True):
            await self.end()
            await self._process.aclose()


async def ask(program: str, *arguments: str, seconds: float) -> str:
    """The output of nvidia-imex-ctl, errors included. Raises OSError, and TimeoutError after so many seconds."""
    with anyio.fail_after(seconds):
        done = await anyio.run_process([program, *arguments], check=False, stderr=subprocess.STDOUT)
    return done.stdout.decode(errors="replace")
