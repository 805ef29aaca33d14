"""`pydra dev` as a process, forked from one that has imported it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from tests.forked import ForkedProgram

DEADLINE = 60


class DevProcess:
    """A `pydra dev` at work, and what it prints."""

    def __init__(self, process: ForkedProgram, stdout: TextIO) -> None:
        self._process = process
        self.stdout = stdout

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        self._process.send_signal(number)

    def wait(self) -> int:
        """How it ended."""
        return self._process.join(DEADLINE)

    def read_until(self, wanted: str) -> str:
        """What it prints up to the line that has this."""
        text = ""
        for line in self.stdout:
            text += line
            if wanted in line:
                return text
        raise AssertionError(f"{wanted!r} is not in {text}")

    def read_rest(self) -> str:
        """What it prints until it ends."""
        return self.stdout.read()


@contextmanager
def run_dev(
    directory: Path,
    *arguments: str,
    environ: Mapping[str, str] = {},
    ignored: Sequence[signal.Signals] = (),
) -> Iterator[DevProcess]:
    """A `pydra dev` with these arguments, killed at the end if it still runs; `directory` gets a named pipe."""
    output = directory / "output"
    if not output.exists():
        os.mkfifo(output)
    process = ForkedProgram(
        "pydra.cli.tool", ("dev", *arguments), {**os.environ, **environ}, str(output), ignored=ignored
    )
    try:
        with output.open() as stdout:
            yield DevProcess(process, stdout)
    finally:
        process.kill()
        process.join(DEADLINE)
