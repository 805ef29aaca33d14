"""MPS daemons in trouble: hung, killed, in the way of others, in directories that cannot be used."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from mps_claims import DEFAULT, STEP, daemon_of, daemons_of, make_applier, place_of, until
from pydra import ClaimError, TerminalError
from pydra_nvidia.hardware_types import Placement
from pydra_nvidia.host.driver_programs import OUTPUT_LIMIT, ProgramFailed, ProgramMissing, run_program
from pydra_nvidia.nvml.errors import Code, NvmlError
from pydra_nvidia.sharing.apply_mps import StartMpsApplier
from pydra_nvidia.sharing.mps_daemon import MpsDaemons, MpsFailed
from pydra_nvidia.sharing.mps_directory import MpsBusy, turn
from pydra_nvidia.sharing.mps_processes import MARK, identify, is_alive
from pydra_nvidia.steps import StartMps
from pydra_nvidia.waiting import time_for


async def test_a_gpu_that_falls_off_the_bus_does_not_keep_its_daemon(
    bench: Any, kit: Any, applier: StartMpsApplier
) -> None:
    entry = bench.note(kit.entry("u1", STEP))
    await applier.apply(STEP, None, entry)
    bench.hardware.errors["nvmlDeviceGetHandleByUUID", "GPU-1"] = Code.GPU_IS_LOST
    await applier.undo(STEP, None, entry)
    assert daemons_of(bench) == ()
    assert bench.hardware.modes["GPU-2"] == DEFAULT


async def test_a_gpu_that_is_there_and_refuses_its_compute_mode_is_not_taken_for_gone(
    bench: Any, kit: Any, applier: StartMpsApplier
) -> None:
    entry = bench.note(kit.entry("u1", STEP))
    await applier.apply(STEP, None, entry)
    bench.hardware.errors["nvmlDeviceSetComputeMode", "GPU-1"] = Code.NOT_FOUND
    with pytest.raises(NvmlError, match="nvmlDeviceSetComputeMode for GPU-1 failed with NVML_ERROR_NOT_FOUND"):
        await applier.undo(STEP, None, entry)
    del bench.hardware.errors["nvmlDeviceSetComputeMode", "GPU-1"]
    await applier.undo(STEP, None, entry)
    assert bench.hardware.modes == {"GPU-1": DEFAULT, "GPU-2": DEFAULT}


async def test_a_full_disk_does_not_keep_a_daemon(bench: Any, kit: Any, applier: StartMpsApplier) -> None:
    entry = bench.note(kit.entry("u1", STEP))
    await applier.apply(STEP, None, entry)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        await applier.undo(STEP, None, entry)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert daemons_of(bench) == ()
    assert bench.hardware.modes["GPU-2"] == DEFAULT


async def test_a_driver_that_is_gone_does_not_keep_a_daemon(bench: Any, kit: Any, applier: StartMpsApplier) -> None:
    entry = bench.note(kit.entry("u1", STEP))
    await applier.apply(STEP, None, entry)
    os.unlink(bench.root_path / "usr/bin/nvidia-cuda-mps-control")
    await applier.undo(STEP, None, entry)
    assert daemons_of(bench) == ()
    with pytest.raises(ProgramMissing, match="no program nvidia-cuda-mps-control"):
        await applier.apply(STEP, None, entry)


async def test_a_daemon_that_ignores_quit_is_killed_with_its_servers(bench: Any, kit: Any) -> None:
    bench.install_all(server=True, stubborn=True)
    daemons = MpsDaemons(bench.settings, bench.tree, bench.find_root, quit_deadline=0.2)
    applier = StartMpsApplier(bench.session, bench.settings, daemons, reread=None)  # type: ignore[arg-type]
    entry = bench.note(kit.entry("u1", STEP))
    await applier.apply(STEP, None, entry)
    assert len(daemons_of(bench)) == 2
    await applier.undo(STEP, None, entry)
    assert daemons_of(bench) == ()


async def test_a_daemon_that_forks_whenever_it_is_to_end_leaves_no_process(bench: Any, kit: Any) -> None:
    bench.install_all(server=True, stubborn=True, forks=True)
    daemons = MpsDaemons(bench.settings, bench.tree, bench.find_root, quit_deadline=0.2, grace=0.2)
    applier = StartMpsApplier(bench.session, bench.settings, daemons, reread=None)  # type: ignore[arg-type]
    entry = bench.note(kit.entry("u1", STEP))
    await applier.apply(STEP, None, entry)
    await applier.undo(STEP, None, entry)
    assert daemons_of(bench) == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a namespace of process ids")
async def test_a_process_of_a_pod_with_the_mark_of_a_daemon_is_none_of_its_processes(
    bench: Any, kit: Any, applier: StartMpsApplier, tmp_path: Path
) -> None:
    """With processes that begin as fast as they are killed, any pod could keep the GPUs of a claim that has ended."""
    entry = bench.note(kit.entry("u1", STEP))
    await applier.apply(STEP, None, entry)
    program = tmp_path / "nvidia-cuda-mps-control"
    program.symlink_to("/bin/cat")
    command = ["unshare", "--pid", "--fork", "--kill-child", str(program)]
    environment = {MARK: place_of(bench).path}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as pod:  # noqa: ASYNC220
        assert pod.stdin is not None
        assert pod.stdout is not None
        pod.stdin.write(b"runs")
        pod.stdin.flush()
        assert await asyncio.to_thread(pod.stdout.read, 4) == b"runs"
        await applier.undo(STEP, None, entry)
        pod.stdin.close()
        assert pod.wait() == 0, "it ended by itself"


async def test_a_daemon_that_is_silent_when_its_claim_is_prepared_again_is_left_to_its_pods(
    bench: Any, kit: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bench.install_all()
    daemons = MpsDaemons(bench.settings, bench.tree, bench.find_root, command_deadline=0.1)
    applier = StartMpsApplier(bench.session, bench.settings, daemons, reread=None)  # type: ignore[arg-type]
    entry = bench.note(kit.entry("u1", STEP))
    await make_applier(bench).apply(STEP, None, entry)
    before = daemon_of(bench)
    os.kill(before.pid, signal.SIGSTOP)
    await applier.apply(STEP, None, entry)
    assert "does not answer; it is left to the claim's pods" in caplog.text
    os.kill(before.pid, signal.SIGCONT)
    assert daemons_of(bench) == (daemon_of(bench),) == (before,)


async def test_a_gpu_that_refuses_the_compute_mode_does_not_end_a_daemon_that_runs(
    bench: Any, kit: Any, applier: StartMpsApplier, caplog: pytest.LogCaptureFixture
) -> None:
    entry = bench.note(kit.entry("u1", STEP))
    await applier.apply(STEP, None, entry)
    before = daemon_of(bench)
    bench.hardware.errors["nvmlDeviceSetComputeMode", "GPU-1"] = Code.UNKNOWN
    await applier.apply(STEP, None, entry)
    assert daemon_of(bench) == before
    assert is_alive(before)
    assert "goes on in the compute mode that its GPUs have" in caplog.text


async def test_a_daemon_that_hangs_over_a_limit_is_reported_with_its_log(bench: Any, kit: Any) -> None:
    bench.install_all(hangs="set_default_active_thread_percentage")
    daemons = MpsDaemons(bench.settings, bench.tree, bench.find_root, command_deadline=2.0, grace=0.1)
    applier = StartMpsApplier(bench.session, bench.settings, daemons, reread=None)  # type: ignore[arg-type]
    step = replace(STEP, thread_percentage=50)
    with pytest.raises(MpsFailed, match=r"did not end within 2 s.*its log ends with .*Cmd:set_default_active"):
        await applier.apply(step, None, bench.note(kit.entry("u1", step)))
    assert daemons_of(bench) == ()


async def test_starting_and_ending_a_daemon_have_the_calls_time_together(bench: Any, kit: Any) -> None:
    bench.install_all(slow=600)
    applier = make_applier(bench)  # alone it would wait for 10 s
    with time_for(4), pytest.raises(MpsFailed, match=r"runs, but does not answer after [2-5] s; its log ends with"):
        await applier.apply(STEP, None, bench.note(kit.entry("u1", STEP)))
    assert daemons_of(bench) == ()


async def test_a_killed_daemon_and_its_servers_make_room_for_a_new_one(
    bench: Any, kit: Any, applier: StartMpsApplier
) -> None:
    bench.behave(server=True)
    entry = bench.note(kit.entry("u1", STEP))
    await applier.apply(STEP, None, entry)
    pipe, before = os.stat(place_of(bench).pipe).st_ino, daemons_of(bench)
    os.kill(daemon_of(bench).pid, signal.SIGKILL)
    await until(lambda: identify(daemon_of(bench).pid) is None)
    await applier.apply(STEP, None, entry)
    assert not set(before) & set(daemons_of(bench))
    assert os.stat(place_of(bench).pipe).st_ino == pipe, "containers have this directory"


async def test_a_partition_made_for_the_claim_is_found_by_its_place(bench: Any, kit: Any) -> None:
    bench.install_all()
    reading = kit.reading(kit.gpu(0, uuid="GPU-0", mig=kit.mig((kit.PROFILE, 3, "MIG-new"))))
    step = StartMps(id="u1-part", partition=("GPU-0", Placement(3, 1)), default_pinned_mib=5)
    await make_applier(bench, reading).apply(step, None, bench.note(kit.entry("u1", step)))
    assert bench.starts_of(step.id)[0]["env"]["CUDA_VISIBLE_DEVICES"] == "MIG-new"
    assert bench.log_of(step.id) == ["set_default_device_pinned_mem_limit MIG-new 5M"]
    assert bench.hardware.modes == {}


async def test_a_partition_that_is_not_there_is_reported(bench: Any, kit: Any) -> None:
    step = StartMps(id="u1-part", partition=("GPU-0", Placement(3, 1)))
    applier = make_applier(bench, kit.reading(kit.gpu(0, uuid="GPU-0", mig=kit.mig())))
    with pytest.raises(ClaimError, match="its partition does not exist"):
        await applier.apply(step, None, bench.note(kit.entry("u1", step)))


async def test_calls_for_one_daemon_take_turns(bench: Any, kit: Any, applier: StartMpsApplier) -> None:
    entry = bench.note(kit.entry("u1", STEP))
    await asyncio.gather(*(applier.apply(STEP, None, entry) for _ in range(3)))
    assert len(bench.starts_of(STEP.id)) == 1
    async with turn(bench.settings, STEP.id, 1):
        with pytest.raises(MpsBusy):
            async with turn(bench.settings, STEP.id, 0):
                pass


async def test_daemons_are_in_each_others_way_never(bench: Any) -> None:
    async with AsyncExitStack() as all_of_them:
        for number in range(100):
            await all_of_them.enter_async_context(turn(bench.settings, f"claim-{number}", 0))
        with pytest.raises(MpsBusy):
            async with turn(bench.settings, "claim-7", 0):
                pass
    async with turn(bench.settings, "claim-7", 0):
        pass


async def test_a_cancelled_call_leaves_what_the_next_one_finds_or_undoes(
    bench: Any, kit: Any, applier: StartMpsApplier
) -> None:
    bench.behave(slow=600)
    entry = bench.note(kit.entry("u1", STEP))
    task = asyncio.create_task(applier.apply(STEP, None, entry))
    await until(lambda: daemons_of(bench))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    bench.behave()
    await applier.apply(STEP, None, entry)
    assert daemons_of(bench) == (daemon_of(bench),)
    await applier.undo(STEP, None, entry)
    assert daemons_of(bench) == ()


async def test_a_state_directory_too_deep_for_sockets_is_reported_to_the_admin(
    bench: Any, kit: Any, applier: StartMpsApplier
) -> None:
    step = replace(STEP, id="u" * 90)
    with pytest.raises(TerminalError, match=r"more than 107 bytes; the admin sets PYDRA_NVIDIA_STATE"):
        await applier.apply(step, None, bench.note(kit.entry("u1", step)))
    assert bench.hardware.modes == {"GPU-1": DEFAULT, "GPU-2": DEFAULT}


async def test_a_state_directory_that_cannot_be_written_is_reported(bench: Any, kit: Any) -> None:
    bench.install_all()
    (bench.path / "file").touch()
    bench.settings = replace(bench.settings, state=str(bench.path / "file"))
    with pytest.raises(ClaimError, match=r"cannot be used: .*Not a directory"):
        await make_applier(bench).apply(STEP, None, kit.entry("u1", STEP))


CRASH = """
import asyncio, sys
import msgspec
from types import SimpleNamespace
from pydra_nvidia.host.driver_root import DriverRoot
from pydra_pci import Roots, Tree
from pydra_nvidia.nvml.session import NvmlSession
from pydra_nvidia.settings import Settings
from pydra_nvidia.sharing.apply_mps import StartMpsApplier
from pydra_nvidia.sharing.mps_daemon import MpsDaemons
from pydra import Claim
from pydra_nvidia.steps import StartMps
path = sys.argv[1]
settings = Settings(state=path + "/s", proc_root=path + "/proc")
root = DriverRoot(host_path="/", here=path + "/driver", library_dir="/usr/lib64", nvml_library="/none")
nvml = SimpleNamespace(NVMLError=KeyError, nvmlInitWithFlags=id, nvmlDeviceGetHandleByUUID=id,
                       nvmlDeviceSetComputeMode=lambda handle, mode: None)
