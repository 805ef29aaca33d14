"""Opens a simulated machine, with a container runtime that has no containers."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec.structs import replace

from pydra_net.settings import Settings
from pydra_net.simulation.kernel import HOST, SimulatedKernel
from pydra_net.simulation.machine import MACHINE_TYPES
from pydra_net.simulation.virtual_functions import SimulatedCards
from pydra_nri.simulation.runtime import FakeRuntime
from pydra_pci import Tree
from pydra_pci.simulation.machine_tree import find_machine, open_tree


@asynccontextmanager
async def open_simulation(settings: Settings) -> AsyncIterator[tuple[Settings, SimulatedKernel, Tree]]:
    """Yield settings that lead to the machine's files, its kernel and the files themselves. Raises ScenarioError."""
    machine = find_machine(settings.scenario, MACHINE_TYPES)
    root = Path(open_tree(settings.state, lambda draft: machine.write(Path(draft)), variable="PYDRA_NET_STATE"))
    kernel = SimulatedKernel({HOST: machine.build()}, file=root / "links.json")
    # A socket's path has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="pydra-net-") as place:
        socket = f"{place}/nri.sock"
        async with FakeRuntime().serve(socket):
            places = {"sys_root": f"{root}/sys", "dev_root": f"{root}/dev", "network_namespace": HOST}
            yield replace(settings, nri_socket=socket, **places), kernel, SimulatedCards(root, kernel).tree
