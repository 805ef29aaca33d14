"""The node around the GPUs, as far as a scenario has it: driver, host, and where each PCI function stands.

Names of the node, its users and its paths are not read.
Source for functions: the kernel's Documentation/ABI/testing/sysfs-bus-pci.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from pydra_nvidia.cdi.hooks import PLACES, HookMissing, find_hook
from pydra_nvidia.host.driver_root import ROOTS, DriverMissing, find_driver_root
from pydra_nvidia.host.filesystem import read_memory
from pydra_nvidia.host.kernel_driver import count_imex_channels, read_gpu_information, read_module_version
from pydra_nvidia.host.pci import PCI_IDS_PATHS, VENDOR
from pydra_nvidia.settings import Settings
from pydra_nvidia.simulation.model import PciModel
from pydra_nvidia.simulation.scenario import DriverPart, HostPart
from pydra_pci import VFIO_PCI, PciFunction, Tree, VfioHost, function_path, parse_regions, read_attribute

_RELEASE = re.compile(r"\d+\.\d+(?:\.\d+)?")
_DEFAULTS = HostPart()


def read_host(tree: Tree, settings: Settings, functions: Iterable[PciFunction], vfio: VfioHost) -> HostPart:
    """The host part; `functions` are those that a list of names and of variant drivers is needed for."""
    functions = tuple(functions)
    return HostPart(
        iommu=vfio.iommu,
        iommufd=vfio.iommufd,
        driver_root=_driver_root(tree, settings),
        cdi_hook=_hook(tree, settings),
        vfio_variants={one.modalias: one.vfio_driver for one in functions if one.vfio_driver != VFIO_PCI},
        cpus=_cpus(tree) or _DEFAULTS.cpus,
        memory=(read_memory(tree) or 0) // 1024 or _DEFAULTS.memory,
        imex_channels=count_imex_channels(tree),
        kernel=_kernel(tree),
        files=_names(functions),
    )


def read_driver_part(tree: Tree, settings: Settings, missing: Iterable[str]) -> DriverPart:
    """What of the driver the kernel and its installation tell; `missing` are symbols that its library lacks."""
    module = read_module_version(tree)
    try:
        library = find_driver_root(tree, settings).version
        installed = True
    except DriverMissing:
        library, installed = "", False
    return DriverPart(
        version=module or library or DriverPart().version,
        state="loaded" if module else "unloaded" if installed else "absent",
        missing=tuple(sorted(missing)),
    )


def _driver_root(tree: Tree, settings: Settings) -> str:
    """One of the usual roots; another place is nobody's business, and stands for the host's own."""
    try:
        found = find_driver_root(tree, settings).host_path.rstrip("/")
    except DriverMissing:
        return _DEFAULTS.driver_root
    return next((root for root in ROOTS[1:] if found.endswith(root)), _DEFAULTS.driver_root)


def _hook(tree: Tree, settings: Settings) -> str:
    try:
        path = find_hook(tree, settings)
    except HookMissing:
        return ""
    return path and next((place for place in PLACES if path.endswith(place)), _DEFAULTS.cdi_hook)


def _cpus(tree: Tree) -> int:
    root = tree.sys("devices/system/node")
    lists = (tree.read(f"{root}/{name}/cpulist") for name in tree.names(root) if name.startswith("node"))
    return sum(_count(text) for text in lists)


def _count(cpulist: str) -> int:
    """How many CPUs `0-3,8` are."""
    total = 0
    for part in cpulist.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            total += int(last or first) - int(first) + 1
    return total


def _kernel(tree: Tree) -> str:
    """The release without what its builder added, which may be the name of somebody."""
    found = _RELEASE.match(tree.read(tree.proc("sys/kernel/osrelease")))
    return found[0] if found else _DEFAULTS.kernel


def _names(functions: Iterable[PciFunction]) -> Mapping[str, str]:
    """A pci.ids with the names of these functions only."""
    names = {one.device.removeprefix("0x"): one.name for one in functions if one.name}
    if not names:
        return {}
    lines = [f"\t{device}  {name}\n" for device, name in sorted(names.items())]
    return {PCI_IDS_PATHS[0]: f"{VENDOR.removeprefix('0x')}  NVIDIA Corporation\n{''.join(lines)}"}


_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
_MEMORY, _MIB = 0x200, 1 << 20


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """`bridges` are above the function, from the root down. `model` and `minor` are as the kernel driver has them."""

    function: PciFunction
    bridges: tuple[str, ...]
    pci: PciModel
    model: str = ""
    minor: int | None = None


def read_slots(tree: Tree, functions: tuple[PciFunction, ...]) -> tuple[Slot, ...]:
    """The slots of these functions, in their order."""
    return tuple(_read(tree, function) for function in functions)


def _read(tree: Tree, function: PciFunction) -> Slot:
    def read(name: str) -> str:
        return read_attribute(tree, function.address, name)

    path = tree.link(function_path(tree, function.address)).split("/")[:-1]
    told = read_gpu_information(tree, function.address)
    return Slot(
        function=function,
        bridges=tuple(step for step in path if _ADDRESS.fullmatch(step)),
        pci=PciModel(
            vendor=function.vendor,
            device=function.device,
            pci_class=function.pci_class,
            subsystem_vendor=read("subsystem_vendor") or "0x10de",
            subsystem_device=read("subsystem_device") or "0x0000",
            revision=read("revision") or "0xa1",
            regions=read_regions(read("resource")),
        ),
        model=told.get("Model", ""),
        minor=int(told["Device Minor"]) if told.get("Device Minor", "").isdecimal() else None,
    )


def read_regions(resource: str) -> tuple[int, ...]:
    """The function's memory regions in MiB, in the order of their registers, from its file `resource`."""
    return tuple(-(-region.size // _MIB) for region in parse_regions(resource) if region.flags & _MEMORY)
