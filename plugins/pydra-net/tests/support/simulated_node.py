"""A simulated node, whose backend can be killed at each thing that it does to the kernel."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec.structs import replace

from net_agent import NetAgent, build_sandbox
from pydra_net.network_types import Reading
from pydra_net.settings import Settings
from pydra_net.simulation.kernel import HOST, SimulatedKernel
from pydra_net.simulation.machine import Machine
from pydra_net.simulation.virtual_functions import SimulatedCards
from pydra_nri import PodSandbox


class Killed(Exception):
    """The process has been killed."""


class SimulatedNode:
    """A node whose records, kernel and container runtime outlive the backend."""

    def __init__(
        self, machine: Machine, root: Path, kernel: type[SimulatedKernel] = SimulatedKernel, **settings: str
    ) -> None:
        machine.write(root)
        self.before = machine.build()
        self.kernel = kernel({HOST: self.before}, step=self._step)
        self.cards = SimulatedCards(root, self.kernel)
        self.agent = NetAgent(
            Settings(
                sys_root=f"{root}/sys",
                dev_root=f"{root}/dev",
                network_namespace=HOST,
                nri_socket=f"{root}/nri.sock",
                **settings,
            ),
            self.kernel,
            self.cards.tree,
        )
        self.steps: list[str] = []
        self.kill_at = -1

    def _step(self, what: str) -> None:
        if 0 <= self.kill_at <= len(self.steps):
            raise Killed(what)
        self.steps.append(what)

    @asynccontextmanager
    async def run(self) -> AsyncIterator[NetAgent]:
        """A process of the backend, with the runtime; at the end it is killed."""
        async with self.agent.runtime.serve(self.agent.settings.nri_socket), self.agent.run():
            yield self.agent
            self.kernel.kill()

    def begin_pod(self, name: str, *, number: int = 1) -> PodSandbox:
        """The sandbox of a pod, with a network namespace."""
        path = f"/pods/{name}-{number}"
        self.kernel.begin_namespace(path)
        return build_sandbox(name, path, number=number)

    def names_in(self, sandbox: PodSandbox) -> list[str]:
        """The interfaces in a pod."""
        found = self.kernel.namespaces.get(sandbox.network_namespace, Reading())
        return sorted(link.name for link in found.links if not link.is_loopback)

    def list_in_pods(self) -> list[str]:
        """The interfaces in all pods."""
        pods = [found for path, found in self.kernel.namespaces.items() if path != HOST]
        return sorted(link.name for found in pods for link in found.links if not link.is_loopback)

    def is_as_before(self) -> bool:
        """Whether all links are on the node, as they were."""
        now = self.kernel.namespaces[HOST]
        return _sort(now) == _sort(self.before)


def _sort(reading: Reading) -> object:
    # That of a virtual function is what its card says.
    links = {link.name: replace(link, index=0, permanent_mac="") for link in reading.links}
    names = {link.index: link.name for link in reading.links}
    addresses = {names[index]: found for index, found in reading.addresses.items()}
    routes = {names[index]: found for index, found in reading.routes.items()}
    return links, addresses, routes, reading.rdma
