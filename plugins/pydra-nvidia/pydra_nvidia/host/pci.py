"""Which PCI functions are NVIDIA GPUs, and whether there are NVSwitches."""

from __future__ import annotations

from pydra_pci import PciBus, Tree

VENDOR = "0x10de"
DISPLAY_CLASSES = ("0x0300", "0x0302")
"""VGA compatible and 3D controllers; a GPU's audio and USB functions are not display functions."""

DRIVER = "nvidia"
_VPD_BYTES = 1 << 15


def find_gpus(tree: Tree) -> PciBus:
    """The node's NVIDIA display functions."""
    return PciBus(tree, VENDOR, DISPLAY_CLASSES)


def has_switches(tree: Tree) -> bool:
    """Whether Fabric Manager has NVSwitches to manage: as PCI devices, or (from Blackwell on) behind a bridge.

    Source: NVIDIA/gpu-driver-container, which starts Fabric Manager for the same.
    """
    switches, bridges = list_bridges(tree)
    paths = (tree.sys(f"class/infiniband/{name}/device/vpd") for name in bridges)
    return bool(switches) or any(b"SW_MNG" in tree.read_bytes(path, _VPD_BYTES) for path in paths)


def list_bridges(tree: Tree) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """NVSwitches on the PCI bus, and what may be a bridge to others: InfiniBand devices."""
    return tree.names(tree.proc("driver/nvidia-nvswitch/devices")), tree.names(tree.sys("class/infiniband"))
