"""`record` writes what a machine reports, for a bug report: without changing it, and without its names."""

from __future__ import annotations

import json
import re
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest
from msgspec.structs import replace

from gpu_values import find_profile, gpu, make_instance
from pydra_nvidia.cli.record_bug_report import rename
from pydra_nvidia.hardware_types import Fabric, LostGpu, Mig, Reading
from pydra_nvidia.nvml.read_only_library import CallLog, NotReadOnly, ReadOnlyLibrary

Run = Callable[..., "subprocess.CompletedProcess[str]"]
CLUSTER = "0e1d2c3b-4a59-4687-9706-152433425160"


def write(place: Path, **scenario: Any) -> tuple[str, ...]:
    """The flags for a machine with this scenario."""
    (place / "of").mkdir(exist_ok=True)
    file = place / "of" / "scenario.json"
    file.write_text(json.dumps(scenario))
    return "--scenario", str(file), "--state", str(place / "m")


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, ...]:
    return write(tmp_path, gpus=[{"model": "t4", "count": 2}])


def test_a_recording_has_what_the_backend_reads(process: Run, tmp_path: Path) -> None:
    partition = {"profile": "1g.10gb", "start": 0}
    machine = write(tmp_path, gpus=[{"model": "t4"}, {"model": "h100-80gb", "mig": True, "instances": [partition]}])
    file = tmp_path / "recorded.json"
    ran = process("record", *machine, "--output", str(file), DYNAMIC_MIG="true")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", f"wrote {file}; GPUs: 2\n")
    found = json.loads(file.read_text())
    assert [gpu["name"] for gpu in found["reading"]["gpus"]] == ["Tesla T4", "NVIDIA H100 80GB HBM3"]
    assert len(found["reading"]["gpus"][1]["mig"]["instances"]) == 1
    assert found["settings"] == {"dynamic_mig": True}
    assert re.fullmatch(r"\d+\.\d+(\.\d+)?", found["kernel"])


def test_it_writes_through_a_link_as_dev_stdout_is_one(process: Run, pair: tuple[str, ...], tmp_path: Path) -> None:
    link = tmp_path / "stdout"
    link.symlink_to("/proc/self/fd/1")
    ran = process("record", *pair, "--output", str(link))
    assert link.is_symlink()
    assert len(json.loads(ran.stdout)["reading"]["gpus"]) == 2


def test_it_names_the_calls_that_nvml_refused(command: Run, tmp_path: Path) -> None:
    fault = {"op": "nvmlDeviceGetSerial", "do": "raise", "code": "UNKNOWN"}
    found = json.loads(command("record", *write(tmp_path, gpus=[{"model": "t4"}], faults=[fault])).stdout)
    assert found["refused"]["nvmlDeviceGetSerial"] == {"UNKNOWN": 1}


def test_nothing_of_the_machine_is_in_its_recording(command: Run, tmp_path: Path) -> None:
    fabric = {"state": 3, "clique": 7, "cluster": CLUSTER}
    partition = {"profile": "1g.10gb", "start": 0}
    group = {"model": "h100-80gb", "fabric": fabric}
    machine = write(tmp_path, seed="acme", gpus=[group, {**group, "mig": True, "instances": [partition]}])
    shown = json.loads(command("show", *machine, "--json").stdout)
    text = command("record", *machine).stdout
    originals = re.findall(r"(?:GPU|MIG)-[0-9a-f-]{36}|\"serial\": \"\d+\"", json.dumps(shown))
    assert len(originals) >= 3
    for original in (*originals, CLUSTER, "acme", "simulated", str(tmp_path)):
        assert original not in text


def test_names_differ_from_recording_to_recording_unless_the_salt_is_given(command: Run, pair: tuple[str, ...]) -> None:
    first, second = (_uuids(command("record", *pair).stdout) for _ in range(2))
    assert len(first) == len(second) == 2
    assert not set(first) & set(second)
    salted = [command("record", *pair, "--salt", "pepper").stdout for _ in range(2)]
    assert salted[0] == salted[1]
    assert not set(_uuids(salted[0])) & set(first)


