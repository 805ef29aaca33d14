"""The simulated machine keeps the state that real hardware keeps when a process is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pydra_nvidia.simulation.inject import InjectionError, InUse
from pydra_nvidia.simulation.machine_state import View
from pydra_nvidia.simulation.machine_store import Machine
from pydra_nvidia.simulation.scenario_file import ScenarioFile

Simulate = Callable[..., Any]
Create = Callable[..., Any]
H100 = {"gpus": [{"model": "h100-80gb", "minors": [5], "mig": True}]}


def test_what_a_killed_process_made_is_there(simulate: Simulate) -> None:
    rig = simulate(H100)
    done = rig.elsewhere(
        "import os, signal\n"
        "place = nvml.c_nvmlGpuInstancePlacement_t(0, 2)\n"
        "nvml.nvmlDeviceCreateGpuInstanceWithPlacement(h, 14, ctypes.byref(place))\n"
        "nvml.nvmlDeviceSetPersistenceMode(h, 0)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert done.returncode == -signal.SIGKILL
    nvml, gpu = rig.opened()
    assert nvml.nvmlGpuInstanceGetInfo(nvml.nvmlDeviceGetGpuInstanceById(gpu, 1)).profileId == 14
    assert nvml.nvmlDeviceGetPersistenceMode(gpu) == 0


def test_processes_that_race_for_places_get_each_once(simulate: Simulate) -> None:
    rig = simulate(H100)
    code = (
        "import ctypes, sys\n"
        "from pydra_nvidia.simulation.simulation import open_simulation\n"
        "nvml = open_simulation(sys.argv[1], sys.argv[2]).load()\n"
        "nvml.nvmlInit()\n"
        "h = nvml.nvmlDeviceGetHandleByIndex(0)\n"
        "got = 0\n"
        "for start in range(7):\n"
        "    place = ctypes.byref(nvml.c_nvmlGpuInstancePlacement_t(start, 1))\n"
        "    try: nvml.nvmlDeviceCreateGpuInstanceWithPlacement(h, 19, place); got += 1\n"
        "    except nvml.NVMLError as error: assert error.value == 23, error\n"
        "print(got)\n"
    )
    racers = [
        subprocess.Popen([sys.executable, "-c", code, rig.location, str(rig.state)], stdout=subprocess.PIPE)
        for _ in range(3)
    ]
    assert sum(int(racer.communicate(timeout=50)[0]) for racer in racers) == 7
    (gpu,) = rig.machine.read().state.gpus.values()
    assert sorted(one.start for one in gpu.instances) == [0, 1, 2, 3, 4, 5, 6]
    assert sorted(one.id for one in gpu.instances) == [1, 2, 3, 4, 5, 6, 7]


def test_a_process_that_died_has_nvml_open_no_longer(simulate: Simulate) -> None:
    rig = simulate(H100)
    assert rig.elsewhere("import os; os._exit(0)").returncode == 0
    assert rig.machine.clients() == {}
    nvml = rig.init()
    assert rig.machine.clients() == {os.getpid(): 1}
    nvml.nvmlShutdown()
    assert rig.machine.clients() == {}


def test_another_process_with_the_same_pid_is_not_taken_for_the_dead_one(simulate: Simulate) -> None:
    rig = simulate(H100)
    client = Path(rig.machine.join())
    client.write_text("1")
    assert rig.machine.clients() == {}
    assert not client.exists()


def test_a_change_that_fails_changes_nothing(simulate: Simulate) -> None:
    rig = simulate(H100)
    before = rig.machine.read().state.gpus
    with pytest.raises(InjectionError, match=r"no GPU has the minor number 4; there are 5"):
        rig.inject.xid(4, 79)
    with pytest.raises(InjectionError, match="there is no warp; there are"):
        rig.inject.measure(5, warp=9)
    with pytest.raises(InjectionError, match=r"GPU 5 has no 9g\.99gb at 0 now"):
        rig.inject.create_mig(5, "9g.99gb", 0)
    assert rig.machine.read().state.gpus == before


def test_threads_see_every_change_that_was_over_when_they_looked(tmp_path: Path) -> None:
    writer, shared = (Machine(ScenarioFile("t4"), str(tmp_path)) for _ in range(2))
    done = [0]
    stale: list[tuple[int, int]] = []

    def look() -> None:
        while done[0] < 150:
            before = done[0]
            if (seen := shared.read().state.made) < before:
                stale.append((before, seen))

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(1, 151):
        with writer.change() as view:
            view.state.made = number
        done[0] = number
    for thread in threads:
        thread.join()
    assert stale == []


def test_followers_are_called_after_each_change_and_see_it(tmp_path: Path) -> None:
    machine = Machine(ScenarioFile("t4"), str(tmp_path))
    seen: list[int] = []

    def follow(view: View) -> None:
        seen.append(view.state.made)

    machine.followers.append(follow)
    for _ in range(3):
        with machine.change() as view:
            machine.new_number(view.state)
    assert seen == [1, 2, 3]


def test_a_machine_starts_again_without_what_was_volatile(simulate: Simulate, create: Create) -> None:
    rig = simulate({"gpus": [{"model": "a100-40gb", "minors": [5], "mig": True}]})
    nvml, gpu = rig.opened()
    create(nvml, gpu, 19, 0, 1)
    run = rig.state / "run"
    run.mkdir(exist_ok=True)
    (run / "journal").write_text("of a claim")
    rig.inject.start_process(5, pid=1)
    rig.inject.count(5, ecc_uncorrected=2, ecc_uncorrected_volatile=2, remapped_uncorrected=1, remap_pending=True)
    rig.inject.recovery_action(5, 1)
    rig.inject.lose(5)
    with rig.machine.change() as view:
        state = next(iter(view.state.gpus.values()))
        state.driver, state.override, state.time_slice = "vfio-pci", "vfio-pci", 3
    rig.inject.reboot()
    view = rig.machine.read()
    state = next(iter(view.state.gpus.values()))
    assert (state.driver, state.override, state.time_slice, state.lost) == ("nvidia", "", 0, False)
    assert (state.instances, state.processes, state.recovery, view.state.events) == ([], [], 0, [])
    counters = state.counters
    assert (counters.ecc_uncorrected, counters.ecc_uncorrected_volatile) == (2, 0)
    assert (counters.remapped_uncorrected, counters.remap_pending) == (1, False)
    assert not run.exists()
    assert rig.machine.clients() == {}


def test_the_settings_lead_into_the_state_directory_and_the_scenario_adds_its_own(simulate: Simulate) -> None:
    rig = simulate(H100 | {"settings": {"dynamic_mig": True, "vfio": True}})
    settings = rig.simulation.settings
    assert settings["dynamic_mig"] is True
    for name in ("state", "host_root", "sys_root", "proc_root"):
        assert settings[name].startswith(str(rig.state))
    assert rig.simulation.tree.roots.sys == settings["sys_root"]


TAKEN = [
    pytest.param(lambda inject, **how: inject.unload_driver(**how), id="rmmod"),
    pytest.param(lambda inject, **how: inject.load_driver("590.1", **how), id="another-driver"),
    pytest.param(lambda inject, **how: inject.reset(0, **how), id="reset"),
    pytest.param(lambda inject, **how: inject.set_mig_mode(0, True, **how), id="mig-mode"),
]
ONE = {"gpus": [{"model": "h100-80gb"}]}


@pytest.mark.parametrize("take", TAKEN)
def test_the_driver_takes_nothing_from_who_has_nvml_open(simulate: Simulate, take: Callable[..., None]) -> None:
    rig = simulate(ONE)
    rig.inject.recovery_action(0, 1)  # which a reset takes away
    nvml = rig.init()
    before = rig.machine.read().state
    with pytest.raises(InUse, match=f"in use, by the processes {os.getpid()}"):
        take(rig.inject)
    assert rig.machine.read().state == before
    nvml.nvmlShutdown()
    take(rig.inject)
    assert rig.machine.read().state != before
