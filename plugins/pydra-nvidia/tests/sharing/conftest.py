"""Hardware and claims for the tests of sharing, and a driver whose programs are small real programs."""

from __future__ import annotations

import os
import stat
import sys
import textwrap
from ast import literal_eval
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from gpu_values import find_profile, gpu, make_instance
from mps_claims import make_applier
from pydra import AllocatedDevice, Claim, StepStage
from pydra_nvidia.claim_targets import Target, find_targets
from pydra_nvidia.hardware_types import Gpu, Mig, Profile, Reading
from pydra_nvidia.host.driver_root import DriverRoot
from pydra_nvidia.nvml.session import NvmlSession
from pydra_nvidia.settings import Settings
from pydra_nvidia.sharing.apply_mps import StartMpsApplier
from pydra_nvidia.sharing.mps_processes import MARK
from pydra_pci import PciFunction, Roots, Tree
from step_agent import StepAgent, build_claim

PROFILE, HALF = find_profile("1g.10gb"), find_profile("3g.40gb")


def make_gpu(minor: int, *, uuid: str = "", compute: tuple[int, int] = (9, 0), mig: Mig | None = None) -> Gpu:
    name = {(6, 1): "Tesla P4", (6, 0): "Tesla P100", (7, 5): "Tesla T4"}.get(compute, "NVIDIA H100 80GB HBM3")
    own = {"uuid": uuid or f"GPU-{minor}", "name": name, "compute": compute, "mig": mig}
    return gpu(minor, "", f"0000:{0x10 + minor:02x}:00.0", **own)


def make_mig(*exists: tuple[Profile, int, str]) -> Mig:
    instances = tuple(
        replace(one, compute=tuple(replace(part, uuid=uuid) for part in one.compute))
        for number, (profile, start, uuid) in enumerate(exists, 1)
        for one in [make_instance(profile, start, number=number)]
    )
    return Mig(
        enabled=bool(exists), pending=bool(exists), resetless=True, profiles=(PROFILE, HALF), instances=instances
    )


def make_reading(*gpus: Gpu) -> Reading:
    functions = {
        gpu.pci: PciFunction(address=gpu.pci, vendor="0x10de", device="0x2330", pci_class="0x030200") for gpu in gpus
    }
    return Reading(gpus=gpus, functions=functions)


def make_targets(reading: Reading, *devices: AllocatedDevice) -> tuple[Target, ...]:
    return find_targets(devices, reading)


def give(
    device: str, *configs: object, request: str = "gpu", share: str | None = None, admin: bool = False
) -> AllocatedDevice:
    return AllocatedDevice(
        request=request, pool="node", device=device, share_id=share, admin_access=admin, configs=configs
    )


