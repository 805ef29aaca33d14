"""The node without the GPUs: its kernel, memory, IOMMU and modules, and what else the scenario says is there."""

from __future__ import annotations

from collections.abc import Mapping

from pydra_nvidia.simulation.scenario import HostPart
from pydra_nvidia.simulation.scenario_gpus import derive_uuid
from pydra_nvidia.simulation.tree.kernel_driver_files import IOMMU_MINOR, MISC, VFIO_CONTROL_MINOR
from pydra_pci.simulation.files import Files, device, exact, folder, link, text
from pydra_pci.simulation.functions import driver_files, module_files

VFIO_PCI = "vfio-pci"
BOOT_ID = "proc/sys/kernel/random/boot_id"
_USUAL_LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}
"""In the root of every distribution of today."""

_ANY_FUNCTION = "v*d*sv*sd*bc*sc*i*"


def host_files(host: HostPart, *, seed: str, boot: int) -> Files:
    """All but the functions on the bus; `boot` counts reboots."""
    files = usual_links() | {
        "proc/sys/kernel/osrelease": text(host.kernel),
        BOOT_ID: boot_entry(seed, boot),
        "proc/meminfo": text(f"MemTotal:       {host.memory * 1024:>8} kB"),
        "sys/bus/pci/drivers_probe": text(""),
        "sys/module/firmware_class/parameters/path": text(""),
        "tmp": folder(),
    }
    files["sys/kernel/iommu_groups"] = folder()
    if host.iommu:
        files |= _vfio_files(host)
    files[f"usr/lib/modules/{host.kernel}/modules.alias"] = text(_describe_aliases(host.vfio_variants))
    return files


def boot_entry(seed: str, boot: int) -> str:
    """What is at BOOT_ID after so many boots."""
    return text(derive_uuid(seed, "boot", boot))


def extra_files(files: Mapping[str, str]) -> Files:
    """What the scenario says is there besides, by path."""
    return {path.lstrip("/"): exact(content) for path, content in files.items()}


def usual_links() -> Files:
    """The links in the root of a distribution."""
    return {name: link(target) for name, target in _USUAL_LINKS.items()} | {
        target: folder() for target in _USUAL_LINKS.values()
    }


def self_link(root: str) -> Files:
    """A link in the tree at the path that the tree has outside: a path of this machine means the same in both."""
    path = root.strip("/")
    return {path: link("../" * path.count("/") or ".")} if path else {}


def _vfio_files(host: HostPart) -> Files:
    variants = sorted({name.replace("-", "_") for name in host.vfio_variants.values()})
    files = {
        "dev/vfio/vfio": device(),
        "sys/class/misc/vfio/dev": text(f"{MISC}:{VFIO_CONTROL_MINOR}"),
    }
    for name in ("vfio", "vfio_iommu_type1", "vfio_pci_core"):
        files |= module_files(name)
    files |= driver_files(VFIO_PCI, "vfio_pci")
    for name in variants:
        files |= driver_files(name, name)
    if host.iommufd:
        files |= {
            "dev/iommu": device(),
            "sys/class/misc/iommu/dev": text(f"{MISC}:{IOMMU_MINOR}"),
        }
    return files


def _describe_aliases(variants: Mapping[str, str]) -> str:
    lines = [
        "alias pci:v000010DEd*sv*sd*bc03sc02i00* nvidia",
        "alias pci:v000010DEd*sv*sd*bc03sc00i00* nvidia",
        "alias pci:v000015B3d00001021sv*sd*bc*sc*i* mlx5_core",
    ]
    for modalias, name in variants.items():
        lines.append(f"alias vfio_pci:{modalias.rpartition(':')[2]} {name.replace('-', '_')}")
    return "\n".join([*lines, f"alias vfio_pci:{_ANY_FUNCTION} vfio_pci"])
