"""MPS daemons for claims, with real processes: a program that goes into the background and serves commands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from mps_claims import DEFAULT, EXCLUSIVE, STEP, daemon_of, daemons_of, make_applier, place_of
from pydra import ClaimError, LeftBehind
from pydra_nvidia.host.driver_programs import ProgramFailed
from pydra_nvidia.nvml.errors import Code, NvmlError
from pydra_nvidia.sharing.apply_mps import StartMpsApplier
from pydra_nvidia.sharing.mps_daemon import MpsFailed
from pydra_nvidia.sharing.mps_processes import identify, is_alive


async def test_a_daemon_runs_for_the_claims_gpus_and_has_them_to_itself_until_the_claim_ends(
    bench: Any, kit: Any, applier: StartMpsApplier
) -> None:
    entry = bench.note(kit.entry("u1", STEP))
    await applier.apply(STEP, None, entry)
    before = daemon_of(bench)
    assert is_alive(before)
    assert bench.hardware.modes == {"GPU-1": EXCLUSIVE, "GPU-2": EXCLUSIVE}
    await applier.apply(STEP, None, entry)
    await make_applier(bench).apply(STEP, None, entry)  # another process of the backend
    assert daemon_of(bench) == before
    (start,) = bench.starts_of(STEP.id)
    assert start["argv"] == ["-d"]
    assert start["env"]["CUDA_VISIBLE_DEVICES"] == "GPU-1,GPU-2"
    assert start["env"]["CUDA_MPS_PIPE_DIRECTORY"] == f"{bench.settings.state}/mps/u1-abcde/pipe"
    assert bench.log_of(STEP.id) == []
    bench.hardware.modes["GPU-2"] = 2  # prohibited, by an admin, who is left alone
    await applier.undo(STEP, None, kit.entry("u1", STEP))
    assert daemons_of(bench) == ()
    assert place_of(bench).id not in os.listdir(f"{bench.settings.state}/mps")
    assert bench.hardware.modes == {"GPU-1": DEFAULT, "GPU-2": 2}


async def test_limits_are_set_before_the_claim_is_ready_and_for_a_daemon_that_was_not_written_down(
    bench: Any, kit: Any, applier: StartMpsApplier
) -> None:
    step = replace(STEP, thread_percentage=30, pinned_mib={"GPU-2": 512}, default_pinned_mib=1024, multi_user=True)
    entry = bench.note(kit.entry("u1", step))
    limits = [
        "set_default_active_thread_percentage 30",
        "set_default_device_pinned_mem_limit GPU-1 1024M",
        "set_default_device_pinned_mem_limit GPU-2 512M",
    ]
    await applier.apply(step, None, entry)
    assert bench.log_of(step.id) == limits
    before = daemon_of(bench)
    os.unlink(f"{place_of(bench).path}/daemon.json")  # as if killed between the start and the record
    await applier.apply(step, None, entry)
    assert daemon_of(bench) == before
    assert bench.log_of(step.id) == limits * 2
    assert [start["argv"] for start in bench.starts_of(step.id)] == [["-d", "-M"]]


async def test_it_is_ready_only_when_the_daemon_answers(bench: Any, kit: Any, applier: StartMpsApplier) -> None:
    bench.behave(slow=0.5)
    await applier.apply(STEP, None, bench.note(kit.entry("u1", STEP)))
    assert "control" in os.listdir(place_of(bench).pipe)


async def test_a_daemon_is_ended_whatever_was_written_down_of_it(
    bench: Any, kit: Any, applier: StartMpsApplier
) -> None:
    entry = bench.note(kit.entry("u1", STEP))
    await applier.apply(STEP, None, entry)
    os.unlink(f"{place_of(bench).path}/daemon.json")
    os.unlink(f"{place_of(bench).pipe}/nvidia-cuda-mps-control.pid")
    await applier.undo(STEP, None, entry)
    assert daemons_of(bench) == ()
    assert place_of(bench).id not in os.listdir(f"{bench.settings.state}/mps")


async def test_undoing_what_was_not_done_is_fine_and_may_be_repeated(
    bench: Any, kit: Any, applier: StartMpsApplier
) -> None:
    bench.hardware.modes["GPU-1"] = EXCLUSIVE  # as if killed before the daemon was started
    for _ in range(2):
        await applier.undo(STEP, None, kit.entry("u1", STEP))
    assert bench.hardware.modes == {"GPU-1": DEFAULT}


@pytest.mark.parametrize("pid", ["own", "-1", "99999999999999999999"])
async def test_processes_of_others_are_never_ended(bench: Any, kit: Any, applier: StartMpsApplier, pid: str) -> None:
    place = place_of(bench)
    place.make()
    (Path(place.pipe) / "nvidia-cuda-mps-control.pid").write_text(str(os.getpid()) if pid == "own" else pid)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:  # noqa: ASYNC220
        started = identify(stranger.pid)
        assert started is not None
        (Path(place.path) / "daemon.json").write_text(  # a record of a process that had this id before
            f'{{"uid": "u1", "devices": [], "pid": {stranger.pid}, "started": {started.started - 1}}}'
        )
        await applier.undo(STEP, None, kit.entry("u1", STEP))
        assert stranger.poll() is None
        stranger.communicate(b"\n", timeout=10)


@pytest.mark.parametrize("linked", [False, True])
async def test_a_pipe_that_a_client_left_for_the_daemons_number_is_not_opened(
    bench: Any, kit: Any, applier: StartMpsApplier, linked: bool
) -> None:
    place = place_of(bench)
    place.make()
    number = Path(place.pipe) / "nvidia-cuda-mps-control.pid"
    pipe = bench.path / "pipe" if linked else number
    os.mkfifo(pipe)
    if linked:
        number.symlink_to(pipe)
    with subprocess.Popen(["sh", "-c", 'echo 1 >"$0"', str(pipe)]) as waits:  # noqa: ASYNC220
        try:
            await applier.undo(STEP, None, kit.entry("u1", STEP))
            assert waits.poll() is None, "the pipe was opened to be read"
        finally:
            waits.kill()


async def test_a_daemon_that_does_not_start_is_reported_with_its_log_and_everything_is_undone(
    bench: Any, kit: Any, applier: StartMpsApplier
) -> None:
    bench.settings = replace(bench.settings, mps_ready_deadline=4.0)
    bench.behave(start="dies")
    said = r"the MPS control daemon for GPU-1, GPU-2 does not run after \d s; its log ends with"
    with pytest.raises(MpsFailed, match=said) as caught:
        await make_applier(bench).apply(STEP, None, bench.note(kit.entry("u1", STEP)))
    assert "Failed to initialise CUDA: no device" in str(caught.value)
    assert bench.hardware.modes == {"GPU-1": DEFAULT, "GPU-2": DEFAULT}
    assert place_of(bench).id not in os.listdir(f"{bench.settings.state}/mps")


async def test_a_daemon_that_refuses_to_start_is_reported_with_what_it_says(
    bench: Any, kit: Any, applier: StartMpsApplier
) -> None:
    bench.behave(start="refuses")
    with pytest.raises(ProgramFailed, match=r"-d failed with status 1: .*daemon is already running"):
        await applier.apply(STEP, None, bench.note(kit.entry("u1", STEP)))
    assert bench.hardware.modes == {"GPU-1": DEFAULT, "GPU-2": DEFAULT}


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        (
            {"refuses": "set_default_device_pinned_mem_limit"},
            r"\(set_default_device_pinned_mem_limit GPU-1 7M\) failed with status 1: \"Invalid argument\"",
        ),
        ({"percentage": "100.0"}, "did not take defaultActiveThreadPercentage 30, it has '100.0'"),
    ],
    ids=["a limit refused", "a percentage ignored"],
)
async def test_a_daemon_without_its_limits_is_not_given_to_the_claim(
    bench: Any, kit: Any, applier: StartMpsApplier, behaviour: dict[str, str], words: str
) -> None:
    bench.behave(**behaviour)
    step = replace(STEP, thread_percentage=30, default_pinned_mib=7)
    with pytest.raises(ClaimError, match=words):
        await applier.apply(step, None, bench.note(kit.entry("u1", step)))
    assert daemons_of(bench) == ()
    assert bench.hardware.modes == {"GPU-1": DEFAULT, "GPU-2": DEFAULT}


async def test_a_gpu_that_refuses_the_compute_mode_leaves_the_others_as_they_were(
    bench: Any, kit: Any, applier: StartMpsApplier
) -> None:
    bench.hardware.errors["nvmlDeviceSetComputeMode", "GPU-2"] = Code.NO_PERMISSION
    with pytest.raises(NvmlError, match=r"NVML_ERROR_NO_PERMISSION \(4\): the backend needs root"):
        await applier.apply(STEP, None, bench.note(kit.entry("u1", STEP)))
    assert bench.hardware.modes == {"GPU-1": DEFAULT}
    assert daemons_of(bench) == ()


async def test_a_compute_mode_that_cannot_be_taken_back_is_reported_as_left_behind(
    bench: Any, kit: Any, applier: StartMpsApplier
) -> None:
    bench.behave(start="refuses")
    bench.hardware.errors["nvmlDeviceGetComputeMode", "GPU-2"] = Code.UNKNOWN
    with pytest.raises(LeftBehind, match=r"already running.*stopping the MPS daemon failed.*NVML_ERROR_UNKNOWN"):
        await applier.apply(STEP, None, bench.note(kit.entry("u1", STEP)))
