"""Processes forked from one that has imported what they need, which saves each a third of a second of CPU."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing import forkserver
from pathlib import Path

import anyio

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    [
        *("pytest", "anyio._backends._asyncio", "uvloop"),
        *("pydra.agent.assembly", "pydra.agent.entry", "pydra.cli.agent"),
        *(
            f"pydra_nvidia.{name}"
            for name in ("mig.apply_partitions", "nvml.session", "simulation.simulation", "prior_state")
        ),
        "pydra_nvidia.compute_domain.command",
        *("pydra_pci", "pydra_pci.simulation.kernel"),
        *("pydra.cli.tool", "pydra_dev.command.dev_command"),
    ]
)
"""There is one server for all of a test process, so what any test needs is listed here; what is absent is left out."""

if multiprocessing.current_process().name == "MainProcess":  # not in what is forked, which imports this, too
    # Before the first test, so that it is no test's leak, and its imports do not keep an event loop waiting.
    forkserver.ensure_running()


class ForkedProgram:
    """The `main` of a module with these arguments and this environment.

    What it prints is appended to the file `log`, which may be a named pipe, or its errors to a file of their own. It
    ignores the signals in `ignored` when it begins.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        environ: Mapping[str, str],
        log: str,
        *,
        errors: str = "",
        ignored: Sequence[signal.Signals] = (),
    ) -> None:
        files = (log, errors or log)
        self._process = PROCESSES.Process(
            target=_run, args=(module, tuple(arguments), dict(environ), files, tuple(ignored))
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        """How it ended; None while it runs."""
        if self._process.exitcode is not None:
            self._process.join()  # multiprocessing keeps a process that nobody joined, and its pipes
        return self._process.exitcode

    async def wait(self) -> int:
        """Wait for its end; how it ended."""
        await anyio.wait_readable(self._process.sentinel)
        return self.join(0)

    def join(self, seconds: float) -> int:
        """Wait for its end, and block for so long at most; how it ended."""
        self._process.join(seconds)
        status = self.returncode
        assert status is not None, "it has not ended"
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.returncode is None:
            # It may have ended although its exit status, which the fork server reports, has not come yet.
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


class ForkedAgent(ForkedProgram):
    """An agent."""

    def __init__(self, arguments: Sequence[str], environ: Mapping[str, str], log: str) -> None:
        super().__init__("pydra.cli.agent", arguments, environ, log)


def run_forked(module: str, arguments: Sequence[str], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` of a program that ends by itself."""
    with tempfile.TemporaryDirectory() as place:
        stdout, stderr = Path(place, "stdout"), Path(place, "stderr")
        process = ForkedProgram(module, arguments, environ, str(stdout), errors=str(stderr))
        try:
            code = process.join(60)
        finally:
            process.kill()
        return subprocess.CompletedProcess(tuple(arguments), code, stdout.read_text(), stderr.read_text())


def _run(
    module: str,
    arguments: Sequence[str],
    environ: Mapping[str, str],
    files: Sequence[str],
    ignored: Sequence[signal.Signals],
) -> None:
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    os.environ.clear()
    os.environ.update(environ)
    sys.path[:0] = filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))
    for stream, path in zip((sys.stdout, sys.stderr), files, strict=True):
        output = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.dup2(output, stream.fileno())
        os.close(output)
    # Buffered as the program would find it.
    sys.stdout = open(sys.stdout.fileno(), "w", closefd=False)  # noqa: SIM115
    sys.exit(importlib.import_module(module).main(arguments))
