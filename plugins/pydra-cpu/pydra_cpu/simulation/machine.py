"""Writes the files that the kernel has below /sys for the CPUs of a machine.

Each NUMA node has PCIe roots; below the first are the devices of the node in the simulations of pydra-sim and
pydra-net.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from pydra_cpu.cpu_list import format_cpu_list
from pydra_pci.simulation.files import change_files, text


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine whose parts are all alike. Threads of a core have the numbers `core` and `core + cores`, as on x86."""

    sockets: int = 1
    nodes: int = 1
    """NUMA nodes of a socket."""
    caches: int = 1
    """Level 3 caches of a NUMA node."""
    cores: int = 2
    """Cores of a cache."""
    threads: int = 1
    """CPUs of a core."""
    memory: int = 8 << 30
    """Bytes of memory of a NUMA node."""
    numa: bool = True
    """Whether the kernel knows NUMA nodes."""
    roots: int = 2
    """PCIe roots of a NUMA node."""
    offline: frozenset[int] = frozenset()
    """CPUs that are off-line."""

    def write(self, root: Path) -> None:
        """Write its files below `sys` and `proc` of this directory."""
        change_files(str(root), {}, {path: text(content) for path, content in self._files().items()})

    def _files(self) -> dict[str, str]:
        of_node = self.caches * self.cores
        all_cores = self.sockets * self.nodes * of_node
        online = [cpu for cpu in range(all_cores * self.threads) if cpu not in self.offline]
        files = {"sys/devices/system/cpu/online": format_cpu_list(online)}
        for cpu in online:
            core = cpu % all_cores
            siblings = [one for one in range(core, all_cores * self.threads, all_cores) if one in online]
            cache = core // self.cores
            path = f"sys/devices/system/cpu/cpu{cpu}"
            files |= {
                f"{path}/topology/core_cpus_list": format_cpu_list(siblings),
                f"{path}/topology/core_id": str(core % (self.nodes * of_node)),
                f"{path}/topology/physical_package_id": str(core // (self.nodes * of_node)),
                f"{path}/cache/index0/level": "1",
                f"{path}/cache/index3/level": "3",
                f"{path}/cache/index3/id": str(cache),
            }
        nodes = range(self.sockets * self.nodes)
        if not self.numa:
            return {**files, "proc/meminfo": f"MemTotal:    {self.memory >> 10} kB"}
        files["sys/devices/system/node/online"] = format_cpu_list(nodes)
        for node in nodes:
            path = f"sys/devices/system/node/node{node}"
            own = [cpu for cpu in online if cpu % all_cores // of_node == node]
            files |= {
                f"{path}/cpulist": format_cpu_list(own),
                f"{path}/distance": " ".join("10" if other == node else "21" for other in nodes),
                f"{path}/meminfo": f"Node {node} MemTotal:    {self.memory >> 10} kB",
                f"{path}/hugepages/hugepages-2048kB/nr_hugepages": "512",
                f"{path}/hugepages/hugepages-1048576kB/nr_hugepages": "0",
            }
            for bus in (f"0000:{node + 128 * root:02x}" for root in range(self.roots)):
                files[f"sys/devices/pci{bus}/pci_bus/{bus}/cpulistaffinity"] = format_cpu_list(own)
        return files


MACHINE_TYPES: Mapping[str, Machine] = {
    "desktop": Machine(cores=8, threads=2, roots=1),
    "server": Machine(sockets=2, nodes=2, caches=2, cores=4, threads=2, memory=64 << 30),
    "many-cores": Machine(sockets=2, nodes=4, caches=4, cores=8, memory=96 << 30),
    "without-numa": Machine(cores=4, numa=False),
}
"""By name: a scenario."""
