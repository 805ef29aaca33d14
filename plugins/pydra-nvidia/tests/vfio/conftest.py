"""A node with two GPUs, one of them for passthrough: NVML, /sys, /proc and /dev as one simulated machine has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pynvml
import pytest

from pci_node import GPU, OTHER, PciNode
from pydra import Claim
from pydra_nvidia.nvml.pynvml_library import use_library
from pydra_nvidia.nvml.session import NvmlSession
from pydra_nvidia.settings import Settings
from pydra_nvidia.simulation.inject import Injector
from pydra_nvidia.simulation.library.library import Library
from pydra_nvidia.simulation.machine_state import GpuState
from pydra_nvidia.simulation.machine_store import Machine
from pydra_nvidia.simulation.scenario_file import ScenarioFile
from pydra_nvidia.simulation.tree.sync import GpuListener
from pydra_nvidia.steps import BindVfio
from pydra_nvidia.vfio.apply_passthrough import BindVfioApplier
from step_agent import build_claim

SCENARIO = f"gpus:\n- {{model: h100-80gb, count: 2, addresses: ['{GPU}', '{OTHER}']}}\n"


class Node(PciNode):
    """The machine in `path`, whose functions are GPUs."""

    def __init__(self, path: Path, *, iommu: bool = True, iommufd: bool = True, drivers: tuple[str, ...] = ()) -> None:
        scenario = path / "scenario.yaml"
        scenario.write_text(SCENARIO)
        self.machine = Machine(ScenarioFile(str(scenario)), str(path / "machine"))
        super().__init__(path, iommu=iommu, iommufd=iommufd, drivers=drivers, listener=GpuListener(self.machine))
        self.inject = Injector(self.machine)
        self.session = NvmlSession(self.load)

    def load(self) -> ModuleType:
        use_library(pynvml, Library(self.machine))
        pynvml._nvmlLib_refcount = 0
        return pynvml

    def applier(self, deadline: float = 0.05, load: Callable[[str], None] | None = None) -> BindVfioApplier:
        async def loader(module: str) -> None:
            if load is not None:
                load(module)

        return BindVfioApplier(self.tree, Settings(vfio=True, vfio_idle_deadline=deadline), self.session, loader)

    def gpu(self) -> GpuState:
        view = self.machine.read()
        return next(view.state.gpus[uuid] for uuid, board in view.boards.items() if board.address == GPU)

    def picture(self) -> dict[str, str]:
        """With what the machine remembers of the GPU's drivers."""
        return {**super().picture(), "persistence": str(self.gpu().persistence), "driver": self.gpu().driver}

    @staticmethod
    def step(*, before: str = "nvidia", target: str = "vfio-pci", address: str = GPU) -> BindVfio:
        return BindVfio(address=address, before=before, target=target, persistence=before == "nvidia")

    @staticmethod
    def entry(*steps: BindVfio) -> Claim:
        return build_claim("c1", *steps)


@pytest.fixture
def make_node(tmp_path: Path) -> Callable[..., Node]:
    return lambda **options: Node(tmp_path, **options)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.fixture(autouse=True)
def _library_as_before() -> Iterator[None]:
    before = pynvml.nvmlLib
    yield
    use_library(pynvml, before)