def test_a_file_that_cannot_be_written_is_reported_in_one_line(
    command: Run, tmp_path: Path, pair: tuple[str, ...]
) -> None:
    ran = command("record", *pair, "--output", str(tmp_path / "none" / "file.json"))
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "No such file or directory" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def test_an_existing_file_is_kept_if_nothing_can_be_recorded(command: Run, tmp_path: Path) -> None:
    file = tmp_path / "recorded.json"
    file.write_text("before")
    assert command("record", "--scenario", "nonsense", "--output", str(file)).returncode == 1
    assert file.read_text() == "before"


def test_a_node_without_gpus_is_a_machine_without_gpus(command: Run, bare_root: dict[str, str]) -> None:
    ran = command("record", **bare_root)
    assert ran.returncode == 0
    assert json.loads(ran.stdout)["reading"]["gpus"] == []


def test_nvml_that_does_not_answer_is_reported_in_one_line(command: Run, tmp_path: Path) -> None:
    fault = {"op": "nvmlInitWithFlags", "do": "raise", "code": "LIB_RM_VERSION_MISMATCH"}
    ran = command("record", *write(tmp_path, gpus=[{"model": "t4"}], faults=[fault]))
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "NVML_ERROR_LIB_RM_VERSION_MISMATCH (18)" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def test_no_function_that_changes_the_machine_is_let_through() -> None:
    library, words = ReadOnlyLibrary(pynvml, CallLog()), ("Set", "Reset", "Create", "Destroy", "Clear")
    changes = [name for name in dir(pynvml) if name.startswith("nvml") and any(word in name for word in words)]
    changes = [name for name in changes if "Get" not in name]
    assert len(changes) > 50
    for name in changes:
        with pytest.raises(NotReadOnly, match=name):
            getattr(library, name)


def test_names_follow_from_the_original_and_the_salt_wherever_they_are() -> None:
    none = str(uuid.UUID(int=0))
    part = make_instance(find_profile("1g.10gb"), 0)
    part = replace(part, compute=(replace(part.compute[0], uuid="MIG-12-ab"),))
    mig = Mig(enabled=True, pending=True, resetless=True, instances=(part,), unseen="GPU-b2: MIG-12-ab is odd")
    first = gpu(0, "a1", serial="77", fabric=Fabric(cluster=CLUSTER, clique=1), unread="a field of GPU-a1.")
    second = gpu(1, "b2", serial="", fabric=Fabric(cluster=none, clique=1), mig=mig)
    lost = LostGpu(index=2, code=15, message="GPU-a1 fell off", last=first)
    reading = Reading(gpus=(first, second), lost=(lost,))
    found = rename(reading, b"salt")
    one, other = found.gpus
    assert (found, uuid.UUID(one.uuid.removeprefix("GPU-")).version) == (rename(reading, b"salt"), 4)
    assert (one.unread, found.lost[0].message) == (f"a field of {one.uuid}.", f"{one.uuid} fell off")
    assert other.mig is not None
    partition = other.mig.instances[0].compute[0].uuid
    assert other.mig.unseen == f"{other.uuid}: {partition} is odd"
    assert uuid.UUID(partition.removeprefix("MIG-")).version == 4
    assert re.fullmatch(r"\d{13}", one.serial)
    assert (other.serial, found.lost[0].last) == ("", None)
    assert one.fabric is not None
    assert other.fabric is not None
    assert (one.fabric.cluster != CLUSTER, other.fabric.cluster) == (True, none)
    again = rename(reading, b"pepper")
    assert not {one.uuid, other.uuid, partition, one.serial, one.fabric.cluster} & set(
        re.findall(r"[\w-]+", repr(again))
    )


def _uuids(text: str) -> list[str]:
    return re.findall(r"GPU-[0-9a-f-]{36}", text)
