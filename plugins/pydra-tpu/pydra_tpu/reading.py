"""Reads the machine: one `Host` of all that the kernel and the settings tell."""

from __future__ import annotations

from pydra_tpu.geometry import parse_topology
from pydra_tpu.hardware import Host, SliceFacts
from pydra_tpu.host.pci import read_chips
from pydra_tpu.host.tree import Tree, read_text
from pydra_tpu.settings import Settings


def read_host(tree: Tree, settings: Settings) -> Host:
    """The machine as it is now. Reads files of the kernel only, a few for each PCI function."""
    chips, unknown = read_chips(tree)
    return Host(
        chips=chips,
        facts=facts_of(settings),
        uuid=read_text(f"{tree.sys}/class/dmi/id/product_uuid").lower(),
        problems=unknown,
    )


def facts_of(settings: Settings) -> SliceFacts:
    """What the admin has said of the slice."""
    return SliceFacts(
        accelerator=settings.accelerator or None,
        topology=parse_topology(settings.topology) if settings.topology else None,
        worker_id=settings.worker_id,
        worker_hostnames=settings.worker_hostnames,
    )
