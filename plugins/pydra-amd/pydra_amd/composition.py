"""Builds the backend over the node's hardware, or over a simulated machine."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from pydra_amd.amdsmi.library import import_amdsmi
from pydra_amd.backend import AmdBackend
from pydra_amd.host.driver_reload import DriverModule
from pydra_amd.required_privileges import require_privileges
from pydra_amd.settings import Settings
from pydra_pci import Roots, Tree, needs_simulation


@asynccontextmanager
async def open_backend(settings: Settings) -> AsyncIterator[AmdBackend]:
    """The backend. Raises SimulationMissing, ScenarioError, RightsMissing."""
    importer: Callable[[], Any]
    if settings.scenario:
        # Imported only here: a node with hardware has no use for one without.
        with needs_simulation("pydra_amd"):
            from pydra_amd.simulation import amdgpu_driver, library, simulation  # noqa: PLC0415

        tree = simulation.open_simulation(settings)
        driver: DriverModule = amdgpu_driver.SimulatedModule(tree, settings.scenario)
        importer = partial(library.import_amdsmi, os.path.dirname(tree.roots.sys), settings.scenario)
    else:
        tree = Tree(
            Roots(host=settings.host_root, sys=settings.sys_root, dev=settings.dev_root, proc=settings.proc_root)
        )
        require_privileges(tree, settings)
        driver = DriverModule(tree)
        importer = import_amdsmi
    backend = AmdBackend(settings, tree, driver, importer)
    try:
        yield backend
    finally:
        await backend.close()
