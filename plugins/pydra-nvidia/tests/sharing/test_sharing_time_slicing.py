"""Time slices, set by a real program that stands for nvidia-smi."""

from __future__ import annotations

from typing import Any

import pytest

from pydra import ClaimError, LeftBehind, TerminalError, UndoLater
from pydra_nvidia.host.driver_programs import ProgramFailed, ProgramMissing
from pydra_nvidia.nvml.errors import Code, NvmlError
from pydra_nvidia.sharing.apply_time_slice import SetTimeSliceApplier
from pydra_nvidia.step_appliers import StepAppliers
from pydra_nvidia.steps import SetTimeSlice
from pydra_nvidia.waiting import time_for

STEP = SetTimeSlice(gpu="GPU-1", interval=3)
DEFAULT, PROHIBITED, EXCLUSIVE = 0, 2, 3


def interval(number: int, gpus: str = "GPU-1") -> list[str]:
    return ["compute-policy", "-i", gpus, "--set-timeslice", str(number)]


@pytest.fixture
def applier(bench: Any) -> SetTimeSliceApplier:
    bench.install_all()
    return SetTimeSliceApplier(bench.session, bench.find_root)


async def test_the_compute_mode_is_set_before_the_time_slice(
    bench: Any, kit: Any, applier: SetTimeSliceApplier
) -> None:
    bench.hardware.modes["GPU-1"] = EXCLUSIVE
    bench.behave(smi={"--set-timeslice": "Failed"})
    with pytest.raises(ProgramFailed):
        await applier.apply(STEP, None, kit.entry("u1", STEP))
    assert bench.hardware.modes["GPU-1"] == DEFAULT
    assert bench.smi_calls() == [interval(3)]


async def test_undoing_sets_the_default(bench: Any, kit: Any, applier: SetTimeSliceApplier) -> None:
    await applier.undo(STEP, None, bench.note(kit.entry("u1", STEP)))
    assert bench.smi_calls() == [interval(0)]


@pytest.mark.parametrize("code", [Code.NOT_FOUND, Code.DRIVER_NOT_LOADED])
async def test_a_gpu_that_is_gone_has_nothing_to_undo(
    bench: Any, kit: Any, applier: SetTimeSliceApplier, code: Code
) -> None:
    bench.hardware.errors["nvmlDeviceGetHandleByUUID", "GPU-1"] = code
    await applier.undo(STEP, None, bench.note(kit.entry("u1", STEP)))
    assert bench.smi_calls() == []


@pytest.mark.parametrize("code", [Code.UNKNOWN, Code.GPU_IS_LOST])
async def test_a_gpu_that_cannot_be_asked_is_not_taken_for_gone(
    bench: Any, kit: Any, applier: SetTimeSliceApplier, code: Code
) -> None:
    bench.hardware.errors["nvmlDeviceGetHandleByUUID", "GPU-1"] = code
    with pytest.raises(NvmlError):
        await applier.undo(STEP, None, bench.note(kit.entry("u1", STEP)))


