"""A node with two GPUs, one of them for passthrough: NVML, /sys, /proc and /dev as one simulated machine has them.

It lies in a folder, so that another process can go on with it: `Node(path)` again.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pynvml
import pytest

from pydra_nvidia.host.filesystem import Roots, Tree
from pydra_nvidia.nvml.library import use_library
from pydra_nvidia.nvml.session import NvmlSession
from pydra_nvidia.settings import Settings
from pydra_nvidia.simulation.inject import Injector
from pydra_nvidia.simulation.library.library import Library
from pydra_nvidia.simulation.machine import Machine
from pydra_nvidia.simulation.scenario_file import ScenarioFile
from pydra_nvidia.simulation.state import GpuState
from pydra_nvidia.simulation.tree.files import change_files
from pydra_nvidia.simulation.tree.pci import Function, Slot, driver_files, function_files
from pydra_nvidia.simulation.tree.pci_kernel import PciKernel
from pydra_nvidia.simulation.tree.sync import GpuListener
from pydra_nvidia.steps import BindVfio, Entry
from pydra_nvidia.vfio.apply import BindVfioApplier

GPU = "0000:53:00.0"
OTHER = "0000:64:00.0"
AUDIO = "0000:53:00.1"
SCENARIO = f"gpus:\n- {{model: h100-80gb, count: 2, addresses: ['{GPU}', '{OTHER}']}}\n"


class ProbedTree(Tree):
    """What `before` and `after` do at the write of this number, counted from 1."""

    def __init__(self, roots: Roots, wrote: Callable[[str, str], None]) -> None:
        super().__init__(roots, wrote)
        self.writes: list[tuple[str, str]] = []
        self.before: Callable[[int], None] = lambda _number: None
        self.after: Callable[[int], None] = lambda _number: None

    def write(self, path: str, text: str) -> None:
        self.writes.append((path, text))
        number = len(self.writes)
        self.before(number)
        super().write(path, text)
        self.after(number)


class Node:
    """The machine in `path`; made when it is not there. `iommu` False: without an IOMMU, and `iommufd` alike."""

    GPU, OTHER, AUDIO = GPU, OTHER, AUDIO

    def __init__(self, path: Path, *, iommu: bool = True, iommufd: bool = True, drivers: tuple[str, ...] = ()) -> None:
        self.path = path
        self.root = path / "node"
        scenario = path / "scenario.yaml"
        is_new = not scenario.exists()
        if is_new:
            scenario.write_text(SCENARIO)
        self.machine = Machine(ScenarioFile(str(scenario)), str(path / "machine"))
        self.inject = Injector(self.machine)
        roots = Roots(host=str(self.root / "host"), sys=str(self.root / "sys"), proc=str(self.root / "proc"))
        self.kernel = PciKernel(roots.sys, f"{roots.host}/dev", GpuListener(self.machine))
        self.tree = ProbedTree(roots, self.kernel.wrote)
        self.session = NvmlSession(self.load)
        if is_new:
            for driver in ("nvidia", "snd_hda_intel", *(drivers or ("vfio-pci",))):
                change_files(str(self.root), {}, driver_files(driver))
            for number, address in enumerate((GPU, OTHER)):
                self.plug(address, driver="nvidia", group=17 + number if iommu else None)
            self.put("host/dev/vfio/vfio")
            self.put("proc/sys/kernel/osrelease", "6.8.0\n")
            if iommufd:
                self.put("host/dev/iommu")

    def load(self) -> ModuleType:
        use_library(pynvml, Library(self.machine))
        pynvml._nvmlLib_refcount = 0
        return pynvml

    def applier(self, deadline: float = 0.05, load: Callable[[str], None] | None = None) -> BindVfioApplier:
        async def loader(module: str) -> None:
            if load is not None:
                load(module)

        return BindVfioApplier(self.tree, Settings(vfio=True, vfio_idle_deadline=deadline), self.session, loader)

    def plug(
        self,
        address: str,
        *,
        driver: str = "",
        group: int | None = 17,
        pci_class: str = "0x030200",
        device: str = "0x2330",
    ) -> None:
        slot = Slot(root="pci0000:50", address=address)
        function = Function(slot=slot, vendor="0x10de", device=device, pci_class=pci_class, group=group, driver=driver)
        change_files(str(self.root), {}, function_files(function))

    def put(self, path: str, text: str = "") -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def set(self, address: str, name: str, text: str) -> None:
        self.put(f"sys/bus/pci/devices/{address}/{name}", f"{text}\n")

    def run(self, pid: int, command: str, *nodes: str) -> None:
        """A process that has these device nodes open."""
        self.put(f"proc/{pid}/comm", f"{command}\n")
        folder = self.root / f"proc/{pid}/fd"
        folder.mkdir(parents=True)
        for number, node in enumerate(("/dev/null", *nodes)):
            (folder / str(number)).symlink_to(node)

    def stop(self, pid: int) -> None:
        for link in (self.root / f"proc/{pid}/fd").iterdir():
            link.unlink()

    def driver(self, address: str = GPU) -> str:
        return self.kernel.driver(address)

    def override(self, address: str = GPU) -> str:
        return (self.root / f"sys/bus/pci/devices/{address}/driver_override").read_text().strip()

    def gpu(self) -> GpuState:
        view = self.machine.read()
        return next(view.state.gpus[uuid] for uuid, board in view.boards.items() if board.address == GPU)

    def picture(self) -> dict[str, str]:
        """All of /sys and /dev, and what the machine remembers of the GPU's drivers; equal when all is as it was."""
        found: dict[str, str] = {"persistence": str(self.gpu().persistence), "driver": self.gpu().driver}
        for part in ("sys", "host/dev"):
            for folder, folders, files in os.walk(self.root / part):
                for name in (*folders, *files):
                    path = Path(folder, name)
                    if path.is_symlink():
                        found[str(path.relative_to(self.root))] = os.readlink(path)
                    elif path.is_file() and name not in ("bind", "unbind", "drivers_probe"):
                        found[str(path.relative_to(self.root))] = path.read_text()
        return found

    @staticmethod
    def step(*, before: str = "nvidia", target: str = "vfio-pci", address: str = GPU) -> BindVfio:
        return BindVfio(address=address, before=before, target=target, persistence=before == "nvidia")

    @staticmethod
    def entry(*steps: BindVfio) -> Entry:
        return Entry(uid="c1", namespace="default", name="claim", steps=steps)

    def refuse_writes(self, *numbers: int) -> None:
        """Of those to come, these are refused by the kernel."""

        def refuse(number: int) -> None:
            if number in numbers:
                raise OSError(errno.EIO, "Input/output error")

        self.tree.writes.clear()
        self.tree.before = refuse

    def die_at_write(self, number: int, *, before: bool) -> None:
        """This process is killed at that write."""

        def die(reached: int) -> None:
            if reached == number:
                os.kill(os.getpid(), signal.SIGKILL)

        self.tree.before, self.tree.after = (die, lambda _number: None) if before else (lambda _number: None, die)


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
