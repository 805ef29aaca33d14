"""The command as a process of its own, as an admin runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def command(tmp_path: Path) -> Run:
    """`command("show", "--json")`; variables by keyword, without their prefix."""

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("PYDRA_")}
        environ |= {f"PYDRA_NVIDIA_{name}": value for name, value in variables.items()}
        environ.setdefault("TMPDIR", str(tmp_path))
        return subprocess.run(
            [sys.executable, "-m", "pydra_nvidia.cli", *arguments],
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
            env=environ,
            cwd=tmp_path,
        )

    return run


@pytest.fixture
def bare_root(tmp_path: Path) -> dict[str, str]:
    """Variables for a node on which there is nothing."""
    for name in ("host", "sys", "proc", "state"):
        (tmp_path / name).mkdir()
    roots = {f"{name.upper()}_ROOT": str(tmp_path / name) for name in ("host", "sys", "proc")}
    return {**roots, "STATE": str(tmp_path / "state")}