CONTROL = """
    # A control daemon as NVIDIA's: goes into the background, writes its pid, serves one command after the other.
    import os, sys, time
    pipe, log = os.environ["CUDA_MPS_PIPE_DIRECTORY"], os.environ["CUDA_MPS_LOG_DIRECTORY"]
    behaviour = eval(open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "behaviour")).read())

    def note(text):
        with open(log + "/control.log", "a") as file:
            file.write(text + "\\n")

    def client():
        for line in sys.stdin.read().splitlines():
            os.mkfifo(reply := f"{pipe}/reply-{os.getpid()}")
            with open(os.open(reply, os.O_RDWR)) as answers:
                try:
                    os.write(os.open(pipe + "/control", os.O_WRONLY | os.O_NONBLOCK), f"{reply} {line}\\n".encode())
                except OSError:  # nobody reads it
                    sys.exit("Cannot find MPS control daemon process")
                answer = answers.readline().strip()
            os.unlink(reply)
            if answer.startswith("!"):
                sys.exit(answer[1:])
            print(answer)

    def serve():
        note(f"Start {dict(argv=sys.argv[1:], env=dict(os.environ))}")
        if behaviour.get("start") == "dies":
            note("Failed to initialise CUDA: no device")
            os._exit(1)
        if behaviour.get("forks"):
            import signal
            signal.signal(signal.SIGTERM, lambda *_: os.fork() and os._exit(0))
        server = os.fork() if behaviour.get("server") else 0
        if behaviour.get("server") and server == 0:
            time.sleep(600)
        with open(pipe + "/nvidia-cuda-mps-control.pid", "w") as file:
            file.write(str(os.getpid()))
        open("/dev/shm/cuda.shm.test", "w").close() if behaviour.get("shm") else None
        time.sleep(behaviour.get("slow", 0))
        os.mkfifo(pipe + "/control")
        percentage = "100.0"
        for line in open(os.open(pipe + "/control", os.O_RDWR)):
            reply, *words = line.split()
            note("Cmd:" + " ".join(words))
            answer = ""
            if words[0] == behaviour.get("hangs"):
                time.sleep(600)
            elif words[0] == behaviour.get("refuses"):
                answer = "!Invalid argument"
            elif words[0] == "set_default_active_thread_percentage":
                percentage = behaviour.get("percentage", words[1] + ".0")
            elif words[0] == "get_default_active_thread_percentage":
                answer = percentage
            try:
                os.write(client := os.open(reply, os.O_WRONLY | os.O_NONBLOCK), f"{answer}\\n".encode())
                os.close(client)
            except OSError:
                pass  # who asked is gone
            if words[0] == "quit" and not behaviour.get("stubborn"):
                os._exit(0)

    if sys.argv[1:2] != ["-d"]:
        client()
    elif behaviour.get("start") == "refuses":
        sys.exit("An instance of this daemon is already running")
    else:
        if os.fork():
            os._exit(0)
        os.setsid()
        if os.fork():
            os._exit(0)
        serve()
"""
"""Starts in half the time without modules such as `socket` and `json`."""

SMI = """
    import os, sys, time
    here = os.path.dirname(os.path.abspath(__file__))
    behaviour = eval(open(here + "/behaviour").read())
    with open(here + "/smi.log", "a") as file:
        print(dict(argv=sys.argv[1:], env=dict(os.environ)), file=file)
    for words, outcome in behaviour.get("smi", {}).items():
        if words in " ".join(sys.argv[1:]):
            if outcome == "hangs":
                time.sleep(600)
            print(outcome)
            sys.exit(3)
    print("Done")
"""


class Hardware:
    """What the tests need of NVML: compute modes by UUID, and errors by function and UUID."""

    def __init__(self) -> None:
        self.modes: dict[str, int] = {}
        self.errors: dict[tuple[str, str], int] = {}
        self.calls: list[tuple[str, str, int]] = []


class _NvmlError(Exception):
    def __init__(self, value: int) -> None:
        self.value = value
        super().__init__(str(value))


def _load_nvml(hardware: Hardware) -> ModuleType:
    def check(name: str, uuid: str) -> None:
        if code := hardware.errors.get((name, uuid)):
            raise _NvmlError(code)

    def by_uuid(uuid: str) -> str:
        check("nvmlDeviceGetHandleByUUID", uuid)
        return uuid

    def get_mode(handle: str) -> int:
        check("nvmlDeviceGetComputeMode", handle)
        return hardware.modes.get(handle, 0)

    def set_mode(handle: str, mode: int) -> None:
        check("nvmlDeviceSetComputeMode", handle)
        hardware.modes[handle] = mode
        hardware.calls.append(("nvmlDeviceSetComputeMode", handle, mode))

    fake: Any = SimpleNamespace(
        NVMLError=_NvmlError,
        nvmlInitWithFlags=lambda flags: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetHandleByUUID=by_uuid,
        nvmlDeviceGetComputeMode=get_mode,
        nvmlDeviceSetComputeMode=set_mode,
    )
    return fake  # type: ignore[no-any-return]


