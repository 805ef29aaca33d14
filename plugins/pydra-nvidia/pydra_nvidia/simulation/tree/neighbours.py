"""The rest of the PCI bus: what a reader that looks for GPUs has to pass over.

A server has a display of its own and network cards; NVIDIA's NVSwitches have the vendor of GPUs but not the class, the
bridges above GPUs neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pydra_nvidia.simulation.scenario_gpus import Board
from pydra_nvidia.simulation.tree.gpu_files import card_files
from pydra_pci.simulation.files import Files, text
from pydra_pci.simulation.functions import Function, Slot, driver_files, function_files

_ROOT = "pci0000:00"
_MANAGEMENT = "0000:02:00.0"
_OTHERS = (
    ("0000:00:1c.0", (), "0x8086", "0xa194", "0x060400", "pcieport"),
    (_MANAGEMENT, ("0000:00:1c.0",), "0x1a03", "0x2000", "0x030000", "ast"),
    ("0000:06:00.0", (), "0x15b3", "0x1021", "0x020000", "mlx5_core"),
    ("0000:06:00.1", (), "0x15b3", "0x1021", "0x020700", "mlx5_core"),
)
"""Address, bridges, vendor, device, class, driver: of an Intel server with an ASPEED display and ConnectX-7."""

_DRIVERS = ("pcieport", "ast", "mlx5_core")
_NVSWITCH = ("0x10de", "0x22a3", "0x068000", "nvidia-nvswitch")
_SWITCH = 2
_LAST_WITH_SWITCHES_ON_PCI = 9
"""Hopper: later NVSwitches are not functions of the node's own bus."""


def neighbour_files(boards: Iterable[Board], *, driver: bool) -> Files:
    """All of them, in no IOMMU group; `driver`: NVIDIA's is loaded, and has the NVSwitches."""
    boards = tuple(boards)
    taken = {board.address for board in boards}
    files: Files = {}
    for name in _DRIVERS:
        files |= driver_files(name)
    for function in _functions(boards, driver=driver):
        if function.slot.address not in taken:
            taken.add(function.slot.address)
            files |= function_files(function)
    management = Slot(root=_ROOT, address=_MANAGEMENT, bridges=("0000:00:1c.0",))
    switches = {address for board in boards for address in _switches(board)} if driver else ()
    files |= {f"proc/driver/nvidia-nvswitch/devices/{one}": text("") for one in switches}
    return files | card_files(management.path, "card0", 0)


def has_switches(boards: Iterable[Board]) -> bool:
    """Whether the node has NVSwitches, which its fabric manager looks after."""
    return any(_switches(board) for board in boards)


def _functions(boards: tuple[Board, ...], *, driver: bool) -> Iterator[Function]:
    for address, bridges, vendor, device_id, kind, bound in _OTHERS:
        slot = Slot(root=_ROOT, address=address, bridges=bridges, numa=0)
        yield Function(slot=slot, vendor=vendor, device=device_id, pci_class=kind, driver=bound)
    for board in boards:
        for position, address in enumerate(board.bridges):
            slot = Slot(root=board.root, address=address, bridges=board.bridges[:position], numa=board.numa)
            yield Function(slot=slot, vendor="0x1000", device="0xc030", pci_class="0x060400", driver="pcieport")
    vendor, device_id, kind, bound = _NVSWITCH
    for address in sorted({address for board in boards for address in _switches(board)}):
        slot = Slot(root=f"pci{address.rpartition(':')[0]}", address=address, numa=0)
        yield Function(slot=slot, vendor=vendor, device=device_id, pci_class=kind, driver=bound if driver else "")


def _switches(board: Board) -> set[str]:
    if board.model.architecture > _LAST_WITH_SWITCHES_ON_PCI:
        return set()
    return {link.address for link in board.links if link.remote == _SWITCH and link.address}
