"""For backends of PCI devices: the functions of a node, its files, who uses a device, and passthrough by VFIO.

This is the public API; every other name below `pydra_pci` is private, except `pydra_pci.simulation`, which images leave
out.
"""

from pydra_pci.background_tasks import run_beside
from pydra_pci.binding import (
    FunctionState,
    KernelRefused,
    KernelWaits,
    KernelWork,
    bind_function,
    give_back,
    read_function,
)
from pydra_pci.filesystem import AbsolutePath, ParsedFile, Roots, RootSettings, Tree
from pydra_pci.functions import (
    VFIO_PCI,
    PciBus,
    PciFunction,
    function_path,
    is_vfio,
    list_vfio_nodes,
    parse_regions,
    read_attribute,
    read_driver,
    read_iommu_group,
    read_numa_node,
    read_root,
)
from pydra_pci.health_reactions import Assessment, Finding, Reaction, assess, combine
from pydra_pci.optional_simulation import SimulationMissing, needs_simulation
from pydra_pci.passthrough import (
    BindVfio,
    Owner,
    VfioBinder,
    VfioHost,
    find_problems,
    is_begun,
    plan_binding,
    read_vfio_host,
)
from pydra_pci.processes import (
    DeviceBusy,
    ProcessesUnseen,
    find_others,
    find_own_namespaces,
    find_users,
    list_users,
    require_all_seen,
    shows_all_processes,
    wait_until_idle,
)
from pydra_pci.takeover import find_live_socket, read_left_checkpoint
from pydra_pci.vfio_drivers import DriverUnavailable, Loader, VfioDrivers, run_modprobe

__all__ = [
    "VFIO_PCI",
    "AbsolutePath",
    "Assessment",
    "BindVfio",
    "DeviceBusy",
    "DriverUnavailable",
    "Finding",
    "FunctionState",
    "KernelRefused",
    "KernelWaits",
    "KernelWork",
    "Loader",
    "Owner",
    "ParsedFile",
    "PciBus",
    "PciFunction",
    "ProcessesUnseen",
    "Reaction",
    "RootSettings",
    "Roots",
    "SimulationMissing",
    "Tree",
    "VfioBinder",
    "VfioDrivers",
    "VfioHost",
    "assess",
    "bind_function",
    "combine",
    "find_live_socket",
    "find_others",
    "find_own_namespaces",
    "find_problems",
    "find_users",
    "function_path",
    "give_back",
    "is_begun",
    "is_vfio",
    "list_users",
    "list_vfio_nodes",
    "needs_simulation",
    "parse_regions",
    "plan_binding",
    "read_attribute",
    "read_driver",
    "read_function",
    "read_iommu_group",
    "read_left_checkpoint",
    "read_numa_node",
    "read_root",
    "read_vfio_host",
    "require_all_seen",
    "run_beside",
    "run_modprobe",
    "shows_all_processes",
    "wait_until_idle",
]
