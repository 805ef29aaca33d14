"""`simulate` lets things happen to a machine that something else runs on."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pydra_nvidia.cli import main
from pydra_nvidia.cli.simulate import EVENTS
from pydra_nvidia.simulation.inject import Injector
from pydra_nvidia.simulation.simulation import Simulation, open_simulation

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Happen = Callable[..., int]


@pytest.fixture
def machine(tmp_path: Path) -> Simulation:
    return open_simulation("hgx-h100", str(tmp_path / "m"))


@pytest.fixture
def happen(machine: Simulation) -> Happen:
    """An event on the machine, in this process: what the command does, without the start of an interpreter."""
    return lambda *arguments: main(["simulate", *arguments], {"PYDRA_NVIDIA_STATE": machine.machine.path})


def gpu(machine: Simulation, minor: int) -> Any:
    view = machine.machine.read()
    return next(view.state.gpus[uuid] for uuid, board in view.boards.items() if board.minor == minor)


def test_another_process_lets_it_happen(command: Run, process: Run, machine: Simulation) -> None:
    ran = process("simulate", "--state", machine.machine.path, "xid", "gpu-3", "79", "--gi", "2")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "xid: done\n", "")
    (event,) = machine.machine.read().state.events
    assert (event.type, event.data, event.gi, event.ci) == (0x8, 79, 2, None)
    assert command("simulate", "lose", "3", STATE=machine.machine.path).returncode == 0
    assert gpu(machine, 3).lost


def test_where_there_is_no_machine_it_is_said(command: Run, tmp_path: Path) -> None:
    ran = command("simulate", "--state", str(tmp_path / "none"), "reboot")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith(f"pydra-nvidia: there is no simulated machine in {tmp_path / 'none'}")
    assert len(ran.stderr.splitlines()) == 1
    assert not (tmp_path / "none").exists()


def test_what_cannot_happen_is_refused(happen: Happen, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, code, says in (
        (("lose", "99"), 1, "no GPU has the minor number 99; there are 0, 1, 2"),
        (("create-mig", "3", "1g.10gb", "0"), 1, "GPU 3 has no 1g.10gb at 0 now"),
        (("count", "3", "nonsense=1"), 1, "there is no nonsense; there are ecc_corrected"),
        (("count", "3", "remap_pending=7"), 1, "Expected `bool`"),
        (("count", "3", "remap_pending=yes"), 2, "'remap_pending=yes' is not NAME=NUMBER"),
        (("set-mig-mode", "3", "of"), 2, "'of' is neither on nor off"),
        (("lose", "gpu-x"), 2, "'gpu-x' is not a GPU: give its minor number, as 3 or gpu-3"),
        (("dance",), 2, "invalid choice"),
    ):
        try:
            found = happen(*arguments)
        except SystemExit as ended:
            found = int(ended.code or 0)
        assert found == code
        assert says in capsys.readouterr().err


def test_partitions_come_and_go(happen: Happen, machine: Simulation) -> None:
    assert happen("set-mig-mode", "3", "on") == 0
    assert happen("create-mig", "3", "3g.40gb", "4") == 0
    assert [one.start for one in gpu(machine, 3).instances] == [4]
    assert happen("destroy-mig", "3", "4") == 0
    assert gpu(machine, 3).instances == []
    assert happen("set-mig-mode", "3", "off") == 0
    assert not gpu(machine, 3).mig


def test_processes_come_and_go(happen: Happen, machine: Simulation) -> None:
    assert happen("start-process", "1", "4711", "--name", "train", "--memory", "1000", "--kind", "mps") == 0
    (process,) = gpu(machine, 1).processes
    assert (process.pid, process.name, process.memory, process.kind) == (4711, "train", 1000, "mps")
    assert happen("end-process", "1", "4711") == 0
    assert gpu(machine, 1).processes == []


def test_gpus_fall_ill_and_are_reset(happen: Happen, machine: Simulation) -> None:
    assert happen("recovery-action", "1", "2") == 0
    assert happen("count", "1", "ecc_uncorrected=4", "remap_pending=1") == 0
    assert happen("measure", "1", "temperature=91") == 0
    assert happen("links-down", "1", "0", "17") == 0
    sick = gpu(machine, 1)
    assert (sick.recovery, sick.counters.ecc_uncorrected, sick.counters.remap_pending) == (2, 4, True)
    assert (sick.gauges.temperature, sick.links_down) == (91, [0, 17])
    assert happen("lose", "1") == happen("reset", "1") == 0
    assert (gpu(machine, 1).lost, gpu(machine, 1).recovery) == (False, 0)
    assert happen("links-down", "1") == 0
    assert gpu(machine, 1).links_down == []


def test_gpus_and_drivers_come_and_go(happen: Happen, machine: Simulation) -> None:
    assert happen("unplug", "1") == 0
    assert not gpu(machine, 1).plugged
    assert happen("plug", "1") == 0
    assert gpu(machine, 1).plugged
    assert happen("unload-driver") == 0
    assert machine.machine.read().state.driver == "unloaded"
    assert happen("load-driver", "590.1.2") == 0
    assert machine.machine.read().driver_version() == "590.1.2"
    assert happen("load-driver") == 0
    assert machine.machine.read().driver_version() == "590.1.2"
    assert happen("reboot") == 0
    assert machine.machine.read().state.boot == 2


def test_the_command_has_every_event_that_tests_have() -> None:
    internal = {"event"}  # by NVML's number
    can = {name.replace("_", "-") for name in vars(Injector) if not name.startswith("_")} - internal
    assert can == set(EVENTS)


def test_the_machine_is_found_where_it_was_moved_to_another_scenario(tmp_path: Path) -> None:
    """The directory knows the scenario that was opened last."""
    state = str(tmp_path / "m")
    open_simulation("t4", state)
    open_simulation("a30", state)
    assert main(["simulate", "--state", state, "set-mig-mode", "1", "on"], {}) == 0
