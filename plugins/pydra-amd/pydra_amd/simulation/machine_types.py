"""Machine types: which GPUs a machine has, and where.

Source of addresses and numbers: a real MI300X machine's topology in ROCm/k8s-device-plugin's tests.
"""

from __future__ import annotations

import msgspec

from pydra_amd.hardware_types import Mode
from pydra_amd.models import BY_DEVICE, Model

FIRST_RENDER = 128
CARDS_BEFORE = 1
"""The machine's own display is card0, and has no render node."""


class MachineType(msgspec.Struct, frozen=True, kw_only=True):
    """`buses` are the PCI buses of the GPUs, one GPU on each; `hive` is KFD's id of the xGMI hive that all are in."""

    model: Model
    buses: tuple[int, ...]
    hive: int
    numa_nodes: int
    mode: Mode
    compute_modes: tuple[str, ...]
    memory_modes: tuple[str, ...]
    driver_version: str

    @property
    def addresses(self) -> tuple[str, ...]:
        """The PCI addresses of the GPUs."""
        return tuple(f"0000:{bus:02x}:00.0" for bus in self.buses)

    def find_nodes(self, gpu: int, partition: int) -> tuple[int, int]:
        """The numbers of the card node and the render node. A GPU has them for as many partitions as it can have."""
        number = gpu * self.model.xccs + partition
        return CARDS_BEFORE + number, FIRST_RENDER + number


MACHINE_TYPES = {
    "mi300x-8": MachineType(
        model=BY_DEVICE["0x74a1"],
        buses=(0x05, 0x27, 0x47, 0x65, 0x85, 0xA7, 0xC7, 0xE5),
        hive=0xD2CA1B5E7F0A4C37,
        numa_nodes=2,
        mode=Mode("spx", "nps1"),
        compute_modes=("spx", "dpx", "qpx", "cpx"),
        memory_modes=("nps1", "nps4"),
        driver_version="6.12.12",
    ),
}
"""By the name of the scenario."""
