"""Builds the backend over the node's hardware, or over a simulated machine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from pydra import PydraError
from pydra_amd.backend import AmdBackend
from pydra_amd.host.filesystem import Roots, Tree
from pydra_amd.settings import Settings


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
    if settings.scenario:
        # Imported only here: a node with hardware has no use for one without.
        with needs_simulation():
            from pydra_amd.simulation.machine import open_machine  # noqa: PLC0415

        tree = open_machine(settings)
    else:
        tree = Tree(Roots(host=settings.host_root, sys=settings.sys_root, dev=settings.dev_root))
    yield AmdBackend(settings, tree)
