"""The driver's programs on a simulated machine, as real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pydra_nvidia.simulation.inject import Injector
from pydra_nvidia.simulation.machine_state import GpuState
from pydra_nvidia.simulation.machine_store import Machine
from pydra_nvidia.simulation.scenario_file import ScenarioFile
from pydra_nvidia.simulation.tree.sync import build_tree


class Node:
    """A machine of one H100, its programs run from the tree. `uuid` is the GPU's."""

    def __init__(self, folder: Path, scenario: Mapping[str, Any]) -> None:
        self.folder = folder
        (folder / "s.json").write_text(
            json.dumps({"host": {"onlyGpus": True}, "gpus": [{"model": "h100-80gb"}], **scenario})
        )
        self.machine = Machine(ScenarioFile(str(folder / "s.json")), str(folder / "m"))
        self.root = Path(build_tree(str(folder / "t"), self.machine).root)
        self.inject = Injector(self.machine)
        self.uuid = next(iter(self.machine.read().boards))

    @property
    def gpu(self) -> GpuState:
        return self.machine.read().state.gpus[self.uuid]

    def smi(self, *arguments: str) -> tuple[int, str]:
        return self.run("nvidia-smi", *[self.uuid if one == "UUID" else one for one in arguments])

    def run(self, name: str, *arguments: str, text: str = "") -> tuple[int, str]:
        """Its status, and what it said."""
        libraries = self.root / "usr/lib/x86_64-linux-gnu"
        ran = subprocess.run(
            [str(self.root / "usr/bin" / name), *arguments],
            input=text,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=50,
            check=False,
            cwd="/",
            env={
                "PATH": os.defpath,
                "LD_PRELOAD": str(libraries / "libnvidia-ml.so.1") if os.uname().machine == "x86_64" else "",
                "CUDA_VISIBLE_DEVICES": self.uuid,
                "CUDA_MPS_PIPE_DIRECTORY": str(self.folder / "p"),
                "CUDA_MPS_LOG_DIRECTORY": str(self.folder / "l"),
            },
        )
        return ran.returncode, ran.stdout

    def mps(self, *commands: str) -> tuple[int, str]:
        return self.run("nvidia-cuda-mps-control", text="".join(f"{one}\n" for one in commands))

    def mps_pid(self) -> int | None:
        try:
            return int((self.folder / "p/nvidia-cuda-mps-control.pid").read_text())
        except (FileNotFoundError, ValueError):
            return None


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


@pytest.fixture
def node(short: Path) -> Iterator[Callable[..., Node]]:
    made: list[Node] = []

    def make(**scenario: Any) -> Node:
        made.append(Node(short, scenario))
        return made[-1]

    yield make
    for one in made:
        if pid := one.mps_pid():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            wait_for(lambda pid=pid: is_gone(pid))


