"""The command as a process of its own, as an admin runs it, or without the start of an interpreter."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pynvml
import pytest

from pydra_nvidia.cli import main
from pydra_nvidia.nvml.pynvml_library import use_library

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """`command("show", "--json")` in this process; variables by keyword, without their prefix."""
    monkeypatch.chdir(tmp_path)
    before = pynvml.nvmlLib

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        with redirect_stdout(io.StringIO()) as output, redirect_stderr(io.StringIO()) as errors:
            try:
                code = main(arguments, _variables(variables))
            except SystemExit as ended:
                code = int(ended.code or 0)
        return subprocess.CompletedProcess(arguments, code, output.getvalue(), errors.getvalue())

    yield run
    use_library(pynvml, before)


@pytest.fixture
def process(tmp_path: Path) -> Run:
    """The same as a process."""

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("PYDRA_")}
        return subprocess.run(
            [sys.executable, "-m", "pydra_nvidia.cli", *arguments],
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
            env={**environ, **_variables(variables)},
            cwd=tmp_path,
        )

    return run


def _variables(named: dict[str, str]) -> dict[str, str]:
    return {name if name.startswith("PYDRA_") else f"PYDRA_NVIDIA_{name}": value for name, value in named.items()}


@pytest.fixture
def bare_root(tmp_path: Path) -> dict[str, str]:
    """Variables for a node on which there is nothing."""
    for name in ("host", "sys", "proc", "state"):
        (tmp_path / name).mkdir()
    roots = {f"{name.upper()}_ROOT": str(tmp_path / name) for name in ("host", "sys", "proc")}
    return {**roots, "STATE": str(tmp_path / "state")}
