"""A recording cannot change the machine: NVML's library and the kernel's files are behind guards that only read."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest

from pydra_nvidia.nvml.errors import Code
from pydra_nvidia.simulation.library.symbols import SYMBOLS
from pydra_nvidia.simulation.recording.read_only_guard import (
    ALLOWED,
    DETAILED,
    NODE,
    SCALAR,
    SESSION,
    CallLog,
    NotReadOnly,
    ReadOnlyLibrary,
    ReadOnlyTree,
    guard,
    handle_address,
)
from pydra_pci import Roots, Tree

Simulate = Callable[..., Any]
CHANGES = re.compile(r"Set|Create|Destroy|Clear|Register|Reset|Modify|Remove|Discover|Update|Freeze|Validate|Activate")


def test_every_function_that_is_let_through_only_reads() -> None:
    for symbol in ALLOWED - SESSION:
        assert re.fullmatch(r"nvml(System|Device|GpuInstance|ComputeInstance)Get[A-Z]\w+", symbol), symbol
        assert not CHANGES.search(symbol), symbol
    assert len(SESSION) + len(NODE) + len(SCALAR) + len(DETAILED) == len(ALLOWED)


def test_every_function_that_is_let_through_is_one_of_the_sdk() -> None:
    """A misspelt one would never be called, and would hide what the machine tells."""
    source = Path(pynvml.__file__).read_text()
    assert {symbol for symbol in ALLOWED if f'"{symbol}"' not in source} == set()


def test_nothing_that_changes_the_simulated_hardware_is_let_through() -> None:
    dangerous = {name for name, symbol in SYMBOLS.items() if CHANGES.search(name)}
    assert {"nvmlDeviceSetMigMode", "nvmlGpuInstanceDestroy", "nvmlDeviceSetPersistenceMode"} <= dangerous
    assert not dangerous & ALLOWED


@pytest.mark.parametrize(
    "change",
    [
        lambda nvml, gpu: nvml.nvmlDeviceSetMigMode(gpu, 1),
        lambda nvml, gpu: nvml.nvmlDeviceSetPersistenceMode(gpu, 0),
        lambda nvml, gpu: nvml.nvmlDeviceCreateGpuInstance(gpu, 19),
        lambda nvml, gpu: nvml.nvmlDeviceClearEccErrorCounts(gpu, 0),
    ],
    ids=["mode", "persistence", "instance", "counters"],
)
def test_a_call_that_would_change_the_machine_never_reaches_it(
    simulate: Simulate, change: Callable[..., object]
) -> None:
    rig = simulate({"gpus": [{"model": "h100-80gb", "mig": True}]})
    nvml: Any = guard(rig.simulation.load, CallLog())()
    nvml.nvmlInitWithFlags(0)
    try:
        before = (Path(rig.simulation.machine.path) / "machine.json").read_bytes()
        with pytest.raises(NotReadOnly, match="is not among the functions of NVML that a recording may call"):
            change(nvml, nvml.nvmlDeviceGetHandleByIndex(0))
        assert (Path(rig.simulation.machine.path) / "machine.json").read_bytes() == before
    finally:
        nvml.nvmlShutdown()


async def test_recording_leaves_the_machine_and_its_files_as_they_were(simulate: Simulate) -> None:
    rig = simulate("mixed")
    place = Path(rig.simulation.machine.path)

    def snapshot() -> dict[str, object]:
        return {
            str(path): (path.lstat().st_mtime_ns, path.lstat().st_ino)
            for path in place.rglob("*")
            if not path.is_dir() and path.parent.name != "clients"
        }

    before = snapshot()
    await rig.record()
    assert snapshot() == before
    assert list((place / "clients").iterdir()) == [], "the session is closed"


def test_files_are_not_written(tmp_path: Path) -> None:
    tree = ReadOnlyTree(Tree(Roots(sys=str(tmp_path))))
    with pytest.raises(NotReadOnly):
        tree.write(tree.sys("bus/pci/drivers_probe"), "0000:1b:00.0")
    assert list(tmp_path.iterdir()) == []


def test_the_log_has_each_answer_with_its_gpu_and_what_the_library_lacks(simulate: Simulate) -> None:
    scenario = {
        "driver": {"missing": ["nvmlDeviceGetModuleId"]},
        "gpus": [{"model": "t4"}, {"model": "h100-80gb"}],
    }
    log = CallLog()
    nvml: Any = guard(simulate(scenario).simulation.load, log)()
    nvml.nvmlInitWithFlags(0)
    try:
        first, second = (nvml.nvmlDeviceGetHandleByIndex(index) for index in range(2))
        for call in (nvml.nvmlDeviceGetMigMode, nvml.nvmlDeviceGetRemappedRows, nvml.nvmlDeviceGetRemappedRows):
            with pytest.raises(pynvml.NVMLError):
                call(first)
        nvml.nvmlDeviceGetMigMode(second)
        with pytest.raises(pynvml.NVMLError):
            nvml.nvmlDeviceGetModuleId(first)
        assert str(pynvml.NVMLError(Code.GPU_IS_LOST)), "the text of errors passes too"
    finally:
        nvml.nvmlShutdown()
    assert log.codes(handle_address(first)) == {
        "nvmlDeviceGetMigMode": {Code.NOT_SUPPORTED},
        "nvmlDeviceGetRemappedRows": {Code.NOT_SUPPORTED},
    }
    assert log.codes(handle_address(second)) == {"nvmlDeviceGetMigMode": {Code.SUCCESS}}
    assert sum(count for answer, count in log.answers.items() if answer.symbol == "nvmlDeviceGetRemappedRows") == 2
    assert log.missing == {"nvmlDeviceGetModuleId"}


def test_a_library_is_asked_for_no_function_that_is_not_let_through() -> None:
    class Trap:
        def __getattr__(self, name: str) -> object:
            raise AssertionError(f"{name} was looked up")

    with pytest.raises(NotReadOnly):
        _ = ReadOnlyLibrary(Trap(), CallLog()).nvmlDeviceResetGpuLockedClocks
