"""Builds the backend over the node's network and its container runtime."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from pydra import HeldClaim, held_claims
from pydra_net.backend import NetBackend
from pydra_net.devices import DRIVER
from pydra_net.doctor_check import examine_interfaces
from pydra_net.kernel import Kernel
from pydra_net.settings import Settings
from pydra_nri import Handlers, connect
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
        kernel = kernel or _open_kernel(settings)
        host = kernel.open(settings.network_namespace)
        stack.callback(host.close)
        tree = tree or Tree(Roots(sys=settings.sys_root, dev=settings.dev_root))
        backend = NetBackend(settings, tree, kernel, host, held)
        stack.push_async_callback(backend.close)
        handlers = Handlers(
            synchronize=backend.synchronize,
            run_pod_sandbox=backend.run_pod_sandbox,
            stop_pod_sandbox=backend.stop_pod_sandbox,
            remove_pod_sandbox=backend.remove_pod_sandbox,
            create_container=backend.create_container,
        )
        backend.runtime = await stack.enter_async_context(
            connect(DRIVER, index=NRI_INDEX, handlers=handlers, socket=settings.nri_socket)
        )
        yield backend


def examine_node(settings: Settings, held: Sequence[HeldClaim]) -> Iterator[str]:
    """What is wrong with the interfaces of claims. Raises NamespaceGone."""
    if settings.scenario:
        return
    kernel = _open_kernel(settings)
    host = kernel.open(settings.network_namespace)
    try:
        yield from examine_interfaces(kernel, host, held)
    finally:
        host.close()


def _open_kernel(settings: Settings) -> Kernel:
    # A fifth of a second: pyroute2 has hundreds of modules.
    from pydra_net.netlink.kernel import NetlinkKernel  # noqa: PLC0415

    return NetlinkKernel((settings.pod_namespaces,))
