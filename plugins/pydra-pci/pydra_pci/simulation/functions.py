"""A PCI function in sysfs: its files, where it stands, what leads to it.

Source: the kernel's Documentation/ABI/testing/sysfs-bus-pci, and listings of DGX A100, HGX H100 and T4 servers.
"""

from __future__ import annotations

import posixpath

import msgspec

from pydra_pci.simulation.files import Files, link, text

MIB = 1 << 20
_MEMORY, _WIDE, _PREFETCHED, _SIZE_ALIGNED = 0x200, 0x100000, 0x2000, 0x40000
_FLAGS_32 = _MEMORY | _SIZE_ALIGNED
_FLAGS_64 = _MEMORY | _SIZE_ALIGNED | _WIDE | _PREFETCHED | 0x0C
_LINES = 13
"""Of the file `resource`: six base address registers, the ROM, six more for virtual functions."""


class Region(msgspec.Struct, frozen=True, kw_only=True):
    """Memory that the function answers for, in the line `bar` of its file `resource`; `start` and `size` in bytes."""

    bar: int
    start: int
    size: int
    wide: bool = True


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """Where a function stands: the root complex, the bridges above it from there down, its NUMA node."""

    root: str
    address: str
    bridges: tuple[str, ...] = ()
    numa: int = -1

    @property
    def path(self) -> str:
        """Its directory below the tree's root."""
        return posixpath.join("sys/devices", self.root, *self.bridges, self.address)


class Function(msgspec.Struct, frozen=True, kw_only=True):
    """A function. Ids and class as sysfs spells them; `group` None without an IOMMU.

    `driver` is one that it has from the start, empty where `PciKernel` binds it. `virtual` is how many virtual
    functions it could have, None where it could have none at all.
    """

    slot: Slot
    vendor: str
    device: str
    pci_class: str
    subsystem_vendor: str = "0x0000"
    subsystem_device: str = "0x0000"
    driver: str = ""
    group: int | None = None
    regions: tuple[Region, ...] = ()
    virtual: int | None = None

    @property
    def modalias(self) -> str:
        """How modules.alias matches it."""
        ids = self.vendor, self.device, self.subsystem_vendor, self.subsystem_device
        wide = [one.removeprefix("0x").upper().zfill(8) for one in ids]
        kind = self.pci_class.removeprefix("0x")
        return f"pci:v{wide[0]}d{wide[1]}sv{wide[2]}sd{wide[3]}bc{kind[:2]}sc{kind[2:4]}i{kind[4:]}"


def function_files(function: Function) -> Files:
    """The function's directory, its links to bus, driver and group, and theirs to it."""
    slot = function.slot
    files = {f"{slot.path}/{name}": content for name, content in _attributes(function).items()}
    to_sys = posixpath.relpath("sys", slot.path)
    files[f"{slot.path}/subsystem"] = link(f"{to_sys}/bus/pci")
    files[f"sys/bus/pci/devices/{slot.address}"] = link(_relative("sys/bus/pci/devices", slot.path))
    if function.group is not None:
        group = f"sys/kernel/iommu_groups/{function.group}"
        files[f"{slot.path}/iommu_group"] = link(f"{to_sys}/kernel/iommu_groups/{function.group}")
        files[f"{group}/devices/{slot.address}"] = link(_relative(f"{group}/devices", slot.path))
    if function.driver:
        driver = f"sys/bus/pci/drivers/{function.driver}"
        files[f"{slot.path}/driver"] = link(f"{to_sys}/bus/pci/drivers/{function.driver}")
        files[f"{driver}/{slot.address}"] = link(_relative(driver, slot.path))
    return files


def driver_files(name: str, module: str = "") -> Files:
    """A loaded driver of the PCI bus, and its module; drivers that are built in have none."""
    place = f"sys/bus/pci/drivers/{name}"
    files = {f"{place}/{file}": text("") for file in ("bind", "unbind")}
    if module:
        files[f"{place}/module"] = link(f"../../../../module/{module}")
        files[f"sys/module/{module}/drivers/pci:{name}"] = link(f"../../../bus/pci/drivers/{name}")
        files |= module_files(module)
    return files


def module_files(name: str, version: str = "") -> Files:
    """A loaded kernel module."""
    files = {f"sys/module/{name}/initstate": text("live"), f"sys/module/{name}/refcnt": text(0)}
    return files | ({f"sys/module/{name}/version": text(version)} if version else {})


def _attributes(function: Function) -> Files:
    """Those that a backend reads, or the kernel when a driver is bound."""
    files = {
        "vendor": text(function.vendor),
        "device": text(function.device),
        "class": text(function.pci_class),
        "subsystem_vendor": text(function.subsystem_vendor),
        "subsystem_device": text(function.subsystem_device),
        "numa_node": text(function.slot.numa),
        "resource": text(_resource(function.regions)),
        "modalias": text(function.modalias),
        "driver_override": text("(null)"),
    }
    if function.virtual is not None:
        files |= {"sriov_totalvfs": text(function.virtual), "sriov_numvfs": text(0)}
    return files


def _resource(regions: tuple[Region, ...]) -> str:
    lines = [(0, 0, 0)] * _LINES
    for region in regions:
        flags = _FLAGS_64 if region.wide else _FLAGS_32
        lines[region.bar] = region.start, region.start + region.size - 1, flags
    return "\n".join(" ".join(f"0x{number:016x}" for number in line) for line in lines)


def _relative(directory: str, path: str) -> str:
    return posixpath.relpath(path, directory)
