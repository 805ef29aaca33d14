"""Builds the backend over the node's hardware, or over a simulated machine."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

from pydra import PydraError
from pydra_amd.amdsmi.library import import_amdsmi
from pydra_amd.backend import AmdBackend
from pydra_amd.host.driver_module import DriverModule
from pydra_amd.settings import Settings
from pydra_pci import Roots, Tree


class SimulationMissing(PydraError):
    """A simulated machine was asked for where `pydra_amd.simulation` is not installed."""

    reason = "SimulationMissing"


@contextmanager
def needs_simulation() -> Iterator[None]:
    """Around imports of `pydra_amd.simulation`, which images for nodes leave out. Raises SimulationMissing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if not f"{error.name}.".startswith("pydra_amd.simulation."):
            raise
        message = "the simulation is not part of this image; it comes with `pip install pydra-amd`"
        raise SimulationMissing(message) from None


@asynccontextmanager
async def open_backend(settings: Settings) -> AsyncIterator[AmdBackend]:
    """The backend. Raises SimulationMissing, ScenarioError."""
    importer: Callable[[], Any]
    if settings.scenario:
        # Imported only here: a node with hardware has no use for one without.
        with needs_simulation():
            from pydra_amd.simulation import library, machine  # noqa: PLC0415

        tree = machine.open_machine(settings)
        driver: DriverModule = machine.SimulatedModule(tree, settings.scenario)
        importer = partial(library.import_amdsmi, os.path.dirname(tree.roots.sys), settings.scenario)
    else:
        tree = Tree(
            Roots(host=settings.host_root, sys=settings.sys_root, dev=settings.dev_root, proc=settings.proc_root)
        )
        driver = DriverModule(tree)
        importer = import_amdsmi
    backend = AmdBackend(settings, tree, driver, importer)
    try:
        yield backend
    finally:
        await backend.close()
