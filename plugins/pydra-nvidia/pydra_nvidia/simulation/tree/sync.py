"""Keeps the tree in step with the machine: after each change it makes and removes the files that the change means.

    sync = build_tree(root, machine)
    settings = sync.settings()  # the backend's, so that it reads the tree
    tree = sync.tree            # for this process

What is in the tree is written down beside it, by section, so that a process that finds it ready has little to do, and
what somebody damaged on purpose stays damaged. All is done under the machine's own lock, by one process at a time.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

import msgspec

from pydra_nvidia.host.pci import DRIVER
from pydra_nvidia.simulation.machine_state import View
from pydra_nvidia.simulation.machine_store import Machine, replace_stamped
from pydra_nvidia.simulation.machine_transitions import release_gpu
from pydra_nvidia.simulation.tree.elf_libraries import CONTENTS
from pydra_nvidia.simulation.tree.host_files import BOOT_ID, boot_entry
from pydra_nvidia.simulation.tree.installation import hook_path
from pydra_nvidia.simulation.tree.sections import installation_root, list_sections, wanted_driver
from pydra_pci import Roots, Tree
from pydra_pci.simulation.files import Files, change_files, folder
from pydra_pci.simulation.kernel import Listener, PciKernel

_FUNCTIONS = "sys/bus/pci/devices/"
IDS: Mapping[str, str] = {
    DRIVER: "pci:v000010DEd*sv*sd*bc03sc0[02]i*",
    "nouveau": "pci:v000010DEd*sv*sd*bc03sc*i*",
    "snd_hda_intel": "pci:v*d*sv*sd*bc04sc03i*",
}
"""What drivers take of themselves."""


class TreeSync:
    """The tree of `machine` in the directory `root`. May be used by several threads, as the machine may."""

    def __init__(self, root: str, machine: Machine) -> None:
        self.root = os.path.realpath(root)
        self.machine = machine
        self._notes = os.path.join(self.root, ".notes/made")  # in a folder of its own: the root's time is looked at
        self._keys: dict[str, object] = {}
        self._made: dict[str, Files] = {}
        self._stamp = 0
        self._view: View | None = None
        sys = os.path.join(self.root, "sys")
        dev = os.path.join(self.root, "dev")
        self._kernel = PciKernel(sys, dev, IDS)  # what is written here, the machine knows
        listening = PciKernel(sys, dev, IDS, GpuListener(machine))
        self.tree: Tree = SyncedTree(
            Roots(host=self.root, sys=sys, proc=os.path.join(self.root, "proc")), listening, self
        )

    def settings(self) -> dict[str, str]:
        """The fields of `settings.Settings` by which the backend reads the tree.

        The paths of the driver and its devices are this machine's, since containers get them mounted. They are the
        same inside the tree, where the host's `/` is, by a link.
        """
        hook = hook_path(self.machine.read().scenario.host.cdi_hook)
        settings = {
            "host_root": self.root,
            "sys_root": self.tree.roots.sys,
            "proc_root": self.tree.roots.proc,
            "driver_root": installation_root(self.root, self.machine.read()),
            "dev_root": self.root,
        }
        return settings | ({"cdi_hook": self.root + hook} if hook else {})

    def follow(self, view: View) -> None:
        """The machine has changed, and is this caller's alone: bring the files in line."""
        self._read_notes()
        rebooted = self._was_rebooted(view)
        if rebooted:
            self._keys.clear()
        sections = list(list_sections(*self._arguments(view)))
        changed = [one for one in sections if self._keys.get(one[0], self) != one[1]]
        gone = self._made.keys() - {name for name, _, _ in sections}
        self._free(view, gone)
        if changed or gone:
            for name, key, make in changed:
                self._bring(name, make(), rebooted=rebooted)
                self._keys[name] = key
            for name in gone:
                self._bring(name, {})
                self._keys.pop(name, None)
                del self._made[name]
            self._write_notes()
        self._bind(view)
        self._view = view

    def refresh(self) -> None:
        """Notice what changed without a change of the machine's state: the scenario was edited."""
        view = self.machine.read()
        if view is not self._view and (self._view is None or view.scenario is not self._view.scenario):
            with self.machine.change():
                pass  # which makes `follow` be called

    def _arguments(self, view: View) -> tuple[str, View, str, str]:
        return self.root, view, str(self.machine.scenario.path), os.path.abspath(self.machine.path)

    def _free(self, view: View, gone: Iterable[str]) -> None:
        """Take GPUs from drivers that they must not have, before their files go."""
        wanted = {board.address: wanted_driver(view, uuid) for uuid, board in view.boards.items()}
        left = [
            path.removeprefix(_FUNCTIONS) for name in gone for path in self._made[name] if path.startswith(_FUNCTIONS)
        ]
        for address in (*wanted, *left):
            driver = self._kernel.driver(address)
            if driver and driver != wanted.get(address, ""):
                self._tell(f"drivers/{driver}/unbind", address)

    def _bind(self, view: View) -> None:
        """Give GPUs to the drivers that they must have, once their files are there."""
        for uuid, board in view.boards.items():
            gpu, driver = view.state.gpus[uuid], wanted_driver(view, uuid)
            override = f"devices/{board.address}/driver_override"
            if driver and self._kernel.driver(board.address) != driver:
                self._tell(override, driver)
                self._tell(f"drivers/{driver}/bind", board.address)
                self._tell(override, gpu.override or "\n")
            elif gpu.plugged and self.tree.read(self._path(override)) != (gpu.override or "(null)"):
                self._tell(override, gpu.override or "\n")

    def _tell(self, name: str, text: str) -> None:
        with suppress(OSError):  # a scenario may ask for what no kernel does
            self._kernel.wrote(self._path(name), text)

    def _path(self, name: str) -> str:
        return os.path.join(self.root, "sys/bus/pci", name)

    def _was_rebooted(self, view: View) -> bool:
        """Since the files were made: what was written to them is forgotten then."""
        before = self._made.get("host", {}).get(BOOT_ID)
        return before not in (None, boot_entry(view.scenario.seed, view.state.boot))

    def _bring(self, name: str, files: Files, *, rebooted: bool = False) -> None:
        before = self._made.get(name, {})
        change_files(self.root, dict.fromkeys(before, folder()) if rebooted else before, files, CONTENTS)
        self._made[name] = files

    def _read_notes(self) -> None:
        """Another process may have been at the tree: then what it wrote down counts."""
        try:
            with open(self._notes, "rb") as file:
                if (stamp := os.fstat(file.fileno()).st_mtime_ns) != self._stamp:
                    self._keys.clear()
                    self._stamp, self._made = stamp, msgspec.json.decode(file.read(), type=dict[str, Files])
        except FileNotFoundError:
            self._keys.clear()
            self._made.clear()

    def _write_notes(self) -> None:
        os.makedirs(os.path.dirname(self._notes), exist_ok=True)
        self._stamp = replace_stamped(self._notes, msgspec.json.encode(self._made), self._stamp)


