"""Passthrough from the reading to what is held, on whole simulated machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from pydra import AllocatedDevice, Claim
from pydra_nvidia.claim_plan import plan_claim
from pydra_nvidia.claim_records import read_entries
from pydra_nvidia.claim_targets import find_targets
from pydra_nvidia.hardware_reader import HardwareReader
from pydra_nvidia.nvml.session import NvmlSession
from pydra_nvidia.settings import Settings
from pydra_nvidia.simulation.machine_store import Machine
from pydra_nvidia.simulation.scenario_file import ScenarioFile
from pydra_nvidia.simulation.simulation import Simulation
from pydra_nvidia.simulation.tree.sync import build_tree
from pydra_nvidia.step_appliers import StepAppliers
from pydra_nvidia.steps import BindVfio
from pydra_nvidia.vfio.apply_passthrough import BindVfioApplier
from step_agent import StepAgent, build_claim

CLAIM = Claim(
    uid="c1",
    namespace="default",
    name="guest",
    devices=(AllocatedDevice(request="r", pool="node", device="gpu-vfio-0"),),
)
VARIANT = """
host: {vfioVariants: {"pci:v000010DEd*sv*sd*bc03sc02i*": nvgrace_gpu_vfio_pci}}
gpus:
- {model: gb200-186gb, count: 2}
"""


@pytest.mark.parametrize(
    ("scenario", "driver"), [("hgx-h100", "vfio-pci"), ("t4", "vfio-pci"), (VARIANT, "nvgrace_gpu_vfio_pci")]
)
async def test_a_claim_takes_a_gpu_and_gives_it_back(tmp_path: Path, scenario: str, driver: str) -> None:
    if "\n" in scenario:
        (tmp_path / "scenario.yaml").write_text(scenario)
        scenario = str(tmp_path / "scenario.yaml")
    machine = Machine(ScenarioFile(scenario), str(tmp_path / "machine"))
    sync = build_tree(str(tmp_path / "tree"), machine)
    settings = Settings(vfio=True, state=str(tmp_path), **sync.settings())
    session = NvmlSession(Simulation(machine, sync.tree, {}).load)
    hardware = HardwareReader(session, sync.tree, settings=settings)
    agent = StepAgent(StepAppliers({BindVfio: BindVfioApplier(sync.tree, settings, session)}))

    before = await hardware.read()
    targets = find_targets(CLAIM.devices, before)
    _, steps = plan_claim(CLAIM, targets, before, entries=(), settings=settings)
    await agent.carry_out(build_claim("c1", *steps))

    bound = await hardware.read()
    address = before.gpus[0].pci
    assert len(bound.gpus) == len(before.gpus) - 1
    assert bound.functions[address].driver.replace("-", "_") == driver.replace("-", "_")
    held = read_entries(agent.held())
    _, again = plan_claim(CLAIM, find_targets(CLAIM.devices, bound), bound, entries=held, settings=settings)
    assert again == steps

    await agent.undo("c1")
    assert await hardware.read() == before
    session.close()
