"""Machine types: how many chips of which generation a machine has, and what it is told about its slice."""

from __future__ import annotations

import msgspec

from pydra_tpu.generations import BY_NAME, Generation
from pydra_tpu.geometry import HOST_BOUNDS


class MachineType(msgspec.Struct, frozen=True, kw_only=True):
    """One machine type of Google Cloud, as a slice by itself. `chips` are this host's."""

    generation: Generation
    chips: int
    numa_nodes: int = 1

    @property
    def accelerator(self) -> str:
        """The accelerator as GKE labels it."""
        return self.generation.labels[0]

    @property
    def topology(self) -> str:
        """The topology of the host, in chips."""
        return self.generation.topology(HOST_BOUNDS[self.chips])


MACHINE_TYPES = {
    "v2-8": MachineType(generation=BY_NAME["v2"], chips=4),
    "v3-8": MachineType(generation=BY_NAME["v3"], chips=4),
    "v4-8": MachineType(generation=BY_NAME["v4"], chips=4),
    "v5e-1": MachineType(generation=BY_NAME["v5litepod"], chips=1),
    "v5e-4": MachineType(generation=BY_NAME["v5litepod"], chips=4),
    "v5e-8": MachineType(generation=BY_NAME["v5litepod"], chips=8, numa_nodes=2),
    "v5p-8": MachineType(generation=BY_NAME["v5p"], chips=4),
    "v6e-1": MachineType(generation=BY_NAME["v6e"], chips=1),
    "v6e-4": MachineType(generation=BY_NAME["v6e"], chips=4),
    "v6e-8": MachineType(generation=BY_NAME["v6e"], chips=8, numa_nodes=2),
    "v7x-8": MachineType(generation=BY_NAME["tpu7x"], chips=4),
}
"""By the name of the scenario: the generation, and the number in its accelerator type."""
