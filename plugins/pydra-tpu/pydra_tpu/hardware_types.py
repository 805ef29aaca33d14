"""Values: what is read from a machine with TPUs. Nothing here is published as it is."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec
from msgspec.structs import replace

from pydra_tpu.generations import Generation, TpuSlice
from pydra_tpu.geometry import Bounds, SubSlice, find_sub_slice

VFIO_CONTROL = "/dev/vfio/vfio"
"""A process that opens a device through VFIO needs this node too."""


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """A process of the host. `started` is its start in clock ticks since boot, which with `pid` names it for good."""

    pid: int
    started: int
    command: str = ""


class ChipFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A PCI function of a chip, as the kernel shows it.

    `node` is its device node as containers have it: `/dev/vfio/3` for a function that is bound to vfio-pci, else
    `/dev/accel3`. It is empty while the function has no driver; `node_exists` says whether it is there, and
    `control_exists` whether the control node of VFIO is, if the function needs it. `numa_node` is None, and `pcie_root`
    and `group` (of the IOMMU) are empty, where the kernel does not report them. `present` is false for one that
    was here.
    """

    address: str
    slot: str
    generation: Generation
    driver: str = ""
    node: str = ""
    node_exists: bool = False
    control_exists: bool = True
    numa_node: int | None = None
    pcie_root: str = ""
    group: str = ""
    present: bool = True


class Chip(msgspec.Struct, frozen=True, kw_only=True):
    """One chip. `index` is its place on the host, from 0, in the order of PCI addresses.

    `functions` are all its PCI functions: a 7x chip has two, chips of other generations have one. `missing_functions`
    says how many fewer it has than the other chips of its host. `unclaimed_users` have the chip open while no claim
    holds it.

    What the TPU runtime says while a workload runs: `links`, ICI links by name, with 0 for a healthy one, 1 to 5 for
    transient, 6 to 9 for persistent trouble, 10 for one that cannot be used; `throttle`, by how many tenths the chip is
    slowed down, None where it does not say.
    """

    index: int
    functions: tuple[ChipFunction, ...]
    missing_functions: int = 0
    unclaimed_users: tuple[Process, ...] = ()
    links: Mapping[str, int] = {}
    throttle: int | None = None

    @property
    def generation(self) -> Generation:
        """The generation, which all functions of a chip have in common."""
        return self.functions[0].generation

    @property
    def address(self) -> str:
        """The PCI address of the first function."""
        return self.functions[0].address

    @property
    def nodes(self) -> tuple[str, ...]:
        """The device nodes of the functions; those of one IOMMU group have one together."""
        return tuple(dict.fromkeys(one.node for one in self.functions if one.node))

    @property
    def groups(self) -> frozenset[str]:
        """The IOMMU groups of the functions, where the kernel reports them."""
        return frozenset(one.group for one in self.functions if one.group)

    @property
    def present(self) -> bool:
        """Whether none of the functions has gone."""
        return all(one.present for one in self.functions)

    @property
    def uses_vfio(self) -> bool:
        """Whether the chip is opened through VFIO, which has a control node of its own."""
        return any(node.startswith("/dev/vfio/") for node in self.nodes)


class SliceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What this machine has been told about the TPU slice that it is a worker of; None is what nobody has told.

    `topology` is the whole slice's, in chips, and `host_bounds` in hosts; `wrap` says in which dimensions it is a ring.
    `worker_hostnames` are in the order of worker ids. `host_chips` is how many chips this host should have.
    `slice_name` is the name of the TPU, the same on all its workers. `sources` says where each field is from, by its
    name.
    """

    accelerator: str | None = None
    topology: Bounds | None = None
    worker_id: int | None = None
    worker_hostnames: tuple[str, ...] = ()
    host_chips: int | None = None
    host_bounds: Bounds | None = None
    wrap: tuple[bool, bool, bool] | None = None
    ici_resiliency: bool | None = None
    slice_name: str | None = None
    sources: Mapping[str, str] = {}


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """One reading of the machine: its chips by index, what it knows of its slice, and what cannot be used and why.

    `uuid` is the machine's, empty where it is not known.
    """

    chips: tuple[Chip, ...] = ()
    facts: SliceFacts = SliceFacts()
    uuid: str = ""
    problems: tuple[str, ...] = ()

    @property
    def slice(self) -> TpuSlice | None:
        """The slice that this host, whose chips must form a mesh, is a worker of; None while it is not known."""
        if not self.facts.topology:
            return None
        return self.chips[0].generation.form_slice(self.facts.topology, self.bounds, self.facts.wrap)

    @property
    def bounds(self) -> Bounds:
        """The shape of this host, whose chips must form a mesh."""
        return self.chips[0].generation.host_bounds(len(self.chips), self.facts.topology)

    @property
    def runtime_order(self) -> tuple[int, ...]:
        """The chips' indices in the order in which libtpu numbers the chips.

        Source: libtpu 0.0.52, which sorts the nodes in /dev/vfio as text: 10 comes before 8.
        """
        functions = [function for chip in self.chips for function in chip.functions]
        indices = range(len(self.chips))
        if any(one.node.startswith("/dev/accel") or not one.group for one in functions):
            return tuple(indices)
        return tuple(sorted(indices, key=lambda index: min(one.group for one in self.chips[index].functions)))

    def find_mesh(self, chips: Collection[int]) -> SubSlice | None:
        """The mesh that these chips form: this host or a part of it; None if they form none."""
        found = find_sub_slice(chips, len(self.chips))
        return replace(found, bounds=self.bounds) if found and len(found.chips) == len(self.chips) else found
