"""Builds the backend over the node's hardware, or over a simulated machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

from pydra import PydraError
from pydra_pci import Roots, Tree
from pydra_tpu.backend import TpuBackend
from pydra_tpu.libtpu.link_monitor import LinkMonitor, find_library
from pydra_tpu.settings import Settings
from pydra_tpu.slice_facts.metadata_server import MetadataServer

LOOKS_PER_LINK_LOOK = 6
"""A look at the links costs half a second of a core: there is one for so many at chips and nodes."""


class SimulationMissing(PydraError):
    """A simulated machine was asked for where `pydra_tpu.simulation` is not installed."""

    reason = "SimulationMissing"


@contextmanager
def needs_simulation() -> Iterator[None]:
    """Around imports of `pydra_tpu.simulation`, which images for nodes leave out. Raises SimulationMissing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if not f"{error.name}.".startswith("pydra_tpu.simulation."):
            raise
        message = "the simulation is not part of this image; the distribution pydra-tpu has it"
        raise SimulationMissing(message) from None


@asynccontextmanager
async def open_backend(settings: Settings) -> AsyncIterator[TpuBackend]:
    """The backend. Raises SimulationMissing, ScenarioError."""
    async with AsyncExitStack() as stack:
        library = find_library()
        if settings.scenario:
            # Imported only here: a node with hardware has no use for one without.
            with needs_simulation():
                from pydra_tpu.simulation.simulation import open_simulation  # noqa: PLC0415

            settings, library = await stack.enter_async_context(open_simulation(settings))
        roots = Roots(host=settings.host_root, sys=settings.sys_root, proc=settings.proc_root, dev=settings.dev_root)
        tree = Tree(roots)
        metadata = MetadataServer(settings.metadata_server)
        links = LinkMonitor(library, settings.link_metrics_port, settings.poll_period * LOOKS_PER_LINK_LOOK)
        async with asyncio.TaskGroup() as tasks:
            asking = (
                tasks.create_task(metadata.run(), name="metadata server"),
                tasks.create_task(links.run(), name="link metrics"),
            )
            try:
                yield TpuBackend(settings, tree, metadata, links)
            finally:
                for task in asking:
                    task.cancel()
