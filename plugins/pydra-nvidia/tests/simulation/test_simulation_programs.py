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
from pydra_nvidia.simulation.machine import Machine
from pydra_nvidia.simulation.scenario_file import ScenarioFile
from pydra_nvidia.simulation.state import GpuState
from pydra_nvidia.simulation.tree.sync import build_tree


class Node:
    """A machine of one H100, its programs run from the tree. `uuid` is the GPU's."""

    def __init__(self, folder: Path, scenario: Mapping[str, Any]) -> None:
        self.folder = folder
        (folder / "s.json").write_text(json.dumps({"gpus": [{"model": "h100-80gb"}], **scenario}))
        self.machine = Machine(ScenarioFile(str(folder / "s.json")), str(folder / "m"))
        self.root = Path(build_tree(str(folder / "t"), self.machine).root)
        self.inject = Injector(self.machine)
        self.uuid = next(iter(self.machine.read().boards))

    @property
    def gpu(self) -> GpuState:
        return self.machine.read().state.gpus[self.uuid]

    def smi(self, *arguments: str) -> tuple[int, str]:
        return self.run("nvidia-smi", *arguments)

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


def test_nvidia_smi_sets_modes_and_slices_of_the_machine(node: Callable[..., Node]) -> None:
    here = node()
    for arguments, said in (
        (("-i", here.uuid, "-c", "EXCLUSIVE_PROCESS"), "Set compute mode to EXCLUSIVE_PROCESS"),
        (("-i", "0", "--compute-mode=3"), "Compute mode is already set to EXCLUSIVE_PROCESS"),
        (("compute-policy", "-i", here.uuid, "--set-timeslice", "2"), "timeslice to Medium"),
        (("-i", "0000:0F:00.0", "-pm", "0"), "Disabled persistence mode"),
    ):
        status, words = here.smi(*arguments)
        assert (status, said in words, words.endswith("All done.\n")) == (0, True, True), words
    assert (here.gpu.compute_mode, here.gpu.time_slice, here.gpu.persistence) == (3, 2, False)
    assert here.smi("compute-policy", "-l") == (0, "GPU 00000000:0F:00.0: Timeslice: Medium\nAll done.\n")


def test_nvidia_smi_tells_versions_and_what_there_is(node: Callable[..., Node]) -> None:
    here = node(driver={"version": "580.95.05", "cuda": 13010})
    assert here.smi("--version") == (
        0,
        "NVIDIA-SMI version  : 580.95.05\nNVML version        : 580.95\n"
        "DRIVER version      : 580.95.05\nCUDA Version        : 13.1\n",
    )
    here.inject.set_mig_mode(0, True, force=True)
    uuid = here.inject.create_mig(0, "1g.10gb", 0)
    status, words = here.smi("-L")
    assert status == 0
    first, second = words.splitlines()
    assert first == f"GPU 0: NVIDIA H100 80GB HBM3 (UUID: {here.uuid})"
    assert second.split() == ["MIG", "1g.10gb", "Device", "0:", "(UUID:", f"{uuid})"]


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("-i", "GPU-none", "-c", "DEFAULT"), 6, "No devices were found"),
        (("-i", "7", "-c", "DEFAULT"), 6, "No devices were found"),
        (("-c", "SOMETIMES"), 2, "Invalid"),
        (("compute-policy", "--set-timeslice", "4"), 2, "Invalid timeslice"),
        (("--frobnicate",), 2, "Invalid"),
        (("-c",), 2, "Invalid"),
    ],
)
def test_nvidia_smi_refuses_what_makes_no_sense(
    node: Callable[..., Node], arguments: tuple[str, ...], status: int, words: str
) -> None:
    ended, said = node().smi(*arguments)
    assert (ended, words in said) == (status, True), said


@pytest.mark.parametrize(
    ("happens", "status", "words"),
    [
        (lambda node: node.inject.lose(0), 15, "GPU is lost"),
        (lambda node: node.inject.unload_driver(force=True), 9, "couldn't communicate with the NVIDIA driver"),
        (lambda node: node.inject.set_mig_mode(0, True, force=True), 3, "Not Supported"),
    ],
    ids=["lost", "no driver", "partitioned"],
)
def test_nvidia_smi_fails_as_nvml_does(
    node: Callable[..., Node], happens: Callable[[Node], None], status: int, words: str
) -> None:
    here = node()
    happens(here)
    ended, said = here.smi("-i", here.uuid, "-c", "EXCLUSIVE_PROCESS")
    assert (ended, words in said, here.gpu.compute_mode) == (status, True, 0), said


