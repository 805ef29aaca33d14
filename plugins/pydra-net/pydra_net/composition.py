"""Builds the backend over the node's network and its container runtime."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

from pydra import HeldClaim, held_claims
from pydra_net.apply_interface import Mover
from pydra_net.apply_rdma import RdmaMover
from pydra_net.apply_share import Sharer
from pydra_net.apply_virtual_function import FunctionConfigurer
from pydra_net.backend import NetBackend
from pydra_net.device_names import DRIVER
from pydra_net.hardware_reader import HardwareReader
from pydra_net.kernel import Kernel
from pydra_net.move_pod_interfaces import PodInterfaces
from pydra_net.network_types import Link
from pydra_net.nri_handlers import PodHandlers
from pydra_net.rdma_devices import list_nodes
from pydra_net.settings import Settings
from pydra_net.step_appliers import StepApplier
from pydra_net.steps import ConfigureFunction, GiveInterface, GiveRdma, ShareInterface
from pydra_net.steps_of_held_claims import list_gives
from pydra_nri import Plugin, connect
from pydra_pci import Roots, Tree, needs_simulation

NRI_INDEX = 10


@asynccontextmanager
async def open_backend(
    settings: Settings,
    held: Callable[[], Sequence[HeldClaim]] = held_claims,
    kernel: Kernel | None = None,
    tree: Tree | None = None,
) -> AsyncIterator[NetBackend]:
    """Yield the backend, which is connected to the container runtime whenever that runs.

    Raises SimulationMissing, ScenarioError, NamespaceGone.
    """
    async with AsyncExitStack() as stack:
        if settings.scenario:
            # Imported only here: a node has no use for it.
            with needs_simulation("pydra_net"):
                from pydra_net.simulation.simulation import open_simulation  # noqa: PLC0415

            settings, kernel, tree = await stack.enter_async_context(open_simulation(settings))
        kernel = kernel or open_kernel(settings)
        host = kernel.open(settings.network_namespace)
        stack.callback(host.close)
        tree = tree or Tree(Roots(sys=settings.sys_root, dev=settings.dev_root))

        def list_given() -> list[Link]:
            return [one.before.link for one in list_gives(held())]

        reader = HardwareReader(tree, kernel, host, settings, list_given)
        appliers: Mapping[type, StepApplier[Any]] = {
            GiveInterface: Mover(kernel, host, reader.has_device),
            ShareInterface: Sharer(kernel, host),
            GiveRdma: RdmaMover(kernel, host, reader.has_function, partial(list_nodes, tree)),
            ConfigureFunction: FunctionConfigurer(kernel, host, reader.read_virtual_function),
        }
        interfaces = PodInterfaces(kernel, appliers, held)
        stack.push_async_callback(interfaces.close)
        claims_known = asyncio.Event()
        runtime: Plugin
        handlers = PodHandlers(interfaces, held, claims_known, lambda: runtime.request_timeout)
        runtime = await stack.enter_async_context(
            connect(DRIVER, index=NRI_INDEX, handlers=handlers.build(), socket=settings.nri_socket)
        )
        events = kernel.watch(host)
        stack.callback(events.close)
        yield NetBackend(
            settings,
            tree,
            reader,
            events,
            held=held,
            claims_known=claims_known,
            interfaces=interfaces,
            runtime=runtime,
        )


def open_kernel(settings: Settings) -> Kernel:
    """The kernel of this machine."""
    # A fifth of a second: pyroute2 has hundreds of modules.
    from pydra_net.netlink.kernel import NetlinkKernel  # noqa: PLC0415

    return NetlinkKernel((settings.pod_namespaces,))