class Bench:
    """A node of its own: settings, claims, NVML, and a driver's root with programs in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.root_path = path / "driver"
        self.settings = Settings(
            state=str(path / "s"), host_root="/", proc_root=str(path / "proc"), mps_ready_deadline=10.0
        )
        self.tree = Tree(Roots(host="/", sys=str(path / "sys"), proc=str(path / "proc")))
        self.agent = StepAgent()
        self.hardware = Hardware()
        self.session = NvmlSession(lambda: _load_nvml(self.hardware))
        for name in ("usr/bin", "usr/lib64"):
            (self.root_path / name).mkdir(parents=True)
        (path / "proc").mkdir()
        (path / "proc" / "meminfo").write_text("MemTotal:        8192 kB\nMemFree: 1 kB\n")

    def find_root(self) -> DriverRoot:
        return DriverRoot(
            host_path="/",
            here=str(self.root_path),
            library_dir="/usr/lib64",
            nvml_library=str(self.root_path / "usr/lib64/libnvidia-ml.so.1"),
        )

    def install(self, name: str, source: str) -> Path:
        path = self.root_path / "usr/bin" / name
        path.write_text(f"#!{sys.executable} -IS\n{textwrap.dedent(source)}")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    def install_all(self, **behaviour: object) -> None:
        self.install("nvidia-cuda-mps-control", CONTROL)
        self.install("nvidia-smi", SMI)
        self.behave(**behaviour)

    def behave(self, **behaviour: object) -> None:
        (self.root_path / "usr/bin/behaviour").write_text(repr(behaviour))

    def smi_runs(self) -> list[dict[str, Any]]:
        log = self.root_path / "usr/bin/smi.log"
        return [literal_eval(line) for line in log.read_text().splitlines()] if log.exists() else []

    def smi_calls(self) -> list[list[str]]:
        return [run["argv"] for run in self.smi_runs()]

    def log_of(self, daemon: str) -> list[str]:
        """The commands that the daemon got, but for questions."""
        lines = (self.path / "s/mps" / daemon / "log/control.log").read_text().splitlines()
        return [line.removeprefix("Cmd:") for line in lines if line.startswith("Cmd:") and "get_" not in line]

    def starts_of(self, daemon: str) -> list[dict[str, Any]]:
        lines = (self.path / "s/mps" / daemon / "log/control.log").read_text().splitlines()
        return [literal_eval(line.removeprefix("Start ")) for line in lines if line.startswith("Start ")]

    def note(self, claim: Claim) -> Claim:
        """Hold the claim, with all its steps done."""
        steps = tuple([replace(one, stage=StepStage.DONE, result=True) for one in claim.steps])
        self.agent.note(replace(claim, steps=steps), completed=True)
        return claim


@pytest.fixture
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(tmp_path_factory.mktemp("b"))
    yield bench
    bench.session.close()
    _end_all(bench)


def _end_all(bench: Bench) -> None:
    """No daemon outlives its test, whatever went wrong in it."""
    mark = f"{MARK}={bench.settings.state}/mps/"
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                environ = Path(f"/proc/{name}/environ").read_bytes()
            except OSError:
                continue
            if any(part.startswith(mark.encode()) for part in environ.split(b"\0")):
                os.kill(int(name), 9)
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if line.split()[4].startswith(str(bench.path)):
            os.system(f"umount -l {line.split()[4]}")


class Kit:
    """The makers above, as tests get them."""

    PROFILE, HALF = PROFILE, HALF
    gpu = staticmethod(make_gpu)
    mig = staticmethod(make_mig)
    reading = staticmethod(make_reading)
    targets = staticmethod(make_targets)
    give = staticmethod(give)
    entry = staticmethod(build_claim)


@pytest.fixture
def kit() -> type[Kit]:
    return Kit


@pytest.fixture
def applier(bench: Any) -> StartMpsApplier:
    bench.install_all()
    return make_applier(bench)
