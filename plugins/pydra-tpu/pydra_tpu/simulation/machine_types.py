"""Machine types: how many chips of which generation a machine has, and what it is told about its slice."""

from __future__ import annotations

import msgspec

from pydra_tpu.generations import BY_NAME, Generation


class MachineType(msgspec.Struct, frozen=True, kw_only=True):
    """One machine type of Google Cloud, as a worker of a slice of this topology. `chips` are this host's."""

    generation: Generation
    chips: int
    accelerator: str
    topology: str
    numa_nodes: int = 1


MACHINE_TYPES = {
    "v5e-8": MachineType(
        generation=BY_NAME["v5litepod"],
        chips=8,
        accelerator="tpu-v5-lite-podslice",
        topology="2x4",
        numa_nodes=2,
    ),
}
"""By the name of the scenario."""
