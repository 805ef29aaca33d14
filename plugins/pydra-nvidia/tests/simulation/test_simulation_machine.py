"""The simulated machine keeps the state that real hardware keeps when a process is killed."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from pydra_nvidia.simulation.inject import InjectionError, InUse

Simulate = Callable[..., Any]
Create = Callable[..., Any]
H100 = {"gpus": [{"model": "h100-80gb", "minors": [5], "mig": True}]}


def test_a_process_that_died_has_nvml_open_no_longer(simulate: Simulate) -> None:
    rig = simulate(H100)
    assert rig.elsewhere("import os; os._exit(0)").returncode == 0
    assert rig.machine.clients() == {}
    nvml = rig.init()
    assert rig.machine.clients() == {os.getpid(): 1}
    nvml.nvmlShutdown()
    assert rig.machine.clients() == {}


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