class SyncedTree(Tree):
    """A tree that is looked at when it is used, since a scenario may be edited at any time."""

    def __init__(self, roots: Roots, kernel: PciKernel, sync: TreeSync) -> None:
        super().__init__(roots, wrote=kernel.wrote)
        self._sync = sync

    def sys(self, path: str) -> str:
        """As `Tree.sys`."""
        self._sync.refresh()
        return super().sys(path)


def build_tree(root: str, machine: Machine) -> TreeSync:
    """Make the tree, or find it ready, and keep it as the machine is from now on."""
    sync = TreeSync(root, machine)
    os.makedirs(sync.root, exist_ok=True)
    machine.followers.append(sync.follow)
    with machine.change():
        pass  # which makes `follow` be called
    return sync


class GpuListener(Listener):
    """The GPUs of `machine` by their PCI addresses; other functions are nothing to it."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def users(self, address: str) -> Sequence[int]:
        """The processes that use the GPU, and those that have NVML open: they keep it open once they asked about it."""
        view, uuid = self._machine.read(), self._find(address)
        if uuid not in view.attached():
            return ()
        return (*(process.pid for process in view.state.gpus[uuid].processes), *self._machine.clients())

    def moved(self, address: str, driver: str) -> None:
        """The GPU comes to, or goes from, NVML; what the NVIDIA driver managed is forgotten."""
        if uuid := self._find(address):
            with self._machine.change() as view:
                gpu = view.state.gpus[uuid]
                if gpu.driver == DRIVER and driver != DRIVER:
                    release_gpu(view.boards[uuid], gpu)
                    gpu.persistence = False
                gpu.driver = driver

    def overridden(self, address: str, driver: str) -> None:
        """Remembered, so that the machine's files can be made again."""
        if uuid := self._find(address):
            with self._machine.change() as view:
                view.state.gpus[uuid].override = driver

    def _find(self, address: str) -> str | None:
        boards = self._machine.read().boards
        return next((uuid for uuid, board in boards.items() if board.address == address), None)
