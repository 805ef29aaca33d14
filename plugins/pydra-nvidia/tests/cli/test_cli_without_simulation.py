"""An image without `pydra_nvidia/simulation` says so in one line, whatever asks for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pydra_nvidia

MISSING = "the simulation is not part of this image; it comes with `pip install pydra-nvidia`"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with pydra_nvidia as images have it."""
    root = tmp_path_factory.mktemp("image")
    left_out = shutil.ignore_patterns("simulation", "__pycache__")
    shutil.copytree(Path(pydra_nvidia.__file__).parent, root / "pydra_nvidia", ignore=left_out)
    return root


def run(packages: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYDRA_")}
    environ |= {"PYTHONPATH": str(packages), "PYDRA_NVIDIA_SCENARIO": "hgx-h100"}
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=50, check=False, env=environ, cwd=packages)


@pytest.mark.parametrize("arguments", [("show",), ("record",), ("simulate", "lose", "0")], ids=lambda one: one[0])
def test_a_command_that_needs_it_says_that_it_is_missing(packages: Path, arguments: tuple[str, ...]) -> None:
    done = run(packages, "pydra_nvidia.cli", *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"pydra-nvidia: {MISSING}\n")


def test_the_agents_backend_says_that_the_simulation_is_missing(packages: Path) -> None:
    done = run(packages, "pydra.cli.tool", "check", "nvidia")
    assert done.returncode == 1
    assert MISSING in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