@pytest.mark.parametrize("arguments", [("-c", "3"), ("-pm", "0"), ("compute-policy", "--set-timeslice", "1")])
def test_nvidia_smi_needs_root(node: Callable[..., Node], arguments: tuple[str, ...]) -> None:
    here = node(driver={"privileged": False})
    status, words = here.smi(*arguments)
    assert (status, "Insufficient Permissions" in words) == (4, True)
    assert (here.gpu.compute_mode, here.gpu.time_slice, here.gpu.persistence) == (0, 0, True)


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        ({"op": "nvidia_smi", "do": "raise", "code": "NOT_SUPPORTED"}, 3),
        ({"op": "nvidia_smi", "do": "exit", "status": 42}, 42),
        ({"op": "nvmlDeviceSetComputeMode", "do": "raise", "code": "NO_PERMISSION"}, 4),
        ({"op": "nvidia_smi", "do": "exit", "device": 5}, 0),
    ],
)
def test_faults_strike_nvidia_smi(node: Callable[..., Node], fault: Mapping[str, object], status: int) -> None:
    assert node(faults=[fault]).smi("-c", "3")[0] == status


def test_an_mps_daemon_serves_until_told_to_quit(node: Callable[..., Node]) -> None:
    here = node()
    assert here.mps("quit") == (1, "Cannot find MPS control daemon process\n")
    assert here.run("nvidia-cuda-mps-control", "-d") == (0, "")
    pid = here.mps_pid()
    assert pid is not None
    assert Path(f"/proc/{pid}/comm").read_text() == "nvidia-cuda-mps\n"
    assert here.uuid.encode() in Path(f"/proc/{pid}/environ").read_bytes()
    assert here.run("nvidia-cuda-mps-control", "-d") == (1, "An instance of this daemon is already running\n")
    assert here.mps("get_default_active_thread_percentage", "get_server_list") == (0, "100.0\n")
    answers = here.mps(
        "set_default_active_thread_percentage 40",
        f"set_default_device_pinned_mem_limit {here.uuid} 512M",
        "get_default_active_thread_percentage",
        f"get_default_device_pinned_mem_limit {here.uuid}",
    )
    assert answers == (0, "40.0\n40.0\n512M\n")
    assert here.mps("quit") == (0, "")
    wait_for(lambda: is_gone(pid))
    assert os.listdir(here.folder / "p") == []
    log = (here.folder / "l/control.log").read_text()
    assert here.uuid in log
    assert "Accepting command: set_default_active_thread_percentage 40" in log


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("frobnicate", "Unknown command: frobnicate"),
        ("set_default_active_thread_percentage 101", "Invalid active thread percentage: 101"),
        ("set_default_active_thread_percentage", "Invalid arguments for set_default_active_thread_percentage: none"),
        ("set_default_device_pinned_mem_limit 0 lots", "Invalid pinned memory limit: lots"),
        ("shutdown_server 1", "Server 1 not found"),
    ],
)
def test_an_mps_daemon_only_tells_of_commands_that_make_no_sense(
    node: Callable[..., Node], command: str, answer: str
) -> None:
    here = node()
    here.run("nvidia-cuda-mps-control", "-d")
    assert here.mps(command, "get_default_active_thread_percentage") == (0, f"{answer}\n100.0\n")


def test_a_killed_mps_daemon_is_noticed_and_another_takes_its_place(node: Callable[..., Node]) -> None:
    here = node()
    here.run("nvidia-cuda-mps-control", "-d")
    pid = here.mps_pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: is_gone(pid))
    assert here.mps("get_server_list") == (1, "Cannot find MPS control daemon process\n")
    assert here.run("nvidia-cuda-mps-control", "-d") == (0, "")
    assert here.mps_pid() != pid
    assert here.mps("get_default_active_thread_percentage") == (0, "100.0\n")


