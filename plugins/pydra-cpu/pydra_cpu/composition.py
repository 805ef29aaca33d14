"""Builds the backend over the node's files and its container runtime, and what `pydra doctor` compares."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from pydra import HeldClaim, held_claims
from pydra_cpu.backend import CpuBackend
from pydra_cpu.container_reader import read_containers
from pydra_cpu.devices import DRIVER
from pydra_cpu.doctor_check import find_differences
from pydra_cpu.hardware_reader import read_topology
from pydra_cpu.kubelet_policy import find_static_manager
from pydra_cpu.settings import Settings
from pydra_nri import Handlers, connect
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
        tree = _build_tree(settings)
        backend = CpuBackend(settings, tree, held)
        handlers = Handlers(
            synchronize=backend.synchronize,
            create_container=backend.create_container,
            update_container=backend.update_container,
            stop_container=backend.stop_container,
            remove_container=backend.remove_container,
        )
        backend.runtime = await stack.enter_async_context(
            connect(DRIVER, index=NRI_INDEX, handlers=handlers, socket=settings.nri_socket)
        )
        yield backend


def compare_containers(settings: Settings, held: Sequence[HeldClaim]) -> Iterator[str]:
    """Yield which containers of the node do not have the CPUs that claims give them. Raises NothingVisible."""
    if settings.scenario:
        return  # a simulated runtime has no containers
    tree = _build_tree(settings)
    online = frozenset(cpu.id for cpu in read_topology(tree).cpus)
    manager = find_static_manager(tree, settings.kubelet_root)
    offered = online - settings.reserved
    yield from find_differences(read_containers(tree), held, offered=offered, online=online, manager=manager)


def _build_tree(settings: Settings) -> Tree:
    return Tree(Roots(host=settings.host_root, sys=settings.sys_root, proc=settings.proc_root))