@pytest.fixture
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a short path: the name of a socket has an end."""
    return tmp_path_factory.mktemp("n")


SLICE = "compute-policy", "-i", "UUID", "--set-timeslice"


def test_nvidia_smi_sets_time_slices_and_lists_what_there_is(node: Callable[..., Node]) -> None:
    here = node()
    status, words = here.smi(*SLICE, "2")
    assert (status, "timeslice to Medium" in words, here.gpu.time_slice) == (0, True, 2), words
    here.inject.set_mig_mode(0, True, force=True)
    uuid = here.inject.create_mig(0, "1g.10gb", 0)
    status, words = here.smi("-L")
    first, second = words.splitlines()
    assert (status, first) == (0, f"GPU 0: NVIDIA H100 80GB HBM3 (UUID: {here.uuid})")
    assert second.split() == ["MIG", "1g.10gb", "Device", "0:", "(UUID:", f"{uuid})"]


def test_nvidia_smi_refuses_as_the_real_one_does(node: Callable[..., Node]) -> None:
    here = node()
    none = ("compute-policy", "-i", "GPU-none", "--set-timeslice", "1")
    assert here.smi(*none) == (6, "No devices were found\n")
    refused = {
        2: (lambda: None, "4", "Invalid timeslice"),
        15: (lambda: here.inject.lose(0), "1", "GPU is lost"),
        9: (lambda: here.inject.unload_driver(force=True), "1", "couldn't communicate with the NVIDIA driver"),
    }
    for status, (happens, slice_, words) in refused.items():
        happens()
        ended, said = here.smi(*SLICE, slice_)
        assert (ended, words in said, here.gpu.time_slice) == (status, True, 0), said


@pytest.mark.parametrize(
    ("scenario", "status", "words"),
    [
        ({"driver": {"privileged": False}}, 4, "Insufficient Permissions"),
        ({"faults": [{"op": "nvidia_smi", "do": "raise", "code": "NOT_SUPPORTED"}]}, 3, "Not Supported"),
    ],
)
def test_nvidia_smi_refuses_as_the_scenario_says(
    node: Callable[..., Node], scenario: Mapping[str, Any], status: int, words: str
) -> None:
    here = node(**scenario)
    ended, said = here.smi(*SLICE, "1")
    assert (ended, words in said, here.gpu.time_slice) == (status, True, 0), said


def test_an_mps_daemon_serves_until_it_gets_quit(node: Callable[..., Node]) -> None:
    here = node()
    assert here.mps("quit") == (1, "Cannot find MPS control daemon process\n")
    assert here.run("nvidia-cuda-mps-control", "-d") == (0, "")
    pid = here.mps_pid()
    assert pid is not None
    assert Path(f"/proc/{pid}/comm").read_text() == "nvidia-cuda-mps\n"
    assert here.uuid.encode() in Path(f"/proc/{pid}/environ").read_bytes()
    assert here.run("nvidia-cuda-mps-control", "-d") == (1, "An instance of this daemon is already running\n")
    assert here.mps("get_default_active_thread_percentage") == (0, "100.0\n")
    answers = here.mps(
        "set_default_active_thread_percentage 40",
        f"set_default_device_pinned_mem_limit {here.uuid} 512M",
        "get_default_active_thread_percentage",
        f"get_default_device_pinned_mem_limit {here.uuid}",
    )
    assert answers == (0, "40.0\n40.0\n512M\n")
    nonsense = {
        "frobnicate": "Unknown command, or invalid arguments: frobnicate",
        "set_default_active_thread_percentage 101": "Invalid active thread percentage: 101",
        "set_default_device_pinned_mem_limit 0 lots": "Invalid pinned memory limit: lots",
        "get_default_active_thread_percentage": "40.0",
    }
    assert here.mps(*nonsense) == (0, "".join(f"{answer}\n" for answer in nonsense.values()))
    assert here.mps("quit") == (0, "")
    wait_for(lambda: is_gone(pid))
    assert os.listdir(here.folder / "p") == []
    log = (here.folder / "l/control.log").read_text()
    assert here.uuid in log
    assert "Accepting command: set_default_active_thread_percentage 40" in log


def test_a_killed_mps_daemon_is_noticed_and_another_takes_its_place(node: Callable[..., Node]) -> None:
    here = node()
    here.run("nvidia-cuda-mps-control", "-d")
    pid = here.mps_pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: is_gone(pid))
    assert here.mps("quit") == (1, "Cannot find MPS control daemon process\n")
    assert here.run("nvidia-cuda-mps-control", "-d") == (0, "")
    assert here.mps_pid() != pid
    assert here.mps("get_default_active_thread_percentage") == (0, "100.0\n")


def test_an_mps_daemon_may_refuse_a_command_and_die_of_another(node: Callable[..., Node]) -> None:
    dies = {"op": "nvidia_cuda_mps_control_set_default_active*", "do": "exit", "count": 1}
    here = node(faults=[dies, {"op": "nvidia_cuda_mps_control_set_default_device*", "do": "raise"}])
    here.run("nvidia-cuda-mps-control", "-d")
    assert here.mps("set_default_device_pinned_mem_limit 0 1G") == (1, "refused: UNKNOWN\n")
    status, words = here.mps("set_default_active_thread_percentage 50")
    assert (status, "Lost the connection" in words) == (1, True)
    assert here.mps("quit")[0] == 1


def test_programs_that_are_not_simulated_say_so(node: Callable[..., Node]) -> None:
    here = node()
    status, words = here.run("nvidia-debugdump")
    assert (status, "simulated" in words) == (1, True)
    assert here.run("nvidia-cuda-mps-control", "--help")[0] == 1


def hook(here: Node, *arguments: str, state: object) -> tuple[int, str]:
    return here.run("nvidia-cdi-hook", *arguments, text=json.dumps(state))


def test_the_hook_makes_links_in_the_containers_root(node: Callable[..., Node]) -> None:
    here = node()
    bundle = here.folder / "bundle"
    (bundle / "rootfs/usr/lib").mkdir(parents=True)
    (bundle / "rootfs/lib").symlink_to("/usr/lib")  # leads inside, whatever it says
    (bundle / "config.json").write_text(json.dumps({"root": {"path": "rootfs"}}))
    links = ("--link", "libcuda.so.1::/lib/libcuda.so", "--link", "../card1::/dev/dri/by-path/pci-0-card")
    for _ in range(2):
        assert hook(here, "create-symlinks", *links, state={"bundle": str(bundle)}) == (0, "")
    assert os.readlink(bundle / "rootfs/usr/lib/libcuda.so") == "libcuda.so.1"
    assert os.readlink(bundle / "rootfs/dev/dri/by-path/pci-0-card") == "../card1"
    for others in (
        ("enable-cuda-compat", "--host-driver-version=580.105.08"),
        ("update-ldcache", "--folder", "/usr/lib", "--folder", "/usr/lib/vdpau"),
        ("disable-device-node-modification",),
    ):
        assert hook(here, *others, state={"bundle": str(bundle)}) == (0, "")


def test_the_hook_fails_for_what_it_cannot_do(node: Callable[..., Node]) -> None:
    here = node()
    for arguments, words in (
        (("create-symlinks", "--link", "a::/b"), "failed to determine container root"),
        ((), "no hook is named"),
    ):
        status, said = hook(here, *arguments, state={})
        assert (status, words in said) == (1, True), said
