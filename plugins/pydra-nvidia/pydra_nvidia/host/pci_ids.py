"""What NVIDIA's PCI devices are called in the host's pci.ids, the list that lspci uses."""

from __future__ import annotations

import os

from pydra_nvidia.host.tree import Tree

VENDOR = "10de"
PATHS = (
    "/usr/share/misc/pci.ids",
    "/usr/local/share/pci.ids",
    "/usr/share/hwdata/pci.ids",
    "/usr/share/pci.ids",
)


class PciIds:
    """The first list that the host has; read again when it changes."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._known: tuple[object, dict[str, str]] = (None, {})

    def name(self, device: str) -> str:
        """The name of the device (`0x2330`); empty when no list has it."""
        for path in map(self._tree.here, PATHS):
            try:
                found = os.stat(path)
            except OSError:
                continue
            signature = path, found.st_mtime_ns, found.st_size
            if self._known[0] != signature:
                self._known = signature, parse_names(self._tree.read(path) or "", VENDOR)
            return self._known[1].get(device.removeprefix("0x"), "")
        return ""


def parse_names(text: str, vendor: str) -> dict[str, str]:
    """The vendor's devices by id. Source: the comments at the head of pci.ids; deeper lines are subsystems."""
    names: dict[str, str] = {}
    inside = False
    for line in text.splitlines():
        if not line.startswith(("\t", "#")) and line.strip():
            if inside:
                break
            inside = line[:4] == vendor
        elif inside and line.startswith("\t") and not line.startswith("\t\t"):
            device, _, name = line.strip().partition("  ")
            names[device] = name.strip()
    return names
