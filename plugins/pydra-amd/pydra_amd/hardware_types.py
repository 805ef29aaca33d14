"""Values: what is read from a machine with AMD GPUs. Nothing here is published as it is."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from pydra_pci import PciFunction, VfioHost


class Mode(msgspec.Struct, frozen=True, order=True):
    """How a GPU is partitioned: `compute` is spx, dpx, tpx, qpx or cpx, `memory` nps1, nps2, nps4 or nps8."""

    compute: str
    memory: str

    def __str__(self) -> str:
        """`cpx_nps1`, as AMD's attribute partitionProfile has it."""
        return f"{self.compute}_{self.memory}"


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """One partition that exists, or the whole of a GPU that is not divided.

    `index` is its number on its GPU, from 0. `card` and `render` are the numbers of its nodes in /dev/dri, `kfd_node`
    the one of its node in KFD's topology. `memory` is in bytes, 0 where KFD does not report it.
    """

    index: int
    card: int
    render: int
    kfd_node: int
    compute_units: int
    simds: int
    xccs: int
    memory: int = 0


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU that the driver amdgpu has. It is known by its PCI address: KFD's unique id is missing in guests.

    `index` is its place among the machine's GPUs in the order of their addresses. `card` and `render` are the numbers
    of its function's nodes in /dev/dri, which its first partition has too. `device` is the PCI device id (`0x74a1`),
    `gfx` the version of its instruction set as KFD writes it (90402 is gfx942), `unique_id` and `hive` are KFD's, 0 for
    none, `neighbours` the addresses of the GPUs that it has an xGMI link to.
    `mode` is None for a GPU that cannot be partitioned. `compute_modes` and `memory_modes` are what the driver offers
    beside it, empty where it does not report it. `memory` is that of the whole GPU in bytes, 0 where it cannot be read.
    `partitions` are in the order of their numbers, at least one; `hidden` is how many more its mode has, which the
    driver made no nodes for: a node may have too few numbers.
    """

    index: int = 0
    address: str
    card: int
    render: int
    device: str
    product: str
    gfx: int
    unique_id: int = 0
    hive: int = 0
    neighbours: tuple[str, ...] = ()
    numa_node: int | None = None
    pcie_root: str = ""
    mode: Mode | None = None
    compute_modes: tuple[str, ...] = ()
    memory_modes: tuple[str, ...] = ()
    memory: int = 0
    partitions: tuple[Partition, ...]
    hidden: int = 0

    @property
    def count(self) -> int:
        """How many partitions its mode has, which are of one size."""
        return len(self.partitions) + self.hidden

    @property
    def compute_units(self) -> int:
        """Of all its partitions."""
        return self.partitions[0].compute_units * self.count

    @property
    def simds(self) -> int:
        """Of all its partitions."""
        return self.partitions[0].simds * self.count

    @property
    def xccs(self) -> int:
        """Accelerator complexes, which partitions are made of; of all its partitions."""
        return self.partitions[0].xccs * self.count


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with a GPU: `uncorrectable` has the number of such errors since the driver was loaded, by block.

    `bad_pages` is how many pages of memory are out of use, and `bad_page_limit` how many the driver tolerates, 0 if
    that is not known. `links_down` is how many of its xGMI `links` should carry traffic and do not. `is_throttled`:
    its clocks are held down for heat, or were lately.
    """

    uncorrectable: Mapping[str, int] = {}
    bad_pages: int = 0
    bad_page_limit: int = 0
    links: int = 0
    links_down: int = 0
    is_resetting: bool = False
    is_throttled: bool = False


class LostGpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU that was in use and cannot be used any more: what was last read of it, and why."""

    gpu: Gpu
    why: str


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """One reading of the machine: GPUs in the order of their addresses, and the driver's version.

    `lost` are GPUs that were usable in a reading before, and that nobody took from the driver. `problems` says why
    others that the driver has are not usable, by address.
    `driver_version` and `source_version` are empty for a driver of the kernel itself, which has none. `missing` has the
    paths of device nodes that should be there. `functions` are AMD's GPUs whatever driver has them, and `vfio` what the
    node can do for their passthrough; nothing where that is switched off. `gone` are functions of a reading before that
    are not on the bus any more.
    """

    gpus: tuple[Gpu, ...] = ()
    lost: tuple[LostGpu, ...] = ()
    driver_version: str = ""
    source_version: str = ""
    missing: tuple[str, ...] = ()
    functions: tuple[PciFunction, ...] = ()
    gone: tuple[PciFunction, ...] = ()
    vfio: VfioHost = VfioHost()
    problems: Mapping[str, str] = {}

    @property
    def known(self) -> tuple[Gpu, ...]:
        """The GPUs, those that are lost too, in the order of their addresses."""
        return tuple(sorted((*self.gpus, *(one.gpu for one in self.lost)), key=lambda gpu: gpu.address))

    def find(self, address: str) -> Gpu | None:
        """The GPU at a PCI address."""
        return next((gpu for gpu in self.gpus if gpu.address == address), None)
