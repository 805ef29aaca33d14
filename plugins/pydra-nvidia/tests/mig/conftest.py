"""A node whose NVML is simulated, seen through the unmodified pynvml."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pydra import Claim
from pydra_nvidia.claim_records import Hold, build_data
from pydra_nvidia.hardware_types import GpuInstance, Mig, Placement, Reading
from pydra_nvidia.mig.apply_partitions import CreateMigApplier, MigModeOffApplier, MigModeOnApplier
from pydra_nvidia.nvml.gpus import read_driver, read_facts
from pydra_nvidia.nvml.mig_state import read_instances, read_mode, read_offer, read_resetless
from pydra_nvidia.nvml.pynvml_library import Nvml
from pydra_nvidia.nvml.session import NvmlSession
from pydra_nvidia.simulation.simulation import open_simulation
from pydra_nvidia.step_appliers import StepAppliers
from pydra_nvidia.steps import CreateMig, MigModeOff, MigModeOn, Step
from step_agent import StepAgent, build_claim


class Node:
    """A simulated machine with what is held on it. `gpus` are groups of a scenario; `faults` can be set at any time."""

    def __init__(self, path: Path, gpus: Sequence[Mapping[str, Any]], *, patience: float = 0.0, **driver: Any) -> None:
        self.scenario = path / "scenario.json"
        self._gpus, self._driver = gpus, driver
        self.fault()
        self.state = path / "machine"
        self.simulation = open_simulation(str(self.scenario), str(self.state))
        self.inject = self.simulation.inject
        self.session = NvmlSession(self.simulation.load)
        self.agent = StepAgent()
        self.agent.backend = StepAppliers(
            {
                MigModeOn: MigModeOnApplier(self.session, self.simulation.tree, patience=patience),
                MigModeOff: MigModeOffApplier(self.session, self.simulation.tree, patience=patience),
                CreateMig: CreateMigApplier(self.session, self.simulation.tree, self.agent.held, patience=patience),
            }
        )
        self.uuids = {board.minor: board.uuid for board in self.simulation.machine.read().boards.values()}

    def fault(self, *faults: Mapping[str, Any]) -> None:
        """From now on these faults, and no others."""
        host = {"onlyGpus": True}
        text = {"host": host, "gpus": self._gpus, "faults": faults, "driver": self._driver}
        self.scenario.write_text(json.dumps(text))

    def read(self) -> Reading:
        """The GPUs, as far as MIG is concerned."""
        return self.session.run_here(_read)

    def mode(self, minor: int = 0) -> bool:
        return self.simulation.machine.read().state.gpus[self.uuids[minor]].mig

    def instances(self, minor: int = 0) -> tuple[GpuInstance, ...]:
        found = self.read().gpu(self.uuids[minor])
        assert found is not None
        assert found.mig is not None
        return found.mig.instances

    def places(self, minor: int = 0) -> list[tuple[int, int]]:
        """Profile and start of the partitions that are whole, in the order of their places."""
        return sorted((one.profile, one.placement.start) for one in self.instances(minor) if len(one.compute) == 1)

    def create(self, profile: str, start: int, minor: int = 0) -> CreateMig:
        """The step that makes this partition; `profile` is the beginning of a name."""
        model = self.simulation.machine.read().boards[self.uuids[minor]].model.mig
        assert model is not None
        kind = next(one for one in model.profiles if one.name.startswith(profile))
        return CreateMig(
            gpu=self.uuids[minor], profile=kind.id, profile_name=kind.name, placement=Placement(start, kind.size)
        )

    def hold(self, minor: int, device: str, place: Placement | None = None, *, admin: bool = False) -> Hold:
        pci = next(gpu.pci for gpu in self.read().gpus if gpu.uuid == self.uuids[minor])
        return Hold(device=device, hardware=pci, place=place, admin=admin)

    async def prepare(self, *steps: Step, uid: str = "one", holds: Sequence[Hold] = ()) -> Claim:
        """As the agent does."""
        return await self.agent.carry_out(build_claim(uid, *steps, data=build_data(holds)))


@pytest.fixture
def node(tmp_path: Path) -> Generator[Callable[..., Node]]:
    """Makes nodes: `node({"model": "h100-80gb"}, ...)`."""
    nodes: list[Node] = []

    def make(*gpus: Mapping[str, Any], **options: Any) -> Node:
        path = tmp_path / f"node-{len(nodes)}"
        path.mkdir()
        nodes.append(Node(path, gpus, **options))
        return nodes[-1]

    yield make
    for one in nodes:
        one.session.close()


def _read(nvml: Nvml) -> Reading:
    gpus = []
    for index in range(nvml.call("nvmlDeviceGetCount")):
        handle = nvml.call("nvmlDeviceGetHandleByIndex", index)
        uuid = nvml.call("nvmlDeviceGetUUID", handle)
        gpu = read_facts(nvml, handle, index=index, uuid=uuid)
        if (mode := read_mode(nvml, handle, subject=uuid)) is not None:
            offer = read_offer(nvml, handle, gpu.memory, subject=uuid)
            mig = Mig(
                enabled=mode[0],
                pending=mode[1],
                resetless=read_resetless(nvml, handle, gpu.architecture, subject=uuid),
                profiles=offer.profiles,
                instances=read_instances(nvml, handle, offer, {}, subject=uuid) if mode[0] else (),
            )
            gpu = replace(gpu, mig=mig)
        gpus.append(gpu)
    return Reading(driver=read_driver(nvml), gpus=tuple(gpus))
