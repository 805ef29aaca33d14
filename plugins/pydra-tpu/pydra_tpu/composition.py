"""Builds the backend over the node's hardware, or over a simulated machine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from pydra_pci import Roots, Tree, needs_simulation, run_beside
from pydra_tpu.backend import TpuBackend
from pydra_tpu.libtpu.sdk_monitor import SdkMonitor, find_library
from pydra_tpu.settings import Settings
from pydra_tpu.slice_facts.metadata_server import MetadataServer

LOOKS_PER_LINK_LOOK = 6
"""A look at the links costs half a second of a core: there is one for so many at chips and nodes."""


@asynccontextmanager
async def open_backend(settings: Settings) -> AsyncIterator[TpuBackend]:
    """The backend. Raises SimulationMissing, ScenarioError."""
    async with AsyncExitStack() as stack:
        library = find_library()
        if settings.scenario:
            # Imported only here: a node with hardware has no use for one without.
            with needs_simulation("pydra_tpu"):
                from pydra_tpu.simulation.simulation import open_simulation  # noqa: PLC0415

            settings, library = await stack.enter_async_context(open_simulation(settings))
        roots = Roots(host=settings.host_root, sys=settings.sys_root, proc=settings.proc_root, dev=settings.dev_root)
        tree = Tree(roots)
        metadata = MetadataServer(settings.metadata_server)
        monitor = SdkMonitor(library, settings.link_metrics_port, settings.poll_period * LOOKS_PER_LINK_LOOK)
        async with run_beside({"metadata server": metadata.run(), "link metrics": monitor.run()}):
            yield TpuBackend(settings, tree, metadata, monitor)
