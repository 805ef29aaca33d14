"""Scenarios: a machine of some type, or this machine, with a container runtime that has no containers."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec.structs import replace

from pydra import PydraError
from pydra_cpu.settings import Settings
from pydra_cpu.simulation.machine import MACHINE_TYPES
from pydra_nri.simulation.runtime import FakeRuntime

THIS_MACHINE = "this-machine"


class ScenarioError(PydraError):
    """There is no such scenario, or no place for its files."""

    reason = "InvalidScenario"


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
    """Write the machine's files, unless they are there."""
    machine = MACHINE_TYPES.get(settings.scenario)
    if machine is None:
        raise ScenarioError(
            f"there is no scenario {settings.scenario}; bundled are: {', '.join((THIS_MACHINE, *MACHINE_TYPES))}"
        )
    root = Path(settings.state).resolve() / "tree"
    try:
        if not root.exists():
            root.parent.mkdir(parents=True, exist_ok=True)
            draft = Path(tempfile.mkdtemp(dir=root.parent))  # nobody reads half a machine
            machine.write(draft)
            draft.rename(root)
    except OSError as error:
        raise ScenarioError(
            f"cannot write the simulated machine to {root}: {error.strerror}; set PYDRA_CPU_STATE to a directory of "
            "your own"
        ) from error
    return replace(settings, host_root=str(root), sys_root=f"{root}/sys", proc_root=f"{root}/proc")
