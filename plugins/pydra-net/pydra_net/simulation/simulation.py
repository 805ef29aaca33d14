"""Opens a simulated machine, with a container runtime that has no containers."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec.structs import replace

from pydra import PydraError
from pydra_net.settings import Settings
from pydra_net.simulation.functions import SimulatedCards
from pydra_net.simulation.kernel import HOST, SimulatedKernel
from pydra_net.simulation.machine import MACHINE_TYPES, Machine
from pydra_nri.simulation.runtime import FakeRuntime
from pydra_pci import Tree


class ScenarioError(PydraError):
    """There is no such scenario, or no place for its files."""

    reason = "InvalidScenario"


@asynccontextmanager
async def open_simulation(settings: Settings) -> AsyncIterator[tuple[Settings, SimulatedKernel, Tree]]:
    """Yield settings that lead to the machine's files, its kernel and the files themselves. Raises ScenarioError."""
    root, machine = _make_files(settings)
    kernel = SimulatedKernel({HOST: machine.build()}, file=root / "links.json")
    # A socket's path has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="pydra-net-") as place:
        socket = f"{place}/nri.sock"
        async with FakeRuntime().serve(socket):
            places = {"sys_root": f"{root}/sys", "dev_root": f"{root}/dev", "network_namespace": HOST}
            yield replace(settings, nri_socket=socket, **places), kernel, SimulatedCards(root, kernel).tree


def _make_files(settings: Settings) -> tuple[Path, Machine]:
    """Write the machine's files, unless they are there."""
    machine = MACHINE_TYPES.get(settings.scenario)
    if machine is None:
        raise ScenarioError(f"there is no scenario {settings.scenario}; bundled are: {', '.join(MACHINE_TYPES)}")
    root = Path(settings.state).resolve() / "tree"
    try:
        if not root.exists():
            root.parent.mkdir(parents=True, exist_ok=True)
            draft = Path(tempfile.mkdtemp(dir=root.parent))  # nobody reads half a machine
            machine.write(draft)
            draft.rename(root)
    except OSError as error:
        raise ScenarioError(
            f"cannot write the simulated machine to {root}: {error.strerror}; set PYDRA_NET_STATE to a directory of "
            "your own"
        ) from error
    return root, machine
