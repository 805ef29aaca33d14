"""Virtual functions of simulated cards: made and removed when their number is written, as the kernel does it."""

from __future__ import annotations

import shutil
from pathlib import Path

from msgspec.structs import replace

from pydra_net.network_types import Link, VirtualFunctionState
from pydra_net.simulation.kernel import HOST, SimulatedKernel
from pydra_pci import Roots, Tree

_NEW = VirtualFunctionState(
    mac="00:00:00:00:00:00", vlan=0, qos=0, min_rate=0, max_rate=0, spoof_check=True, trust=False, link_state=0
)


class SimulatedCards:
    """Those of one machine, whose files are below `root`."""

    def __init__(self, root: Path, kernel: SimulatedKernel) -> None:
        self._root = root
        self._kernel = kernel
        self.tree = Tree(Roots(sys=f"{root}/sys", dev=f"{root}/dev"), self._react)

    def _react(self, path: str, text: str) -> None:
        if path.endswith("/sriov_numvfs"):
            self.set_functions(Path(path).parent.name, int(text))

    def set_functions(self, card: str, count: int) -> None:
        """Let the card at an address have so many; those that there are end, wherever they are."""
        devices = self._root / "sys/bus/pci/devices"
        place = (devices / card).resolve()
        for old in sorted(place.glob("virtfn*")):
            address = old.resolve().name
            self._kernel.end_links(f"pci/{address}")
            (devices / address).unlink()
            shutil.rmtree(old.resolve())
            old.unlink()
        (place / "sriov_numvfs").write_text(f"{count}\n")
        host = self._kernel.namespaces[HOST]
        link = next(one for one in host.links if one.pci_address == card)
        self._kernel.exchange(replace(link, functions=(_NEW,) * count))
        for number in range(count):
            address = f"{card[:-4]}{number // 8 + 2:02x}.{number % 8}"
            function = place.parent / address
            function.mkdir()
            for name in ("vendor", "device", "class", "numa_node"):
                shutil.copy(place / name, function / name)
            (function / "driver").symlink_to((place / "driver").readlink())
            (function / "physfn").symlink_to(f"../{card}")
            (place / f"virtfn{number}").symlink_to(f"../{address}")
            (devices / address).symlink_to((devices / card).readlink().parent / address)
            self._kernel.functions[link.index, number] = f"pci/{address}"
            self._kernel.add_link(_build_link(link, number, address))


def _build_link(card: Link, number: int, address: str) -> Link:
    """The interface of a virtual function."""
    return replace(
        card,
        index=card.index * 100 + number,
        name=f"{card.name}v{number}",
        mac=f"{card.mac[:-5]}{number + 1:02x}:{card.mac[-2:]}",
        permanent_mac=f"{card.mac[:-5]}{number + 1:02x}:{card.mac[-2:]}",
        parent=f"pci/{address}",
        functions=(),
        up=False,
        state="down",
    )