async def test_the_program_gets_the_drivers_libraries_and_nothing_of_this_process(
    bench: Any, kit: Any, applier: SetTimeSliceApplier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("PYDRA_NVIDIA_STATE", "/elsewhere")
    monkeypatch.setenv("LD_PRELOAD", "")
    await applier.apply(STEP, None, kit.entry("u1", STEP))
    environment = bench.smi_runs()[0]["env"]
    assert environment["LD_PRELOAD"] == f"{bench.root_path}/usr/lib64/libnvidia-ml.so.1"
    assert environment["LD_LIBRARY_PATH"] == f"{bench.root_path}/usr/lib64"
    assert environment["PATH"].split(":")[0] == f"{bench.root_path}/usr/bin"
    assert not {"CUDA_VISIBLE_DEVICES", "PYDRA_NVIDIA_STATE"} & environment.keys()


async def test_libraries_beside_a_c_library_are_not_put_before_this_systems(
    bench: Any, kit: Any, applier: SetTimeSliceApplier
) -> None:
    (bench.root_path / "usr/lib64/libc.so.6").touch()
    await applier.apply(STEP, None, kit.entry("u1", STEP))
    assert "LD_LIBRARY_PATH" not in bench.smi_runs()[0]["env"]


async def test_the_output_of_the_program_is_in_the_error(bench: Any, kit: Any, applier: SetTimeSliceApplier) -> None:
    calls = [interval(3)]
    bench.behave(smi={"--set-timeslice 3": "Failed: Insufficient Permissions"})
    with pytest.raises(ProgramFailed) as caught:
        await applier.apply(STEP, None, bench.note(kit.entry("u1", STEP)))
    assert str(caught.value).startswith(f"nvidia-smi {' '.join(calls[-1])} failed with status 3: ")
    assert str(caught.value).endswith('Failed: Insufficient Permissions"; the backend needs root for this')
    assert bench.smi_calls() == calls, "a refusal changed nothing"


async def test_a_gpu_without_time_slices_is_refused_for_good(
    bench: Any, kit: Any, applier: SetTimeSliceApplier
) -> None:
    bench.behave(smi={"--set-timeslice": "Failed to set timeslice policy for GPU 0000:10:00.0 : Not Supported"})
    with pytest.raises(TerminalError, match="cannot be time-sliced as the claim asks"):
        await applier.apply(STEP, None, bench.note(kit.entry("u1", STEP)))


async def test_a_program_that_hangs_is_killed_and_may_have_set_the_slice(
    bench: Any, kit: Any, applier: SetTimeSliceApplier
) -> None:
    applier = SetTimeSliceApplier(bench.session, bench.find_root, deadline=0.5)
    bench.behave(smi={"--set-timeslice 3": "hangs"})
    with pytest.raises(LeftBehind, match=r"--set-timeslice 3 did not end within 0.5 s"):
        await applier.apply(STEP, None, bench.note(kit.entry("u1", STEP)))
    assert bench.smi_calls() == [interval(3)]


async def test_a_driver_without_the_program_is_reported(bench: Any, kit: Any) -> None:
    applier = SetTimeSliceApplier(bench.session, bench.find_root)
    with pytest.raises(
        ProgramMissing, match="has no program nvidia-smi, looked for in /usr/local/sbin, /usr/local/bin, /usr/sbin, "
    ):
        await applier.apply(STEP, None, kit.entry("u1", STEP))


async def test_a_program_that_is_gone_keeps_no_claim(bench: Any, kit: Any, applier: SetTimeSliceApplier) -> None:
    entry = bench.note(kit.entry("u1", STEP))
    (bench.root_path / "usr/bin/nvidia-smi").unlink()
    with pytest.raises(UndoLater, match="no program nvidia-smi"):
        await StepAppliers({SetTimeSlice: applier}).undo(STEP, None, entry)


async def test_a_program_that_cannot_be_run_is_reported(bench: Any, kit: Any, applier: SetTimeSliceApplier) -> None:
    (bench.root_path / "usr/bin/nvidia-smi").write_text("#!/no/such/interpreter\n")
    with pytest.raises(ClaimError, match=r"nvidia-smi .* cannot be started \(No such file or directory\)"):
        await applier.apply(STEP, None, bench.note(kit.entry("u1", STEP)))


async def test_the_compute_mode_is_what_it_was(bench: Any, kit: Any, applier: SetTimeSliceApplier) -> None:
    step = SetTimeSlice(gpu="GPU-1", interval=3, mode=PROHIBITED)
    await applier.undo(step, None, bench.note(kit.entry("u1", step)))
    assert bench.hardware.modes["GPU-1"] == PROHIBITED
    assert bench.smi_calls() == [interval(0)]


async def test_a_gpu_that_cannot_be_time_sliced_keeps_its_compute_mode(
    bench: Any, kit: Any, applier: SetTimeSliceApplier
) -> None:
    bench.behave(smi={"--set-timeslice": "Not Supported"})
    bench.hardware.modes["GPU-1"] = EXCLUSIVE
    step = SetTimeSlice(gpu="GPU-1", interval=3, mode=EXCLUSIVE)
    with pytest.raises(TerminalError):
        await applier.apply(step, None, kit.entry("u1", step))
    assert bench.hardware.modes["GPU-1"] == EXCLUSIVE


async def test_a_gpu_that_another_claim_shares_keeps_its_compute_mode_whatever_the_program_says(
    bench: Any, kit: Any, applier: SetTimeSliceApplier
) -> None:
    bench.behave(smi={"--set-timeslice": "Failed"})
    step = SetTimeSlice(gpu="GPU-1", interval=3, mode=EXCLUSIVE)
    with pytest.raises(ProgramFailed):
        await applier.apply(step, True, kit.entry("u2", step))
    assert bench.hardware.modes.get("GPU-1", DEFAULT) == DEFAULT


async def test_a_program_has_no_more_time_than_its_call(bench: Any, kit: Any, applier: SetTimeSliceApplier) -> None:
    bench.behave(smi={"--set-timeslice 3": "hangs"})  # alone it would have 30 s
    with time_for(1), pytest.raises(LeftBehind, match="did not end within 1 s"):
        await applier.apply(STEP, None, bench.note(kit.entry("u1", STEP)))
