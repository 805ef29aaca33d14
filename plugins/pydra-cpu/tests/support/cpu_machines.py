"""Reads simulated machines as the backend does."""

from __future__ import annotations

from pathlib import Path

from pydra_cpu.hardware_reader import read_topology
from pydra_cpu.hardware_types import Topology
from pydra_cpu.simulation.machine import Machine
from pydra_pci import Roots, Tree


def read(root: Path) -> Topology:
    """What is read of the machine whose files are in this directory."""
    return read_topology(Tree(Roots(sys=f"{root}/sys", proc=f"{root}/proc")))


def build(machine: Machine, root: Path) -> Topology:
    """Write the machine's files, and return what is read of them."""
    machine.write(root)
    return read(root)


def read_here() -> Topology:
    """What is read of this machine."""
    return read_topology(Tree(Roots()))
