"""Machine types: how many chips of which generation a machine has, and what sources report about its slice."""

from __future__ import annotations

import msgspec

from pydra_tpu.generations import BY_NAME, Generation


class MachineType(msgspec.Struct, frozen=True, kw_only=True):
    """One machine type of Google Cloud, as a slice by itself. `chips` are this host's.

    `own_slots`: the functions of a chip have PCI slots of their own, instead of one together. IOMMU groups are numbered
    from `first_group`, and each has `group_size` functions.
    """

    generation: Generation
    chips: int
    numa_nodes: int = 1
    own_slots: bool = False
    first_group: int = 0
    group_size: int = 1

    @property
    def accelerator(self) -> str:
        """The accelerator as GKE labels it."""
        return self.generation.labels[0]

    @property
    def topology(self) -> str:
        """The topology of the host, in chips."""
        return self.generation.topology(self.generation.host_bounds(self.chips))


MACHINE_TYPES = {
    "v2-8": MachineType(generation=BY_NAME["v2"], chips=4),
    "v3-8": MachineType(generation=BY_NAME["v3"], chips=4),
    "v4-8": MachineType(generation=BY_NAME["v4"], chips=4),
    "v5e-1": MachineType(generation=BY_NAME["v5litepod"], chips=1),
    "v5e-4": MachineType(generation=BY_NAME["v5litepod"], chips=4),
    "v5e-8": MachineType(generation=BY_NAME["v5litepod"], chips=8, numa_nodes=2),
    "v5p-2": MachineType(generation=BY_NAME["v5p"], chips=1),
    "v5p-4": MachineType(generation=BY_NAME["v5p"], chips=2),
    "v5p-8": MachineType(generation=BY_NAME["v5p"], chips=4),
    "v6e-1": MachineType(generation=BY_NAME["v6e"], chips=1),
    "v6e-4": MachineType(generation=BY_NAME["v6e"], chips=4),
    "v6e-8": MachineType(generation=BY_NAME["v6e"], chips=8, numa_nodes=2),
    "tpu7x-2": MachineType(generation=BY_NAME["tpu7x"], chips=1),
    "tpu7x-8": MachineType(generation=BY_NAME["tpu7x"], chips=4, numa_nodes=2),
    "tpu7x-8-slots": MachineType(generation=BY_NAME["tpu7x"], chips=4, numa_nodes=2, own_slots=True),
}
"""By the name of the scenario: the accelerator type, where v5litepod is v5e and a v2 to v4 host has 8 cores.

No source says how the functions of a 7x chip are divided among slots, so there is a machine of either kind.
"""
