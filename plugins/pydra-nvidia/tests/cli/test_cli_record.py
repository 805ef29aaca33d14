"""`record` writes a scenario that stands for the machine."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pydra_nvidia.simulation.scenario_file import ScenarioFile

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "of").mkdir()
    scenario = tmp_path / "of" / "pair.json"
    scenario.write_text(json.dumps({"gpus": [{"model": "t4", "count": 2}]}))
    return "--scenario", str(scenario), "--state", str(tmp_path / "m")


def test_a_recording_stands_for_the_machine(command: Run, process: Run, tmp_path: Path, pair: tuple[str, ...]) -> None:
    file = tmp_path / "recorded.yaml"
    ran = process("record", *pair, "--output", str(file))
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"wrote {file}: 2 GPUs\n", "")
    shown = command("show", "--scenario", str(file), "--state", str(tmp_path / "again"), "--json")
    original = command("show", *pair, "--json")
    assert _without_names(shown.stdout) == _without_names(original.stdout)
    assert not set(_uuids(shown.stdout)) & set(_uuids(original.stdout))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "m", "of", "recorded.yaml"], "no draft is left"


def test_without_a_file_it_goes_to_the_standard_output(command: Run, tmp_path: Path, pair: tuple[str, ...]) -> None:
    ran = command("record", *pair)
    assert ran.returncode == 0
    file = tmp_path / "piped.yaml"
    file.write_text(ran.stdout)
    assert sum(group.count for group in ScenarioFile(str(file)).read().gpus) == 2


def test_names_differ_from_recording_to_recording_unless_the_salt_is_given(command: Run, pair: tuple[str, ...]) -> None:
    first, second = (_uuids(command("record", *pair).stdout) for _ in range(2))
    assert len(first) == len(second) == 2
    assert not set(first) & set(second)
    salted = [command("record", *pair, "--salt", "pepper").stdout for _ in range(2)]
    assert salted[0] == salted[1]
    assert not set(_uuids(salted[0])) & set(first)


def test_a_file_that_cannot_be_written_is_told_in_one_line(command: Run, tmp_path: Path, pair: tuple[str, ...]) -> None:
    ran = command("record", *pair, "--output", str(tmp_path / "none" / "file.yaml"))
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "No such file or directory" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def test_an_existing_file_is_replaced_as_a_whole_or_not_at_all(
    command: Run, tmp_path: Path, pair: tuple[str, ...]
) -> None:
    file = tmp_path / "recorded.yaml"
    file.write_text("before")
    assert command("record", "--scenario", "nonsense", "--output", str(file)).returncode == 1
    assert file.read_text() == "before"
    assert command("record", *pair, "-o", str(file)).returncode == 0
    assert file.read_text().startswith("# A machine with NVIDIA GPUs, recorded by pydra-nvidia on 20")


def test_a_node_without_gpus_is_a_machine_without_gpus(command: Run, tmp_path: Path, bare_root: dict[str, str]) -> None:
    ran = command("record", **bare_root)
    assert ran.returncode == 0
    file = tmp_path / "bare.yaml"
    file.write_text(ran.stdout)
    assert ScenarioFile(str(file)).read().gpus == ()


def test_nvml_that_does_not_answer_is_told_in_one_line(command: Run, tmp_path: Path) -> None:
    scenario = tmp_path / "s.json"
    fault = {"op": "nvmlInitWithFlags", "do": "raise", "code": "LIB_RM_VERSION_MISMATCH"}
    scenario.write_text(json.dumps({"gpus": [{"model": "t4"}], "faults": [fault]}))
    ran = command("record", "--scenario", str(scenario), "--state", str(tmp_path / "m"))
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "NVML_ERROR_LIB_RM_VERSION_MISMATCH (18)" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def _uuids(text: str) -> list[str]:
    return re.findall(r"GPU-[0-9a-f-]{36}", text)


def _without_names(text: str) -> object:
    return re.sub(r'(GPU|MIG)-[0-9a-f-]{36}|"serial": "\d+"', "NAME", text)
