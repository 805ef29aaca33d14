"""What the program that starts daemons gets, and that it does it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pydra import ClaimError
from pydra_nvidia.host.driver_programs import Program
from pydra_nvidia.host.driver_root import DriverRoot
from pydra_nvidia.settings import MpsLauncher, Settings
from pydra_nvidia.sharing import mps_launcher
from pydra_nvidia.sharing.apply_mps import StartMpsApplier
from pydra_nvidia.sharing.mps_daemon import MpsDaemons
from pydra_nvidia.sharing.mps_directory import find_directory
from pydra_nvidia.sharing.mps_launch_plan import (
    Launch,
    LaunchContext,
    find_context,
    find_mounts,
    has_memory,
    plan_daemon,
    plan_mount,
    reach_pipe,
)
from pydra_nvidia.steps import StartMps

PLACE = find_directory(Settings(state="/run/pydra-nvidia"), "u1-abcde")
MOUNTED = find_directory(Settings(state="/host/run/pydra-nvidia", host_root="/host"), "u1-abcde")
NAMESPACES = tuple(f"/proc/1/ns/{name}" for name in ("cgroup", "ipc", "uts", "net", "pid", "mnt"))
DIRECT, HOST = find_context(MpsLauncher.DIRECT), find_context(MpsLauncher.HOST)
CONTROL = "/usr/bin/nvidia-cuda-mps-control"


def program(here: str) -> Program:
    return Program(name="nvidia-cuda-mps-control", inside=CONTROL, here=here)


def root(host_path: str, here: str, dev_root: str = "/") -> DriverRoot:
    return DriverRoot(host_path=host_path, here=here, library_dir="/usr/lib64", nvml_library="/nvml", dev_root=dev_root)


def test_on_the_host_itself_the_daemon_gets_its_memory_and_leaves_the_agents_control_group() -> None:
    plan = plan_daemon(
        PLACE,
        program("/opt/driver" + CONTROL),
        root("/opt/driver", "/opt/driver"),
        DIRECT,
        devices=("GPU-a", "GPU-b"),
        multi_user=True,
    )
    assert plan == Launch(
        leave_cgroups=True,
        binds={"/run/pydra-nvidia/mps/u1-abcde/shm": "/dev/shm"},
        argv=("/opt/driver/usr/bin/nvidia-cuda-mps-control", "-d", "-M"),
        environment={
            "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b",
            "CUDA_MPS_PIPE_DIRECTORY": "/run/pydra-nvidia/mps/u1-abcde/pipe",
            "CUDA_MPS_LOG_DIRECTORY": "/run/pydra-nvidia/mps/u1-abcde/log",
            "PYDRA_NVIDIA_MPS": "/run/pydra-nvidia/mps/u1-abcde",
            "PATH": "/opt/driver/usr/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "LD_LIBRARY_PATH": "/opt/driver/usr/lib64",
        },
    )


def test_from_a_container_the_daemon_goes_to_the_host_by_the_hosts_paths() -> None:
    plan = plan_daemon(
        MOUNTED,
        program("/host/home/kubernetes/bin/nvidia" + CONTROL),
        root("/home/kubernetes/bin/nvidia", "/host/home/kubernetes/bin/nvidia"),
        HOST,
        devices=("MIG-a",),
        multi_user=False,
    )
    assert plan == Launch(
        namespaces=NAMESPACES,
        leave_cgroups=True,
        binds={"/run/pydra-nvidia/mps/u1-abcde/shm": "/dev/shm"},
        argv=("/home/kubernetes/bin/nvidia/usr/bin/nvidia-cuda-mps-control", "-d"),
        environment={
            "CUDA_VISIBLE_DEVICES": "MIG-a",
            "CUDA_MPS_PIPE_DIRECTORY": "/run/pydra-nvidia/mps/u1-abcde/pipe",
            "CUDA_MPS_LOG_DIRECTORY": "/run/pydra-nvidia/mps/u1-abcde/log",
            "PYDRA_NVIDIA_MPS": "/host/run/pydra-nvidia/mps/u1-abcde",
            "PATH": "/home/kubernetes/bin/nvidia/usr/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "LD_LIBRARY_PATH": "/home/kubernetes/bin/nvidia/usr/lib64",
        },
    )


@pytest.mark.parametrize(
    ("shell", "dev_root", "chroot"),
    [(True, "own", True), (False, "own", False), (True, "/", False)],
    ids=["a system of its own", "only unpacked files", "the host's devices"],
)
def test_a_driver_in_a_container_of_its_own_gets_its_root(
    tmp_path: Path, shell: bool, dev_root: str, chroot: bool
) -> None:
    (tmp_path / "bin").mkdir()
    if shell:
        (tmp_path / "bin/sh").touch()
    driver = root("/run/nvidia/driver", str(tmp_path), dev_root="/run/nvidia/driver" if dev_root == "own" else "/")
    plan = plan_daemon(MOUNTED, program("anywhere"), driver, HOST, devices=("GPU-a",), multi_user=False)
    if not chroot:
        assert plan.root == ""
        assert plan.argv[0] == "/run/nvidia/driver/usr/bin/nvidia-cuda-mps-control"
        return
    state = "/run/pydra-nvidia/mps/u1-abcde"
    assert plan.root == "/run/nvidia/driver"
    assert plan.argv[0] == CONTROL
    assert plan.binds == {
        f"{state}/shm": "/run/nvidia/driver/dev/shm",
        f"{state}/pipe": "/run/nvidia/driver/tmp/nvidia-mps",
        f"{state}/log": "/run/nvidia/driver/var/log/nvidia-mps",
    }
    assert plan.environment["CUDA_MPS_PIPE_DIRECTORY"] == "/tmp/nvidia-mps"
    assert plan.environment["CUDA_MPS_LOG_DIRECTORY"] == "/var/log/nvidia-mps"
    assert "LD_LIBRARY_PATH" not in plan.environment


def test_memory_is_mounted_where_containers_are_started_from() -> None:
    pipe, shm = "/run/pydra-nvidia/mps/u1-abcde/pipe", "/run/pydra-nvidia/mps/u1-abcde/shm"
    tmpfs = {pipe: "size=1m,nr_inodes=1k,mode=755,nosymfollow", shm: "size=4096k,mode=1777"}
    assert plan_mount(PLACE, "4096k", DIRECT) == Launch(tmpfs=tmpfs)
    assert plan_mount(MOUNTED, "4096k", HOST) == Launch(namespaces=NAMESPACES, tmpfs=tmpfs)
    assert [*tmpfs] == [pipe, shm]  # who has the second has the first


def test_what_is_mounted_of_a_place_is_found_the_latest_first(tmp_path: Path) -> None:
    place = find_directory(Settings(state="/run/a b"), "u1-abcde")
    line = "26 1 0:24 / {} rw,nosuid - tmpfs mps rw\n"
    paths = ["/", "/run", *(f"/run/a\\040b/mps/{one}" for one in ("u1-abcde/pipe", "u1-abcde/shm", "u2-abcde/shm"))]
    (tmp_path / "mounts").write_text("".join(line.format(path) for path in paths))
    where = LaunchContext(mounts=str(tmp_path / "mounts"))
    assert find_mounts(place, where) == (place.shm, place.pipe)
    assert has_memory(place, where)
    (tmp_path / "mounts").write_text("".join(line.format(path) for path in paths[:3]))
    assert find_mounts(place, where) == (place.pipe,)
    assert not has_memory(place, where)
    assert find_mounts(place, LaunchContext(mounts=str(tmp_path / "none"))) == ()


def test_a_plan_goes_to_a_program_that_needs_nothing_of_the_package() -> None:
    python, isolated, path, text = Launch(argv=("/bin/true",), environment={"A": "b"}).command()
    assert (python, isolated, path) == (sys.executable, "-IS", mps_launcher.__file__)
    assert json.loads(text)["argv"] == ["/bin/true"]
    assert json.loads(text)["environment"] == {"A": "b"}


def run(plan: Launch) -> subprocess.CompletedProcess[str]:
    return subprocess.run(plan.command(), capture_output=True, text=True, timeout=30, check=False)


def test_the_program_gets_the_environment_of_the_plan_alone() -> None:
    code = "import json, os; print(json.dumps([dict(os.environ), os.getcwd()]))"
    done = run(Launch(argv=(sys.executable, "-IS", "-c", code), environment={"A": "b"}))
    environment, directory = json.loads(done.stdout)
    assert environment.pop("LC_CTYPE", "C.UTF-8") == "C.UTF-8"
    assert (environment, directory) == ({"A": "b"}, "/")


def test_what_the_kernel_refuses_is_said() -> None:
    done = run(Launch(tmpfs={"/no/such/directory": "size=1k"}))
    assert done.returncode == 1
    assert "mount(b'mps', b'/no/such/directory', b'tmpfs'" in done.stderr
    assert "Traceback" not in done.stderr


OTHER_MOUNTS = """
import ctypes, sys
libc = ctypes.CDLL(None)
if libc.unshare(0x20000 | 0x4000000 | 0x8000000) or libc.mount(None, b"/", None, 16384 | (1 << 18), None):
    sys.exit(1)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def host() -> Iterator[str]:
    """A process with mounts, host name and shared memory of its own, which stands for the first of a host."""
    command = [sys.executable, "-IS", "-c", OTHER_MOUNTS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        if not process.stdout.readline():
            pytest.skip("needs the right to mount")
        yield f"/proc/{process.pid}"
        process.communicate(timeout=10)


STEP = StartMps(id="u1-abcde", devices=("GPU-1",), exclusive=("GPU-1",))


async def run_daemon(bench: Any, kit: Any, where: LaunchContext) -> StartMpsApplier:
    bench.install_all(shm=True)
    root = replace(bench.find_root(), host_path=str(bench.root_path))
    daemons = MpsDaemons(bench.settings, bench.tree, lambda: root, where=where)
    applier = StartMpsApplier(bench.session, bench.settings, daemons, reread=None)  # type: ignore[arg-type]
    await applier.apply(STEP, None, bench.note(kit.entry("u1", STEP)))
    return applier


def size_of(path: str) -> int:
    return os.statvfs(path).f_blocks * os.statvfs(path).f_frsize


@pytest.mark.parametrize("on_host", [False, True], ids=["direct", "on the host"])
async def test_the_daemon_has_the_memory_of_its_clients_as_its_own(
    bench: Any, kit: Any, host: str, on_host: bool
) -> None:
    where = find_context(MpsLauncher.HOST, host) if on_host else DIRECT
    applier = await run_daemon(bench, kit, where)
    place = find_directory(bench.settings, STEP.id)
    seen = f"{host}/root{place.shm}" if on_host else place.shm
    assert find_mounts(place, where) == (place.shm, place.pipe)
    assert os.listdir(seen) == ["cuda.shm.test"]
    assert size_of(seen) == 4096 * 1024
    assert "cuda.shm.test" not in os.listdir("/dev/shm")
    record = place.read_record()
    assert record is not None
    assert os.getsid(record.pid) != os.getsid(0)
    same_host = os.readlink(f"/proc/{record.pid}/ns/uts") == os.readlink(f"{host}/ns/uts")
    assert same_host is on_host
    await applier.undo(STEP, None, kit.entry("u1", STEP))
    assert find_mounts(place, where) == ()
    assert STEP.id not in os.listdir(f"{bench.settings.state}/mps")


async def test_the_memory_goes_although_the_agents_view_of_the_host_has_kept_it(
    bench: Any, kit: Any, host: str, tmp_path: Path
) -> None:
    """What an agent that was started meanwhile has at /host, with the chart's host.mountPropagation None."""
    applier = await run_daemon(bench, kit, DIRECT)
    place, state = find_directory(bench.settings, STEP.id), bench.settings.state
    view = f"{tmp_path}/host{state}"
    os.makedirs(view)
    for command in (["mount", "--rbind", state, view], ["mount", "--make-rprivate", view]):
        await asyncio.to_thread(subprocess.run, command, check=True)
    try:
        await applier.undo(STEP, None, kit.entry("u1", STEP))
        assert find_mounts(place, DIRECT) == ()
        assert STEP.id not in os.listdir(f"{state}/mps")
    finally:
        await asyncio.to_thread(subprocess.run, ["umount", "--lazy", view], check=True)


async def test_the_admin_limits_the_memory_that_clients_exchange(bench: Any, kit: Any, host: str) -> None:
    bench.settings = replace(bench.settings, mps_shared_memory="2Mi")
    applier = await run_daemon(bench, kit, find_context(MpsLauncher.HOST, host))
    assert size_of(f"{host}/root{find_directory(bench.settings, STEP.id).shm}") == 2 << 20
    await applier.undo(STEP, None, kit.entry("u1", STEP))


async def test_a_client_can_fill_nothing_of_the_node_through_the_pipes(bench: Any, kit: Any, host: str) -> None:
    where = find_context(MpsLauncher.HOST, host)
    applier = await run_daemon(bench, kit, where)
    place = find_directory(bench.settings, STEP.id)
    pipe = reach_pipe(place, where)
    assert pipe != place.pipe  # those mounts are not seen here
    assert size_of(pipe) == 1 << 20
    assert os.statvfs(pipe).f_files == 1024
    assert os.stat(pipe).st_mode & 0o777 == 0o755  # clients only have to enter
    with pytest.raises(OSError, match="No space left"):
        await asyncio.to_thread(Path(pipe, "junk").write_bytes, bytes(2 << 20))
    await applier.undo(STEP, None, kit.entry("u1", STEP))


async def test_a_link_that_a_client_makes_among_the_pipes_leads_nowhere(
    bench: Any, kit: Any, host: str, tmp_path: Path
) -> None:
    """A daemon that is started again writes its files there, in the mounts of the host."""
    where = find_context(MpsLauncher.HOST, host)
    applier = await run_daemon(bench, kit, where)
    of_node = tmp_path / "of-the-node"
    link = Path(reach_pipe(find_directory(bench.settings, STEP.id), where), "log")
    os.symlink(of_node, link)
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        await asyncio.to_thread(link.write_text, "x")
    assert not of_node.exists()
    await applier.undo(STEP, None, kit.entry("u1", STEP))


async def test_a_daemon_on_the_host_is_in_no_control_group_of_the_agent(bench: Any, kit: Any, host: str) -> None:
    if not os.access("/sys/fs/cgroup", os.W_OK):
        pytest.skip("needs control groups that can be changed")
    applier = await run_daemon(bench, kit, find_context(MpsLauncher.HOST, host))
    record = find_directory(bench.settings, STEP.id).read_record()
    assert record is not None
    groups = await asyncio.to_thread(Path(f"/proc/{record.pid}/cgroup").read_text)
    assert {line.split(":", 2)[2] for line in groups.splitlines()} == {"/"}
    await applier.undo(STEP, None, kit.entry("u1", STEP))


@pytest.mark.parametrize("kind", ["pid", "cgroup"])
async def test_in_a_container_a_daemon_that_would_end_with_it_is_refused_in_words(
    bench: Any, kit: Any, kind: str
) -> None:
    (bench.path / "proc/self/ns").mkdir(parents=True)
    (bench.path / f"proc/self/ns/{kind}").symlink_to(f"{kind}:[4026532999]")
    with pytest.raises(ClaimError, match=r"PYDRA_NVIDIA_MPS_LAUNCHER=host .*hostPID") as caught:
        await run_daemon(bench, kit, DIRECT)
    assert f"{kind} namespace" in str(caught.value)
    assert bench.hardware.modes == {}
    assert find_directory(bench.settings, STEP.id).read_record() is None


async def test_a_host_whose_processes_are_not_seen_here_is_not_taken_for_the_host(
    bench: Any, kit: Any, host: str
) -> None:
    (bench.path / "proc/1/ns").mkdir(parents=True)
    (bench.path / "proc/1/ns/pid").symlink_to("pid:[4026532999]")
    with pytest.raises(ClaimError, match=r"a pid namespace of its own.*hostPID"):
        await run_daemon(bench, kit, find_context(MpsLauncher.HOST, host))
    assert bench.hardware.modes == {}


def test_control_groups_that_cannot_be_left_end_the_daemon_only_with_an_agent_on_the_host(tmp_path: Path) -> None:
    refuses = "import runpy, sys, builtins as b; real = b.open\n" + (
        "def refuse(path, *rest, **more):\n"
        "    if str(path).endswith('cgroup.procs'): raise PermissionError(13, 'no')\n"
        "    return real(path, *rest, **more)\n"
        "b.open = refuse; runpy.run_path(sys.argv.pop(1), run_name='__main__')"
    )
    plan = Launch(leave_cgroups=True, argv=("/bin/echo", "goes on"), environment={})
    *_, path, words = plan.command()
    done = subprocess.run([sys.executable, "-c", refuses, path, words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "goes on\n")


async def test_a_host_that_cannot_be_entered_is_reported(bench: Any, kit: Any) -> None:
    where = find_context(MpsLauncher.HOST, "/proc/none")
    with pytest.raises(ClaimError, match=r"mount memory for MPS failed.*No such file or directory: '/proc/none/ns/"):
        await run_daemon(bench, kit, where)
