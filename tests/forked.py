"""Processes forked from one that has imported what they need, which saves each a third of a second of CPU."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping, Sequence

import anyio

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    [
        *("pytest", "pydra.agent.assembly", "pydra.agent.entry", "pydra.cli.agent"),
        *(
            f"pydra_nvidia.{name}"
            for name in ("mig.apply_partitions", "nvml.session", "simulation.simulation", "prior_state")
        ),
        *("pydra_pci", "pydra_pci.simulation.kernel"),
    ]
)
"""There is one server for all of a test process, so what any test needs is listed here; what is absent is left out."""


class ForkedAgent:
    """An agent with these arguments and this environment; what it prints is appended to the file `log`."""

    def __init__(self, arguments: Sequence[str], environ: Mapping[str, str], log: str) -> None:
        self._process = PROCESSES.Process(target=_run_agent, args=(tuple(arguments), dict(environ), log))
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        """How it ended; None while it runs."""
        return self._process.exitcode

    async def wait(self) -> int:
        """Wait for its end; how it ended."""
        await anyio.wait_readable(self._process.sentinel)
        return self.join(0)

    def join(self, seconds: float) -> int:
        """Wait for its end, and block for so long at most; how it ended."""
        self._process.join(seconds)
        status = self.returncode
        assert status is not None, "the agent has not ended"
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


def _run_agent(arguments: Sequence[str], environ: Mapping[str, str], log: str) -> None:
    os.environ.clear()
    os.environ.update(environ)
    sys.path[:0] = filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(output, stream.fileno())
    os.close(output)
    from pydra.cli.agent import main  # noqa: PLC0415 - the test's process has no need of it

    sys.exit(main(arguments))
