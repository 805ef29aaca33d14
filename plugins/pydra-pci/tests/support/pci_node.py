"""A node with two functions of one vendor, one of them for passthrough: /sys, /proc and /dev as files.

It lies in a folder, so that another process can go on with it: `PciNode(path)` again.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

from pydra_pci import BindVfio, FunctionState, Roots, Tree, VfioBinder, find_users
from pydra_pci.simulation.files import change_files
from pydra_pci.simulation.functions import Function, Slot, driver_files, function_files
from pydra_pci.simulation.kernel import Listener, PciKernel

GPU = "0000:53:00.0"
OTHER = "0000:64:00.0"
AUDIO = "0000:53:00.1"
IDS = {
    "nvidia": "pci:v000010DEd*sv*sd*bc03sc0[02]i*",
    "nouveau": "pci:v000010DEd*sv*sd*bc03sc*i*",
    "snd_hda_intel": "pci:v*d*sv*sd*bc04sc03i*",
}


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


class PciNode:
    """The machine in `path`; made when it is not there. `iommu` False: without an IOMMU, and `iommufd` alike."""

    GPU, OTHER, AUDIO = GPU, OTHER, AUDIO

    def __init__(
        self,
        path: Path,
        *,
        iommu: bool = True,
        iommufd: bool = True,
        drivers: tuple[str, ...] = (),
        listener: Listener | None = None,
    ) -> None:
        self.path = path
        self.root = path / "node"
        roots = Roots(host=str(self.root / "host"), sys=str(self.root / "sys"), proc=str(self.root / "proc"))
        self.kernel = PciKernel(roots.sys, f"{roots.host}/dev", IDS, listener)
        self.tree = ProbedTree(roots, self.kernel.wrote)
        if self.root.exists():
            return
        for driver in ("nvidia", "snd_hda_intel", *(drivers or ("vfio-pci",))):
            change_files(str(self.root), {}, driver_files(driver))
        for number, address in enumerate((GPU, OTHER)):
            self.plug(address, driver="nvidia", group=17 + number if iommu else None)
        self.put("host/dev/vfio/vfio")
        self.put("proc/sys/kernel/osrelease", "6.8.0\n")
        if iommufd:
            self.put("host/dev/iommu")

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

    def picture(self) -> dict[str, str]:
        """All of /sys and /dev; equal when all is as it was."""
        found: dict[str, str] = {}
        for part in ("sys", "host/dev"):
            for folder, folders, files in os.walk(self.root / part):
                for name in (*folders, *files):
                    path = Path(folder, name)
                    if path.is_symlink():
                        found[str(path.relative_to(self.root))] = os.readlink(path)
                    elif path.is_file() and name not in ("bind", "unbind", "drivers_probe"):
                        found[str(path.relative_to(self.root))] = path.read_text()
        return found

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

    @staticmethod
    def step(*, before: str = "nvidia", target: str = "vfio-pci", address: str = GPU) -> BindVfio:
        return BindVfio(address=address, before=before, target=target)

    async def apply(
        self,
        step: BindVfio,
        *ours: str,
        load: Callable[[str], None] | None = None,
        nodes: tuple[str, ...] = ("/dev/nvidia0",),
    ) -> None:
        binder = self._build_binder(load)

        async def find_others() -> Mapping[int, str]:
            return find_users(self.tree, nodes)

        async def take(_found: FunctionState, driver: str) -> None:
            await binder.bind(
                step, driver, nodes=nodes, find_others=find_others, run_closed=asyncio.to_thread, deadline=0.05
            )

        await binder.apply(step, ours, take)

    async def undo(self, step: BindVfio) -> None:
        await self._build_binder().undo(step, asyncio.to_thread, deadline=0.05)

    def _build_binder(self, load: Callable[[str], None] | None = None) -> VfioBinder:
        async def loader(module: str) -> None:
            if load is not None:
                load(module)

        return VfioBinder(self.tree, variable="THE_DEADLINE", left=lambda seconds: seconds, load=loader)
