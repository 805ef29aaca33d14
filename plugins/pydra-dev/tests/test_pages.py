"""The minimal example, which the tutorial and the README show, is run on a node as it stands."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pydra_dev.demo import Demo, Options, run_until_signal

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "minimal"


@pytest.fixture
def backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The module in the working directory, as a newcomer has it."""
    shutil.copy(EXAMPLE / "my_fpga.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    return "my_fpga:"


async def test_a_pod_runs_with_a_device_of_the_backend(backend: str) -> None:
    said: list[str] = []
    assert await run_until_signal(Demo(Options(backend=backend, once=True), write=said.append)) == 0, "\n".join(said)
    text = "\n".join(said)
    assert "+ env      FPGA=fpga-0" in text
    assert "+ device   /dev/fpga-0 (c 1:3, rwm)" in text


@pytest.mark.timeout(240)
def test_the_examples_own_tests_pass(tmp_path: Path) -> None:
    copy = shutil.copytree(EXAMPLE, tmp_path / "minimal", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio"]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


async def test_a_backend_that_is_not_served_ends_the_demo_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nameless.py").write_text(
        "async def discover(): ...\nasync def prepare(claim): ...\nasync def unprepare(claim, prepared): ...\n"
    )
    said: list[str] = []
    assert await run_until_signal(Demo(Options(backend="nameless:", once=True), write=said.append)) == 1
    text = "\n".join(said)
    assert "FAILED: the backend cannot be used (BackendNotServed)" in text
    assert "--driver nameless:=NAME" in text
