"""Values: what is read from a machine with TPUs. Nothing here is published as it is."""

from __future__ import annotations

import posixpath

import msgspec

from pydra_tpu.generations import Generation
from pydra_tpu.geometry import Bounds

VFIO_CONTROL = "/dev/vfio/vfio"
"""Whoever opens a device through VFIO needs this node too."""


def host_node(node: str, dev_root: str) -> str:
    """The host's path of the node that containers have at `/dev/...`, where the host's nodes are in `dev_root`."""
    return posixpath.join(dev_root, node.removeprefix("/dev/"))


class Chip(msgspec.Struct, frozen=True, kw_only=True):
    """One chip, as the kernel shows it. `index` is its place on the host, from 0, in the order of PCI addresses.

    `node` is its device node as containers have it: `/dev/vfio/3` for a chip that is bound to vfio-pci, else
    `/dev/accel3`. It is empty while the chip has no driver; `node_exists` says whether it is there. `numa_node` is
    None, and `pcie_root` empty, where the kernel does not tell.
    """

    index: int
    address: str
    generation: Generation
    driver: str = ""
    node: str = ""
    node_exists: bool = False
    numa_node: int | None = None
    pcie_root: str = ""

    @property
    def uses_vfio(self) -> bool:
        """Whether the chip is opened through VFIO, which has a control node of its own."""
        return self.node.startswith("/dev/vfio/")


class SliceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What this machine has been told about the TPU slice that it is a worker of; None is what nobody has told.

    `topology` is the whole slice's, in chips. `worker_hostnames` are in the order of worker ids.
    """

    accelerator: str | None = None
    topology: Bounds | None = None
    worker_id: int | None = None
    worker_hostnames: tuple[str, ...] = ()


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """One reading of the machine: its chips by index, what it knows of its slice, and what cannot be used and why.

    `uuid` is the machine's, empty where it is not known.
    """

    chips: tuple[Chip, ...] = ()
    facts: SliceFacts = SliceFacts()
    uuid: str = ""
    problems: tuple[str, ...] = ()
