"""The names of devices, which are those of DRANET. No I/O."""

from __future__ import annotations

import base64
import re

from pydra_net.network_types import Link

DRIVER = "dra.net"

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def name_device(link: Link, pci_address: str, port: int = 0) -> str:
    """Return the name of the device that a link is.

    That of hardware is its place, of a virtual link its name: numbers that the kernel gives again are in none. `port`
    is the number of the port, from 0, of a function that has several. A function may be that of a bus, such as USB,
    with several devices, and there may be virtual links on one.
    """
    if not pci_address or (link.kind and link.lower):
        return link.name if _LABEL.fullmatch(link.name) else f"net-{_encode(link.name)}"
    place = name_function(pci_address)
    bus, _, device = link.parent.partition("/")
    if bus not in ("", "pci", "virtio"):
        place = re.sub("[^a-z0-9]+", "-", f"{place}-{device.lower()}")[:48].rstrip("-")
    if link.is_representor:
        return f"{place}-{link.port}"
    return f"{place}-port{port}" if port else place


def name_function(pci_address: str) -> str:
    """Return the name of the device that a PCI function is."""
    return re.sub(r"[:.]", "-", f"pci-{pci_address}")


def _encode(name: str) -> str:
    return base64.b32encode(name.encode()).decode().rstrip("=").lower()