def test_servers_use_the_daemons_devices_and_end_with_it(node: Callable[..., Node]) -> None:
    here = node()
    here.run("nvidia-cuda-mps-control", "-d")
    status, words = here.mps("start_server -uid 1000", "start_server -uid 1001", "get_server_list")
    pids = [int(word) for word in words.split()]
    assert (status, len(pids)) == (0, 2)
    assert sorted((one.pid, one.kind) for one in here.gpu.processes) == [(pid, "mps") for pid in pids]
    assert (here.root / f"proc/{pids[0]}/fd/10").is_symlink()
    here.mps(f"shutdown_server {pids[0]}")
    assert [one.pid for one in here.gpu.processes] == pids[1:]
    daemon = here.mps_pid()
    assert daemon is not None
    os.kill(daemon, signal.SIGKILL)
    wait_for(lambda: here.gpu.processes == [] and is_gone(pids[1]))


def test_a_server_for_a_device_that_is_gone_does_not_start(node: Callable[..., Node]) -> None:
    here = node()
    here.run("nvidia-cuda-mps-control", "-d")
    here.inject.unplug(0)
    assert here.mps("start_server -uid 0") == (0, f"Failed to start MPS server: no such device: {here.uuid}\n")
    assert here.mps("get_server_list") == (0, "")


def test_a_daemon_ends_when_it_is_terminated(node: Callable[..., Node]) -> None:
    here = node()
    here.run("nvidia-cuda-mps-control", "-d", "-multiuser-server")
    pid = here.mps_pid()
    assert pid is not None
    os.kill(pid, signal.SIGTERM)
    wait_for(lambda: is_gone(pid))
    assert os.listdir(here.folder / "p") == []


def test_an_mps_daemon_may_refuse_to_start(node: Callable[..., Node]) -> None:
    here = node(faults=[{"op": "nvidia_cuda_mps_control", "do": "raise", "code": "INVALID_STATE"}])
    status, words = here.run("nvidia-cuda-mps-control", "-d")
    assert (status, "refused: INVALID_STATE" in words) == (1, True)
    assert here.mps_pid() is None


def test_an_mps_daemon_may_die_when_it_is_told_something(node: Callable[..., Node]) -> None:
    fault = {"op": "nvidia_cuda_mps_control_set_default*", "do": "exit", "count": 1}
    here = node(faults=[fault])
    here.run("nvidia-cuda-mps-control", "-d")
    assert here.mps("get_default_active_thread_percentage") == (0, "100.0\n")
    status, words = here.mps("set_default_active_thread_percentage 50")
    assert (status, "Lost the connection" in words) == (1, True)
    assert here.mps("get_server_list")[0] == 1


def test_an_mps_daemon_may_refuse_a_command(node: Callable[..., Node]) -> None:
    here = node(faults=[{"op": "nvidia_cuda_mps_control_set_default_device*", "do": "raise"}])
    here.run("nvidia-cuda-mps-control", "-d")
    assert here.mps("set_default_device_pinned_mem_limit 0 1G") == (1, "refused: UNKNOWN\n")


def test_an_mps_daemon_may_die_as_soon_as_it_was_started(node: Callable[..., Node]) -> None:
    here = node(faults=[{"op": "nvidia_cuda_mps_control_serve", "do": "exit", "count": 1}])
    assert here.run("nvidia-cuda-mps-control", "-d") == (0, "")
    pid = here.mps_pid()
    assert pid is not None
    wait_for(lambda: is_gone(pid))


def test_programs_that_are_not_simulated_say_so(node: Callable[..., Node]) -> None:
    status, words = node().run("nvidia-debugdump")
    assert (status, "simulated" in words) == (1, True)
    assert node().run("nvidia-cuda-mps-control", "--help")[0] == 1


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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("create-symlinks", "--link", "a::/b"), "failed to determine container root"),
        (("create-symlinks", "--lnik", "a::/b"), "flag provided but not defined: --lnik"),
        (("update-ldcache", "--folder"), "flag needs an argument: --folder"),
        ((), "no hook is named"),
    ],
)
def test_the_hook_fails_for_what_it_cannot_do(
    node: Callable[..., Node], arguments: tuple[str, ...], words: str
) -> None:
    status, said = hook(node(), *arguments, state={})
    assert (status, words in said) == (1, True), said
