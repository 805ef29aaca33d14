"""An image without `pydra_nvidia/simulation` says so in one line, whatever asks for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pydra_nvidia
import pydra_pci

MISSING = "the simulation is not part of this image; the distribution pydra-nvidia has it"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with pydra_nvidia as images have it."""
    return copy_packages(tmp_path_factory.mktemp("image"), "simulation")


def copy_packages(root: Path, *left_out: str) -> Path:
    for package, ignored in ((pydra_pci, ("simulation",)), (pydra_nvidia, left_out)):
        ignore = shutil.ignore_patterns("__pycache__", *ignored)
        shutil.copytree(Path(package.__file__).parent, root / package.__name__, ignore=ignore)
    return root


def run(packages: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYDRA_")}
    environ |= {"PYTHONPATH": str(packages), "PYDRA_NVIDIA_SCENARIO": "hgx-h100"}
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=50, check=False, env=environ, cwd=packages)


@pytest.mark.parametrize("arguments", [("show",), ("simulate", "lose", "0")], ids=lambda one: one[0])
def test_a_command_that_needs_it_says_that_it_is_missing(packages: Path, arguments: tuple[str, ...]) -> None:
    done = run(packages, "pydra_nvidia.cli", *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"pydra-nvidia: {MISSING}\n")


def test_an_image_that_has_it_without_what_it_needs_of_pydra_pci_says_so_too(tmp_path: Path) -> None:
    done = run(copy_packages(tmp_path), "pydra_nvidia.cli", "show")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"pydra-nvidia: {MISSING}\n")


def test_the_agents_backend_says_that_the_simulation_is_missing(packages: Path) -> None:
    done = run(packages, "pydra.cli.tool", "check", "nvidia")
    assert done.returncode == 1
    assert MISSING in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
