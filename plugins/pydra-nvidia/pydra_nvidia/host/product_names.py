"""The names of NVIDIA's products, by the PCI IDs of their devices.

Products of data centres are known by name here, others from the host's pci.ids: some nodes have none, an old one lacks
new GPUs, and a product's name should not depend on the node.
"""

from __future__ import annotations

from pydra_nvidia.host.pci import VENDOR
from pydra_pci import ParsedFile, Tree

PCI_IDS_PATHS = (
    "/usr/share/misc/pci.ids",
    "/usr/local/share/pci.ids",
    "/usr/share/hwdata/pci.ids",
    "/usr/share/pci.ids",
)
PRODUCTS = {
    "15f7": "GP100GL [Tesla P100 PCIe 12GB]",
    "15f8": "GP100GL [Tesla P100 PCIe 16GB]",
    "15f9": "GP100GL [Tesla P100 SXM2 16GB]",
    "1b38": "GP102GL [Tesla P40]",
    "1bb3": "GP104GL [Tesla P4]",
    "1db1": "GV100GL [Tesla V100 SXM2 16GB]",
    "1db4": "GV100GL [Tesla V100 PCIe 16GB]",
    "1db5": "GV100GL [Tesla V100 SXM2 32GB]",
    "1db6": "GV100GL [Tesla V100 PCIe 32GB]",
    "1df6": "GV100GL [Tesla V100S PCIe 32GB]",
    "1eb8": "TU104GL [Tesla T4]",
    "20b0": "GA100 [A100 SXM4 40GB]",
    "20b1": "GA100 [A100 PCIe 40GB]",
    "20b2": "GA100 [A100 SXM4 80GB]",
    "20b5": "GA100 [A100 PCIe 80GB]",
    "20b7": "GA100GL [A30 PCIe]",
    "20f1": "GA100 [A100 PCIe 40GB]",
    "20f3": "GA100 [A800-SXM4-80GB]",
    "20f5": "GA100 [A800 80GB PCIe]",
    "2230": "GA102GL [RTX A6000]",
    "2235": "GA102GL [A40]",
    "2236": "GA102GL [A10]",
    "2237": "GA102GL [A10G]",
    "2321": "GH100 [H100L 94GB]",
    "2322": "GH100 [H800 PCIe]",
    "2324": "GH100 [H800]",
    "2329": "GH100 [H20]",
    "2330": "GH100 [H100 SXM5 80GB]",
    "2331": "GH100 [H100 PCIe]",
    "2335": "GH100 [H200 SXM 141GB]",
    "233b": "GH100 [H200 NVL]",
    "25b6": "GA107GL [A2 / A16]",
    "26b5": "AD102GL [L40]",
    "26b9": "AD102GL [L40S]",
    "26ba": "AD102GL [L20]",
    "27b8": "AD104GL [L4]",
    "2901": "GB100 [B200]",
    "2941": "GB100 [HGX GB200]",
    "29bc": "GB102 [B100]",
    "2bb5": "GB202GL [RTX PRO 6000 Blackwell Server Edition]",
    "3182": "GB110 [B300 SXM6 AC]",
    "31c2": "GB110 [GB300]",
}
"""By device id. Source: the PCI ID Repository (pci-ids.ucw.cz), vendor 10de."""


class PciIds:
    """Names of devices, from the first list that the host has."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._file = ParsedFile(parse_names)

    def name(self, device: str) -> str:
        """The name of the device (`0x2330`); empty when it is not known."""
        id_ = device.removeprefix("0x")
        if known := PRODUCTS.get(id_):
            return known
        for path in map(self._tree.here, PCI_IDS_PATHS):
            if (names := self._file.read(path)) is not None:
                return names.get(id_, "")
        return ""


def parse_names(text: str) -> dict[str, str]:
    """NVIDIA's devices by id. Source: the comments at the head of pci.ids; deeper lines are subsystems."""
    names: dict[str, str] = {}
    inside = False
    for line in text.splitlines():
        if not line.startswith(("\t", "#")) and line.strip():
            if inside:
                break
            inside = line[:4] == VENDOR.removeprefix("0x")
        elif inside and line.startswith("\t") and not line.startswith("\t\t"):
            device, _, name = line.strip().partition("  ")
            names[device] = name.strip()
    return names