daemons = MpsDaemons(settings, Tree(Roots(proc=path + "/proc")), lambda: root)
applier = StartMpsApplier(NvmlSession(lambda: nvml), settings, daemons, None)
claim = msgspec.json.decode(open(path + "/claim.json", "rb").read(), type=Claim)
asyncio.run(applier.apply(msgspec.convert(claim.steps[0].step, StartMps), None, claim))
"""


async def test_a_backend_that_is_killed_while_its_daemon_starts_leaves_nothing_that_is_not_found(
    bench: Any, kit: Any, applier: StartMpsApplier
) -> None:
    bench.behave(slow=600, server=True)
    entry = bench.note(kit.entry("u1", STEP))
    (bench.path / "claim.json").write_bytes(msgspec.json.encode(entry))
    command = (sys.executable, "-c", CRASH, str(bench.path))
    with subprocess.Popen(command) as backend:  # noqa: ASYNC220
        await until(lambda: len(daemons_of(bench)) == 2)
        backend.kill()
    assert len(daemons_of(bench)) == 2, "daemons outlive the backend"
    bench.behave()
    await applier.apply(STEP, None, entry)
    assert daemons_of(bench) == (daemon_of(bench),)
    await applier.undo(STEP, None, entry)
    assert daemons_of(bench) == ()


async def test_nvml_refusals_keep_their_words(bench: Any, kit: Any, applier: StartMpsApplier) -> None:
    bench.hardware.errors["nvmlDeviceGetHandleByUUID", "GPU-1"] = Code.GPU_IS_LOST
    with pytest.raises(NvmlError, match=r"for GPU-1 failed with NVML_ERROR_GPU_IS_LOST \(15\)"):
        await applier.apply(STEP, None, bench.note(kit.entry("u1", STEP)))


async def test_what_a_program_is_told_to_say_without_end_does_not_fill_the_disk() -> None:
    """It asks at a socket that a container can have made."""
    with pytest.raises(ProgramFailed, match=f"yes failed with status -{signal.SIGXFSZ.value}") as caught:
        await run_program("yes", ("yes",), environment={}, deadline=60)
    assert len(caught.value.output) <= OUTPUT_LIMIT
