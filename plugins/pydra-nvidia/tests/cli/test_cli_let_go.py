"""`let-go` and `resume`, from a process of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pydra_nvidia.cli import main
from pydra_nvidia.nvml.let_go import REQUEST, Gate

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def state(bare_root: dict[str, str]) -> str:
    return bare_root["STATE"]


def test_it_is_asked_for_and_taken_back(command: Run, bare_root: dict[str, str], state: str) -> None:
    ran = command("let-go", "--for", "2h", **bare_root)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == "NVML is let go of for 7200 s, or until pydra-nvidia resume\n"
    assert Gate(state).asked() is not None
    assert command("resume", **bare_root).stdout == "the GPUs are taken up again\n"
    assert Gate(state).asked() is None
    assert command("resume", **bare_root).stdout == "nobody had asked to let go of the GPUs\n"


def test_a_backend_that_does_not_let_go_is_told(command: Run, bare_root: dict[str, str], state: str) -> None:
    with Gate(state).inside():
        ran = command("let-go", "--wait", "1s", **bare_root)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "a backend still has NVML open after 1 s" in ran.stderr
    assert Gate(state).asked() is not None


@pytest.mark.parametrize("text", ["0", "10x", "25h", "-1", "soon"])
def test_a_time_that_makes_no_sense_is_refused(capsys: pytest.CaptureFixture[str], text: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["let-go", f"--for={text}"], {})
    assert ended.value.code == 2
    assert f"{text!r} is not a time" in capsys.readouterr().err


def test_it_is_held_as_long_as_the_command_runs(bare_root: dict[str, str], state: str, tmp_path: Path) -> None:
    own = {f"PYDRA_NVIDIA_{name}": value for name, value in bare_root.items()}
    holding = subprocess.Popen(
        [sys.executable, "-m", "pydra_nvidia.cli", "let-go", "--hold"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **own},
        cwd=tmp_path,
    )
    assert holding.stdout is not None
    assert holding.stdout.readline() == "NVML is let go of until this command ends\n"
    assert Gate(state).asked() is not None
    holding.send_signal(signal.SIGTERM)
    assert holding.wait(50) == 0
    holding.stdout.close()
    assert not Path(state, REQUEST).exists()


def test_show_says_it_and_leaves_the_gpus_alone(command: Run, tmp_path: Path) -> None:
    machine = "--scenario", "t4", "--state", str(tmp_path / "m")
    assert command("let-go", *machine).returncode == 0
    ran = command("show", *machine)
    assert ran.returncode == 1
    assert "has asked to let go of its GPUs until" in " ".join(ran.stdout.split())
