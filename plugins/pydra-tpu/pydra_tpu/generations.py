"""What is known of each generation of TPUs before anything is read from a machine.

Sources: PCI ids, tpu-info's table and Google's DRA driver; memory, cores and shapes, Google Cloud's pages on each
generation; names, JAX's topology descriptions. Memory cannot be read from an idle chip, so that it comes from here.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from pydra_tpu.geometry import HOST_BOUNDS, Bounds, divide_bounds, format_topology

VENDOR = "0x1ae0"
"""Google's PCI vendor id, which network cards and disks of its machines have too."""


class TpuSlice(msgspec.Struct, frozen=True, kw_only=True):
    """Chips that compute together: how many there are in each dimension, and what follows from that.

    `hosts` is how many hosts it has in each dimension; `wrap` says in which dimensions it is a ring.
    """

    topology: Bounds
    hosts: Bounds
    wrap: tuple[bool, bool, bool]
    accelerator_type: str

    @property
    def wrap_text(self) -> str:
        """As environment variables of libtpu have it: `true,true,false`."""
        return ",".join(str(closed).lower() for closed in self.wrap)


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """One generation. `memory` in GiB and `cores` (TensorCores) are a chip's.

    `name` begins TPU_ACCELERATOR_TYPE. `labels` are values of GKE's label `cloud.google.com/gke-tpu-accelerator`.
    `host_chips`: how many chips a host may have. `jax`: the name of its topologies in JAX. `runtime_devices`: how many
    devices the TPU runtime makes of a chip; the cores of a v4 or v5p are one. `functions`: how many PCI functions a
    chip has.
    """

    name: str
    product: str
    device: str
    subsystem: str = ""
    memory: int
    cores: int
    dimensions: int
    host_chips: tuple[int, ...] = (4,)
    labels: tuple[str, ...] = ()
    jax: str
    runtime_devices: int = 1
    functions: int = 1

    def accelerator_type(self, chips: int) -> str:
        """The accelerator type of a slice of so many chips, by its cores: `v5litepod-8`, `v4-8` for four chips."""
        return f"{self.name}-{chips * self.cores}"

    @property
    def names_parts(self) -> bool:
        """Whether libtpu knows accelerator types of less than a host. The smallest of v2 and v3 are v2-8 and v3-8."""
        return self.name not in ("v2", "v3")

    def topology(self, bounds: Bounds) -> str:
        """The shape as this generation's topologies are written."""
        return format_topology(bounds, self.dimensions)

    def host_bounds(self, chips: int, topology: Bounds | None = None) -> Bounds:
        """The shape of a whole host with so many chips, in a slice of this topology if that is known.

        Source: GKE, where a host of two chips, which is a slice by itself, has the topology 2x1x1. Another source may
        write 1x2x1.
        """
        if chips != 2:
            return HOST_BOUNDS[chips]
        return topology if topology and topology.size == chips else Bounds(2, 1)

    def form_slice(
        self, topology: Bounds, host: Bounds, wrap: tuple[bool, bool, bool] | None = None
    ) -> TpuSlice | None:
        """The slice of this topology, of hosts of this shape; None if these do not fill it. `wrap`: if it was told."""
        hosts = divide_bounds(topology, host)
        return hosts and TpuSlice(
            topology=topology,
            hosts=hosts,
            wrap=wrap or self.wrap(topology),
            accelerator_type=self.accelerator_type(topology.size),
        )

    def has_ici_resiliency(self, topology: Bounds) -> bool:
        """Whether a slice of this topology can go on without some of its links. Source: Google's DRA driver."""
        return self.name in ("v4", "v5p") and min(topology) >= 4

    def wrap(self, topology: Bounds) -> tuple[bool, bool, bool]:
        """In which dimensions a slice of this topology is a ring.

        Source: Google's DRA driver: all three where each is at least 4, which slices of v2 and v3, of two dimensions,
        never are; those of v5e and v6e, whose chips have one core, where it is 16.
        """
        if self.cores == 1:
            return topology.x == 16, topology.y == 16, False
        closed = min(topology) >= 4
        return closed, closed, closed


GENERATIONS = (
    Generation(
        name="v2",
        product="TPU v2",
        device="0x0027",
        subsystem="0x004e",
        memory=16,
        cores=2,
        dimensions=2,
        labels=("tpu-v2-device", "tpu-v2-podslice"),
        jax="v2",
        runtime_devices=2,
    ),
    Generation(
        name="v3",
        product="TPU v3",
        device="0x0027",
        subsystem="0x004f",
        memory=32,
        cores=2,
        dimensions=2,
        labels=("tpu-v3-device", "tpu-v3-slice", "tpu-v3-podslice"),
        jax="v3",
        runtime_devices=2,
    ),
    Generation(
        name="v4",
        product="TPU v4",
        device="0x005e",
        memory=32,
        cores=2,
        dimensions=3,
        labels=("tpu-v4-podslice",),
        jax="v4",
    ),
    Generation(
        name="v5litepod",
        product="TPU v5e",
        device="0x0063",
        memory=16,
        cores=1,
        dimensions=2,
        host_chips=(1, 4, 8),
        labels=("tpu-v5-lite-podslice", "tpu-v5-lite-device"),
        jax="v5e",
    ),
    Generation(
        name="v5p",
        product="TPU v5p",
        device="0x0062",
        memory=95,
        cores=2,
        dimensions=3,
        host_chips=(1, 2, 4),
        labels=("tpu-v5p-slice",),
        jax="v5p",
    ),
    Generation(
        name="v6e",
        product="TPU v6e",
        device="0x006f",
        memory=32,
        cores=1,
        dimensions=2,
        host_chips=(1, 4, 8),
        labels=("tpu-v6e-slice",),
        jax="v6e",
    ),
    Generation(
        name="tpu7x",
        product="TPU7x",
        device="0x0076",
        memory=192,
        cores=2,
        dimensions=3,
        host_chips=(1, 4),
        labels=("tpu7x",),
        jax="tpu7x",
        runtime_devices=2,
        functions=2,
    ),
)

BY_NAME: Mapping[str, Generation] = {one.name: one for one in GENERATIONS}


def identify(device: str, subsystem: str) -> Generation | None:
    """The generation of a PCI function of VENDOR with these ids; None for what is not a TPU, or not a known one."""
    return next((one for one in GENERATIONS if one.device == device and one.subsystem in ("", subsystem)), None)
