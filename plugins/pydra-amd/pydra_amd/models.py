"""What is known of AMD's GPUs before anything is read from a machine: models, and how each can be partitioned. Pure.

Sources: PCI ids, amdgpu.ids of libdrm; modes by the number of accelerator complexes (XCC) and the memory modes that go
with them, the kernel's drivers/gpu/drm/amd/amdgpu/aqua_vanjaram.c and AMD's guides to partitioning.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from pydra_amd.hardware_types import Gpu, Mode

VENDOR = "0x1002"
AMDGPU = "amdgpu"
"""The kernel's driver."""
CLASSES = ("0x1200", "0x0380", "0x0300")
"""PCI classes of GPUs: processing accelerators, and display controllers with and without a display."""

WHOLE = "spx"
"""The compute partition mode in which a GPU is one device."""


def count_simds_per_unit(gfx: int) -> int:
    """A compute unit has four SIMD units, and of the RDNA family (gfx10 and later) two."""
    return 2 if gfx >= _GFX1000 else 4


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """One model: `memory` in GiB, and `gfx` as KFD writes the version of its instruction set.

    `virtual` is the device id of its virtual functions, empty for a model that has none.
    """

    device: str
    name: str
    gfx: int
    xccs: int
    compute_units: int
    memory: int
    virtual: str = ""

    @property
    def simds(self) -> int:
        """SIMD units of all compute units."""
        return self.compute_units * count_simds_per_unit(self.gfx)


GFX90A, GFX942, GFX950, GFX1100 = 90010, 90402, 90500, 110000
_GFX1000 = 100000

MODELS = (
    Model(device="0x7408", name="AMD Instinct MI250X", gfx=GFX90A, xccs=1, compute_units=110, memory=64),
    Model(device="0x740c", name="AMD Instinct MI250", gfx=GFX90A, xccs=1, compute_units=104, memory=64),
    Model(
        device="0x740f", name="AMD Instinct MI210", gfx=GFX90A, xccs=1, compute_units=104, memory=64, virtual="0x7410"
    ),
    Model(device="0x74a0", name="AMD Instinct MI300A", gfx=GFX942, xccs=6, compute_units=228, memory=128),
    Model(
        device="0x74a1", name="AMD Instinct MI300X", gfx=GFX942, xccs=8, compute_units=304, memory=192, virtual="0x74b5"
    ),
    Model(
        device="0x74a2", name="AMD Instinct MI308X", gfx=GFX942, xccs=4, compute_units=80, memory=192, virtual="0x74b6"
    ),
    Model(
        device="0x74a5", name="AMD Instinct MI325X", gfx=GFX942, xccs=8, compute_units=304, memory=256, virtual="0x74b9"
    ),
    Model(
        device="0x75a0", name="AMD Instinct MI350X", gfx=GFX950, xccs=8, compute_units=256, memory=288, virtual="0x75b0"
    ),
    Model(
        device="0x75a3", name="AMD Instinct MI355X", gfx=GFX950, xccs=8, compute_units=256, memory=288, virtual="0x75b3"
    ),
    Model(device="0x7448", name="AMD Radeon PRO W7900", gfx=GFX1100, xccs=1, compute_units=96, memory=48),
)
BY_DEVICE: Mapping[str, Model] = {one.device: one for one in MODELS}
_NAMES: Mapping[str, str] = {
    **{one.device: one.name for one in MODELS},
    **{one.virtual: f"{one.name} VF" for one in MODELS if one.virtual},
    "0x74a8": "AMD Instinct MI308X HF",
    "0x74a9": "AMD Instinct MI300X HF",
    "0x74bc": "AMD Instinct MI308X HF VF",
    "0x74bd": "AMD Instinct MI300X HF VF",
}
"""By device id; of some the name is known, and not what they consist of."""

PARTITIONS: Mapping[int, Mapping[str, int]] = {
    8: {"spx": 1, "dpx": 2, "qpx": 4, "cpx": 8},
    6: {"spx": 1, "tpx": 3, "cpx": 6},
    4: {"spx": 1, "dpx": 2, "cpx": 4},
}
"""How many partitions each compute partition mode makes of a GPU with so many XCCs."""

_GFX942_MEMORY = {
    "spx": ("nps1",),
    "dpx": ("nps1", "nps2"),
    "tpx": ("nps1", "nps4"),
    "qpx": ("nps1", "nps4"),
    "cpx": ("nps1", "nps4"),
}
_GFX950_MEMORY = {"spx": ("nps1",), "dpx": ("nps1", "nps2"), "qpx": ("nps1", "nps2"), "cpx": ("nps1", "nps2")}
MEMORY_MODES: Mapping[int, Mapping[str, tuple[str, ...]]] = {GFX942: _GFX942_MEMORY, GFX950: _GFX950_MEMORY}
"""The memory modes that go with each compute partition mode, by the version of the instruction set."""


def name_product(device: str) -> str:
    """The name of a GPU or of a virtual function with this device id; empty for an unknown one."""
    return _NAMES.get(device, "")


def list_modes(gpu: Gpu, memory: str | None = None) -> Mapping[Mode, int]:
    """The modes that the GPU can have, with their numbers of partitions; the whole GPU first, then by size.

    With `memory`, only those of that memory mode. For the present memory mode the driver's own list counts too, for
    others, which it does not report, the table. Empty for a GPU that cannot be partitioned or is of an unknown kind.
    """
    if gpu.mode is None:
        return {}
    found: dict[Mode, int] = {}
    offered = {*gpu.memory_modes, gpu.mode.memory}
    for compute, count in PARTITIONS.get(gpu.xccs, {}).items():
        for one in MEMORY_MODES.get(gpu.gfx, {}).get(compute, ()):
            is_told = one != gpu.mode.memory or not gpu.compute_modes or compute in gpu.compute_modes
            if one in offered and is_told and memory in (None, one):
                found[Mode(compute, one)] = count
    return found
