"""Builds the backend over the node's files and its container runtime."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from pydra import HeldClaim, held_claims
from pydra_cpu.backend import CpuBackend
from pydra_cpu.container_reader import read_allowed
from pydra_cpu.devices import DRIVER
from pydra_cpu.hardware_reader import read_topology
from pydra_cpu.nri_handlers import ContainerHandlers
from pydra_cpu.settings import Settings
from pydra_nri import connect
from pydra_pci import Roots, Tree, needs_simulation

NRI_INDEX = 0
"""Among the first plugins of the runtime: what others decide may depend on a container's CPUs."""


@asynccontextmanager
async def open_backend(
    settings: Settings, held: Callable[[], Sequence[HeldClaim]] = held_claims
) -> AsyncIterator[CpuBackend]:
    """Yield the backend, which is connected to the container runtime whenever that runs.

    Raises SimulationMissing, ScenarioError.
    """
    async with AsyncExitStack() as stack:
        if settings.scenario:
            # Imported only here: a node has no use for it.
            with needs_simulation("pydra_cpu"):
                from pydra_cpu.simulation.simulation import open_simulation  # noqa: PLC0415

            settings = await stack.enter_async_context(open_simulation(settings))
        tree = Tree(Roots(host=settings.host_root, sys=settings.sys_root, proc=settings.proc_root))
        read = partial(read_allowed, tree)
        handlers = ContainerHandlers(read_topology(tree), settings.reserved, held, read)
        runtime = await stack.enter_async_context(
            connect(DRIVER, index=NRI_INDEX, handlers=handlers.build(), socket=settings.nri_socket)
        )
        yield CpuBackend(settings, tree, handlers, runtime)
