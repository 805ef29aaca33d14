"""Scenarios: a machine of some type, or this machine, with a container runtime that has no containers."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec.structs import replace

from pydra_cpu.settings import Settings
from pydra_cpu.simulation.machine import MACHINE_TYPES
from pydra_nri.simulation.runtime import FakeRuntime
from pydra_pci.simulation.machine_tree import find_machine, open_tree

THIS_MACHINE = "this-machine"


@asynccontextmanager
async def open_simulation(settings: Settings) -> AsyncIterator[Settings]:
    """Yield the settings to read the machine with. Raises ScenarioError."""
    if settings.scenario != THIS_MACHINE:
        settings = _make_files(settings)
    # A socket's path has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="pydra-cpu-") as place:
        socket = f"{place}/nri.sock"
        async with FakeRuntime().serve(socket):
            yield replace(settings, nri_socket=socket)


def _make_files(settings: Settings) -> Settings:
    machine = find_machine(settings.scenario, MACHINE_TYPES, THIS_MACHINE)
    root = open_tree(settings.state, lambda draft: machine.write(Path(draft)), variable="PYDRA_CPU_STATE")
    return replace(settings, host_root=root, sys_root=f"{root}/sys", proc_root=f"{root}/proc")
