"""`maintenance` and `resume`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pydra_nvidia.cli import main
from pydra_nvidia.nvml.maintenance_gate import REQUEST, Gate

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def state(bare_root: dict[str, str]) -> str:
    return bare_root["STATE"]


def test_it_is_asked_for_and_taken_back(command: Run, process: Run, bare_root: dict[str, str], state: str) -> None:
    ran = process("maintenance", "--for", "2h", **bare_root)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == "NVML is closed for 7200 s, or until pydra-nvidia resume\n"
    assert Gate(state).asked() is not None
    assert command("resume", **bare_root).stdout == "maintenance has ended; the GPUs are used again\n"
    assert Gate(state).asked() is None
    assert command("resume", **bare_root).stdout == "no maintenance was requested\n"


def test_a_backend_that_keeps_nvml_open_is_reported(command: Run, bare_root: dict[str, str], state: str) -> None:
    with Gate(state).inside():
        ran = command("maintenance", "--wait", "1s", **bare_root)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "a backend still has NVML open after 1 s" in ran.stderr
    assert Gate(state).asked() is not None


@pytest.mark.parametrize("text", ["0", "10x", "25h", "-1", "soon"])
def test_a_time_that_makes_no_sense_is_refused(capsys: pytest.CaptureFixture[str], text: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["maintenance", f"--for={text}"], {})
    assert ended.value.code == 2
    assert f"{text!r} is not a time" in capsys.readouterr().err


@contextmanager
def hold(place: Path, variables: dict[str, str], *program: str) -> Iterator[subprocess.Popen[str]]:
    """A process that holds a request, and waits an hour for backends."""
    own = {f"PYDRA_NVIDIA_{name}": value for name, value in variables.items()}
    with subprocess.Popen(
        [sys.executable, *(program or ("-m", "pydra_nvidia.cli")), "maintenance", "--hold", "--wait", "1h"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **own},
        cwd=place,
    ) as holding:
        yield holding
        holding.kill()


def test_it_is_held_as_long_as_the_command_runs(bare_root: dict[str, str], state: str, tmp_path: Path) -> None:
    with hold(tmp_path, bare_root) as holding:
        assert holding.stdout is not None
        assert holding.stdout.readline() == "NVML is closed until this command ends\n"
        assert Gate(state).asked() is not None
        holding.send_signal(signal.SIGTERM)
        assert holding.wait(50) == 0
    assert not Path(state, REQUEST).exists()


def test_a_command_that_still_waits_for_backends_ends_too(
    bare_root: dict[str, str], state: str, tmp_path: Path
) -> None:
    gate = Gate(state)
    with gate.inside(), hold(tmp_path, bare_root) as holding:
        while gate.asked() is None:
            assert holding.poll() is None
        holding.send_signal(signal.SIGINT)
        assert holding.wait(50) == 0
    assert not Path(state, REQUEST).exists()


SECOND_SIGNAL = """
import os, signal, sys
from pydra_nvidia.cli import main

def note(event, found):
    if event == "os.remove" and found[0].endswith("/maintenance"):
        os.kill(os.getpid(), signal.SIGTERM)

sys.addaudithook(note)
sys.exit(main())
"""
"""The command; SIGTERM comes when it is about to take the request back."""


def test_a_second_signal_does_not_keep_the_request(bare_root: dict[str, str], state: str, tmp_path: Path) -> None:
    with hold(tmp_path, bare_root, "-c", SECOND_SIGNAL) as holding:
        assert holding.stdout is not None
        assert holding.stdout.readline() == "NVML is closed until this command ends\n"
        holding.send_signal(signal.SIGINT)
        assert holding.wait(50) == 0
    assert not Path(state, REQUEST).exists()


def test_show_says_it_and_leaves_the_gpus_alone(command: Run, tmp_path: Path) -> None:
    machine = "--scenario", "t4", "--state", str(tmp_path / "m")
    assert command("maintenance", *machine).returncode == 0
    ran = command("show", *machine)
    assert ran.returncode == 1
    assert "has requested maintenance of its GPUs until" in " ".join(ran.stdout.split())
