"""`show` tells an admin what the backend sees, and what to do about what it lacks."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from gpu_values import gpu
from pydra import Health, HealthStatus, Taint, TaintEffect
from pydra_nvidia.cli.show import Look, describe, table
from pydra_nvidia.hardware_types import VGPU_GUEST, Driver, LostGpu, Mig, NvLinks, Reading
from pydra_nvidia.health.diagnosis import Diagnosis
from pydra_nvidia.health.incident_store import FILE, Incident, IncidentStore
from pydra_nvidia.settings import Settings
from pydra_pci import Assessment, PciFunction, VfioHost

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_a_machine_is_shown_with_gpus_partitions_links_and_driver(process: Run, tmp_path: Path) -> None:
    ran = process("show", "--scenario", "mixed", "--state", str(tmp_path / "m"))
    assert (ran.returncode, ran.stderr) == (0, "")
    lines = {line.split()[0]: line for line in ran.stdout.splitlines() if line}
    assert "580.105.08, CUDA 13.0" in lines["Driver:"]
    assert lines["gpu-5"].split()[1:5] == ["NVIDIA", "H100", "80GB", "HBM3"]
    assert "18/18 to switches" in lines["gpu-5"]
    assert "on, 2 there" in lines["gpu-3"]
    assert "slices 4-7" in lines["gpu-3-mig-3g40gb-9-4"]
    assert lines["gpu-0"].endswith("well")
    assert str(tmp_path / "m" / "tree" / "usr/bin/nvidia-cdi-hook") in ran.stdout


def test_the_reading_is_reported_as_json(command: Run, tmp_path: Path) -> None:
    ran = command("show", "--json", SCENARIO="t4", STATE=str(tmp_path / "m"))
    assert ran.returncode == 0
    reading = msgspec.convert(json.loads(ran.stdout), Reading)
    assert sorted(gpu.minor for gpu in reading.gpus) == [0, 1, 2, 3]


def test_settings_that_the_agent_has_from_a_file_are_those_of_the_command(command: Run, tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    own = {"scenario": "hgx-h100", "state": str(tmp_path / "m"), "vfio": True}
    path.write_text(json.dumps({"nodeName": "n", "backendSettings": {"nvidia": own, "sim": {}}}))
    ran = command("show", PYDRA_CONFIG=str(path))
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.count("NVIDIA H100") == 8
    assert "not offered" not in ran.stdout
    path.write_text("backendSettings: {nvidia: {vfioo: true}}")
    ran = command("show", PYDRA_CONFIG=str(path))
    assert ran.returncode == 2
    assert "vfioo" in ran.stderr


def test_a_node_without_nvidia_hardware_has_no_problem(command: Run, bare_root: dict[str, str]) -> None:
    ran = command("show", **bare_root)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "This node has no NVIDIA GPU." in ran.stdout
    assert "nvidia-cdi-hook is not on this node" in ran.stdout


@pytest.mark.parametrize(
    ("state", "says"),
    [("unloaded", "the NVIDIA driver is not loaded on this node yet"), ("absent", "no NVIDIA driver is installed")],
)
def test_a_missing_driver_is_a_problem_that_says_what_to_do(
    command: Run, tmp_path: Path, state: str, says: str
) -> None:
    scenario = tmp_path / "s.json"
    scenario.write_text(json.dumps({"driver": {"state": state}, "gpus": [{"model": "t4"}]}))
    ran = command("show", "--scenario", str(scenario), "--state", str(tmp_path / "m"))
    assert ran.returncode == 1
    problems = " ".join(ran.stdout.partition("Problems:")[2].split())
    assert says in problems
    assert "No GPU answers." in ran.stdout
    told = command("show", "--json", "--scenario", str(scenario), "--state", str(tmp_path / "m"))
    assert told.returncode == 1
    assert list(json.loads(told.stdout)["functions"])
    assert says in told.stderr


def test_a_hook_that_was_named_and_is_not_there_is_a_problem(command: Run, bare_root: dict[str, str]) -> None:
    ran = command("show", CDI_HOOK="/opt/hook", **bare_root)
    assert ran.returncode == 1
    assert "PYDRA_NVIDIA_CDI_HOOK is /opt/hook" in " ".join(ran.stdout.split())


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("usr/lib/x86_64-linux-gnu/libcuda.so.580.105.08", "lacks libcuda.so.580.105.08"),
        ("dev/nvidiactl", "the node has no /dev/nvidiactl"),
        ("dev/nvidia1", "the node has no /dev/nvidia1"),
        ("proc/driver/nvidia/capabilities/gpu0/mig/gi1/access", "does not name the device node of the partition"),
    ],
)
def test_what_claims_would_lack_of_the_driver_is_a_problem(command: Run, tmp_path: Path, path: str, says: str) -> None:
    partition = {"profile": "1g.10gb", "start": 0}
    scenario = {"gpus": [{"model": "h100-80gb", "mig": True, "instances": [partition]}, {"model": "t4"}]}
    (tmp_path / "s.json").write_text(json.dumps(scenario))
    machine = "--scenario", str(tmp_path / "s.json"), "--state", str(tmp_path / "m")
    assert command("show", *machine).returncode == 0
    (tmp_path / "m" / "tree" / path).unlink()
    ran = command("show", *machine)
    assert ran.returncode == 1
    assert says in " ".join(ran.stdout.partition("Problems:")[2].split())


def test_a_node_whose_gpus_are_all_lost_has_a_problem(command: Run, tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(json.dumps({"gpus": [{"model": "t4", "count": 2, "lost": True}]}))
    ran = command("show", "--scenario", str(tmp_path / "s.json"), "--state", str(tmp_path / "m"))
    assert ran.returncode == 1
    assert ran.stdout.count("does not answer: ") == 2
    assert ran.stdout.endswith("Problems:\n- No GPU answers.\n")


def test_wrong_variables_are_refused_all_at_once(command: Run) -> None:
    ran = command("show", DYNAMIC_MIG="maybe", QUIET_PERIOD="-1", NONSENSE="1")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert len(ran.stderr.splitlines()) == 3
    assert all(line.startswith("pydra-nvidia: PYDRA_NVIDIA_") for line in ran.stderr.splitlines())


def test_a_wrong_scenario_is_reported_in_one_line(command: Run, tmp_path: Path) -> None:
    ran = command("show", "--scenario", "hgx-h300", "--state", str(tmp_path / "m"))
    assert ran.returncode == 1
    assert ran.stderr.startswith("pydra-nvidia: scenario hgx-h300: no such scenario")
    assert len(ran.stderr.splitlines()) == 1


@pytest.mark.parametrize("command_name", ["", "show", "record", "simulate", "forget-errors"])
def test_each_command_explains_itself(command: Run, command_name: str) -> None:
    ran = command(*filter(None, (command_name, "--help")))
    assert (ran.returncode, ran.stderr) == (0, "")
    assert f"usage: pydra-nvidia {command_name}".strip() in ran.stdout


def test_a_command_that_there_is_not_is_refused(command: Run) -> None:
    assert command("dance").returncode == 2
    assert command().returncode == 2


def test_errors_that_are_remembered_are_shown(command: Run, tmp_path: Path) -> None:
    memory = IncidentStore(str(tmp_path / "m" / "run" / FILE))
    memory.note("GPU-1", 79, None, 1.0)
    ran = command("show", "--scenario", "t4", "--state", str(tmp_path / "m"))
    assert ran.returncode == 0
    assert "  GPU-1: 1 x XID 79: the GPU has fallen off the bus" in ran.stdout.splitlines()


GPU = gpu(
    7,
    "7",
    "0000:01:00.0",
    index=0,
    name="X",
    memory=None,
    mig=Mig(enabled=True, pending=False, resetless=True),
    links=NvLinks(total=4, up=3, peers=("a", "b")),
)


def look(reading: Reading, **more: object) -> list[str]:
    whole = Look(
        reading=reading,
        root=None,
        module="",
        containers="",
        diagnosis=Diagnosis(),
        incidents=(),
        settings=Settings(),
        problems=(),
    )
    return list(describe(msgspec.structs.replace(whole, **more)))


def test_what_is_not_reported_is_a_dash_and_what_is_pending_is_said() -> None:
    row = next(line for line in look(Reading(gpus=(GPU,))) if line.startswith("gpu-7"))
    assert re.split(r"\s{2,}", row)[3:] == [
        "0000:01:00.0",
        "-",
        "-",
        "on, 0 there, off after a reset",
        "3/4 to GPUs: 2",
        "well",
    ]


@pytest.mark.parametrize(("virtualization", "said"), [(0, True), (VGPU_GUEST, False)], ids=["own", "a vGPU guest's"])
def test_gpus_whose_mig_mode_can_be_changed_could_be_partitioned_for_claims(virtualization: int, said: bool) -> None:
    gpu = msgspec.structs.replace(
        GPU, virtualization=virtualization, mig=Mig(enabled=False, pending=False, resetless=True)
    )
    assert any("could be partitioned for claims" in line for line in look(Reading(gpus=(gpu,)))) is said


def test_a_sick_gpu_says_why() -> None:
    health = Health(status=HealthStatus.UNHEALTHY, message="XID 48: an uncorrectable memory error")
    taint = Taint(key="gpu.nvidia.com/fabric", value="", effect=TaintEffect.NONE)
    diagnosis = Diagnosis(gpus={"GPU-7": Assessment(health=health, taints=(taint,))})
    row = next(line for line in look(Reading(gpus=(GPU,)), diagnosis=diagnosis) if line.startswith("gpu-7"))
    assert row.endswith("XID 48: an uncorrectable memory error; gpu.nvidia.com/fabric")


def test_functions_of_other_drivers_are_listed_apart() -> None:
    def function(address: str, driver: str, **more: object) -> PciFunction:
        ids = {"vendor": "0x10de", "device": "0x2330", "pci_class": "0x030200"}
        return PciFunction(address=address, driver=driver, **ids, **more)  # type: ignore[arg-type]

    functions = {
        one.address: one
        for one in (
            function("0000:01:00.0", "nvidia"),
            function("0000:02:00.0", "vfio-pci", group="12", name="GH100"),
            function("0000:03:00.0", ""),
            function("0000:04:00.0", "nvidia"),
        )
    }
    lines = look(Reading(gpus=(GPU,), functions=functions, vfio=VfioHost(iommu=True)))
    found = [line.split() for line in lines if line.startswith("0000:")]
    assert found == [
        ["0000:02:00.0", "GH100", "vfio-pci", "12", "passed", "through"],
        ["0000:03:00.0", "0x2330", "none", "-", "not", "used", "by", "NVIDIA"],
    ]


def test_lost_gpus_and_advice_are_reported() -> None:
    lost = LostGpu(index=2, code=15, message="it has fallen off the bus", pci="0000:53:00.0")
    driver = Driver(version="580.1", cuda=0)
    lines = look(
        Reading(driver=driver, lost=(lost,)),
        settings=Settings(vfio=True),
        incidents=(Incident(gpu="GPU-7", xid=999, first=1.0, last=2.0, count=3),),
        problems=("something is missing",),
    )
    assert "- GPU 2 (NVML's index) at 0000:53:00.0 does not answer: it has fallen off the bus" in lines
    assert any("needs an IOMMU" in line for line in lines)
    assert "  GPU-7: 3 x XID 999" in lines
    assert lines[-1] == "- something is missing"
    assert lines[0] == "Driver:      580.1"


def test_columns_are_as_wide_as_they_must_be() -> None:
    assert list(table([("A", "LONG"), ("longer", "b")])) == ["A       LONG", "longer  b"]
