"""Machine types: which GPUs a machine has, and where.

Source of addresses and numbers: topologies of real MI210 and MI300X machines in ROCm/k8s-device-plugin's tests; the
other machines are the same with another model. The workstation has the kernel's own driver, which has no version.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from pydra_amd.hardware_types import Mode
from pydra_amd.models import BY_DEVICE, MEMORY_MODES, PARTITIONS, Model

FIRST_RENDER = 128
CARDS_BEFORE = 1
"""The machine's own display is card0, and has no render node."""


class MachineType(msgspec.Struct, frozen=True, kw_only=True):
    """`buses` are the PCI buses of the GPUs, one GPU on each; `hive` is KFD's id of the xGMI hive that all are in, 0
    for none.

    `mode` is how the machine starts; None for GPUs without partition files. `memory_modes` are those that the driver
    offers. Without `has_vram` GPUs use the node's memory, and the driver reports none of their own: is_app_apu in the
    kernel's drivers/gpu/drm/amd/amdgpu/gmc_v9_0.c. With `virtual`, a device id, the GPUs are gim's, which has made a
    virtual function of each.
    """

    model: Model
    buses: tuple[int, ...] = (0x05, 0x27, 0x47, 0x65, 0x85, 0xA7, 0xC7, 0xE5)
    hive: int = 0xD2CA1B5E7F0A4C37
    numa_nodes: int = 2
    mode: Mode | None = Mode("spx", "nps1")
    memory_modes: tuple[str, ...] = ("nps1",)
    has_vram: bool = True
    driver_version: str = "6.12.12"
    virtual: str = ""

    @property
    def addresses(self) -> tuple[str, ...]:
        """The PCI addresses of the GPUs."""
        return tuple(f"0000:{bus:02x}:00.0" for bus in self.buses)

    def list_compute_modes(self, memory: str) -> tuple[str, ...]:
        """The compute modes that the GPUs can have in a memory mode, and the first is the one that they start with."""
        modes = MEMORY_MODES[self.model.gfx]
        return tuple(mode for mode in PARTITIONS[self.model.xccs] if memory in modes[mode])

    def find_nodes(self, gpu: int, partition: int) -> tuple[int, int]:
        """The numbers of the card node and the render node. A GPU has them for as many partitions as it can have."""
        number = gpu * self.model.xccs + partition
        return CARDS_BEFORE + number, FIRST_RENDER + number


_MI300X = MachineType(model=BY_DEVICE["0x74a1"], memory_modes=("nps1", "nps2", "nps4"))

MACHINE_TYPES = {
    "mi210-4": MachineType(model=BY_DEVICE["0x740f"], buses=(0x63, 0x43, 0x03, 0x26), mode=None),
    "mi300a-4": MachineType(
        model=BY_DEVICE["0x74a0"], buses=(0x01, 0x41, 0x81, 0xC1), numa_nodes=4, memory_modes=(), has_vram=False
    ),
    "mi300x-2": replace(_MI300X, buses=(0x05, 0x27)),
    "mi300x-2-sriov": replace(_MI300X, buses=(0x05, 0x27), mode=None, virtual="0x74b5"),
    "mi300x-8": _MI300X,
    "mi300x-8-cpx": replace(_MI300X, mode=Mode("cpx", "nps1")),
    "mi308x-8": MachineType(model=BY_DEVICE["0x74a2"], memory_modes=("nps1", "nps4")),
    "mi325x-8": MachineType(model=BY_DEVICE["0x74a5"], memory_modes=("nps1", "nps4")),
    "mi355x-8": MachineType(model=BY_DEVICE["0x75a3"], memory_modes=("nps1", "nps2")),
    "w7900": MachineType(model=BY_DEVICE["0x7448"], buses=(0x03,), hive=0, numa_nodes=1, mode=None, driver_version=""),
}
"""By the name of the scenario."""
