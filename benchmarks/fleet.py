"""What the agents of many nodes ask of one API server: `KUBECONFIG=... make fleet ARGS="--nodes 250 1000"`.

Each node is the part of the agent that speaks to the API server (its client, informer and reconciler) with connections
of its own, for a Node object without a kubelet; `--agents` adds whole agents, as processes, whose requests must be the
same. The API server counts: take one that nobody else uses, since its figures are of all its clients.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import random
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import aiohttp
import anyio
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.domain import measure_domain
from pydra import Capacity, Device, Taint, Version
from pydra.devices import Pool
from pydra.errors import Conflict, KubeError
from pydra.kube.api_resources import NODES, RESOURCE_SLICES
from pydra.kube.client import KubeClient, RequestDone
from pydra.kube.credentials import Credentials, load_credentials
from pydra.kube.informer import Informer
from pydra.kube.version import check_server
from pydra.slices.reconciler import SliceReconciler, slice_selector

DRIVER = "fleet.sim.pydra.dev"
RESTART = "PYDRA_E2E_API_SERVER_RESTART"
VERBS = ("Node", "GET", "LIST", "WATCH", "POST", "PUT", "PATCH", "DELETE")
REFUSALS = ("404", "409", "422", "429", "500", "503", "504")
PATIENCE = 300
TOGETHER = 50


class Requests:
    """The requests of an agent: what `pydra.agent.assembly` and `pydra.agent.driver` compose for the API server."""

    def __init__(self, credentials: Credentials, node: str, unanswered: Counter[str]) -> None:
        """`unanswered` counts the requests, by verb, that the client gave up or whose connection broke."""

        def report(done: RequestDone) -> None:
            if not done.status and done.verb != "watch":
                unanswered[done.verb] += 1

        self._client = KubeClient(credentials, report=report)
        self._cache = Informer(self._client, RESOURCE_SLICES, field_selector=slice_selector(DRIVER, node))
        self._reconciler = SliceReconciler(self._client, self._cache, driver=DRIVER, node=node, started=time.time())
        self._node = node
        self._task: asyncio.Task[None] | None = None

    def start(self, devices: Sequence[Device]) -> None:
        """Check the version, list, watch and publish."""
        self.publish(devices)
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async with self._client, anyio.create_task_group() as tasks:
            tasks.start_soon(check_server, self._client)
            tasks.start_soon(self._cache.run)
            tasks.start_soon(self._reconciler.run)

    def publish(self, devices: Sequence[Device]) -> None:
        """Publish these from now on."""
        self._reconciler.publish(Pool(name=self._node, devices=tuple(devices)))

    def is_published(self) -> bool:
        """Whether the API server has them."""
        return self._reconciler.is_published

    async def stop(self) -> None:
        """Leave what is published."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait((self._task,))


class Process:
    """A whole agent with simulated hardware, and directories of its own that no kubelet looks at."""

    def __init__(self, kubeconfig: str, scratch: Path, node: str) -> None:
        self._directory = scratch / node
        self._marks = self._directory / "state" / "unhealthy"
        self._log = self._directory / f"{time.monotonic_ns()}.log"
        self._kubeconfig = kubeconfig
        self._node = node
        self._rounds = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, devices: Sequence[Device]) -> None:
        """Start the process."""
        self._marks.mkdir(parents=True, exist_ok=True)
        scenario = self._directory / "scenario.yaml"
        scenario.write_text(f"groups: [{{name: accel, count: {len(devices)}}}]")
        self.publish(devices)
        paths = [f"--{name}={self._directory / name}" for name in ("kubelet-root", "records-dir", "cdi-dir")]
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "pydra.cli.agent", "--backend", "sim", "--driver", f"sim={DRIVER}"),
                    *("--node-name", self._node, "--kubeconfig", self._kubeconfig, "--http-address", ""),
                    *("--pod-uid", self._log.stem, *paths),
                ],
                env={
                    **{name: value for name, value in os.environ.items() if not name.startswith("PYDRA_")},
                    "PYDRA_SIM_STATE": str(self._directory / "state"),
                    "PYDRA_SIM_SCENARIO": str(scenario),
                },
                stdout=output,
                stderr=output,
            )

    def publish(self, devices: Sequence[Device]) -> None:
        """Make the hardware what these say."""
        self._rounds += 1
        for device in devices:
            if device.taints:
                (self._marks / device.name).write_text("of the fleet")
            else:
                (self._marks / device.name).unlink(missing_ok=True)

    def is_published(self) -> bool:
        """Whether the agent has said so as often as it had to."""
        if self._process is not None and self._process.poll() is not None:
            raise ChildProcessError(f"the agent of {self._node} ended: {self._log.read_text()}")
        return self._log.read_bytes().count(b"is published") >= self._rounds

    async def stop(self) -> None:
        """Leave what is published."""
        assert self._process is not None
        self._process.terminate()
        await asyncio.to_thread(self._process.wait)


Member: TypeAlias = Requests | Process
"""An agent that publishes devices of a node."""


async def read_server(credentials: Credentials) -> Mapping[str, float]:
    """What the API server counts: requests to slices by verb and code, gets of Nodes, open watches, CPU s, and MiB."""
    url = f"{credentials.server}/metrics"
    async with (
        aiohttp.ClientSession(headers=credentials.access.headers) as session,
        session.get(url, ssl=credentials.access.ssl) as answer,
    ):
        samples = [one for family in text_string_to_metric_families(await answer.text()) for one in family.samples]
    found: Counter[str] = Counter()
    for one in samples:
        kind, verb = one.labels.get("resource"), one.labels.get("verb")
        # Agents only get Nodes; what else is asked of them are the controllers, which miss the kubelets.
        if one.name == "apiserver_request_total" and (kind, verb) == ("nodes", "GET"):
            found["Node"] += int(one.value)
        elif one.name == "apiserver_request_total" and kind == "resourceslices":
            found[one.labels["verb"]] += int(one.value)
            found[one.labels["code"]] += int(one.value)
        if one.name == "apiserver_longrunning_requests" and kind == "resourceslices":
            found["open watches"] += int(one.value)
    values = {one.name: one.value for one in samples}
    figures = {"cpu": values["process_cpu_seconds_total"], "MiB": values["process_resident_memory_bytes"] / 2**20}
    return {**found, **figures}


class Fleet:
    """So many agents, and a line for each thing that happens to all of them."""

    def __init__(
        self,
        make: Callable[[str], Member],
        credentials: Credentials,
        client: KubeClient,
        nodes: int,
        devices: int,
        unanswered: Counter[str],
    ) -> None:
        self._make = make
        self._client = client
        self._credentials = credentials
        self._names = [f"fleet-{number:05}" for number in range(nodes)]
        self._devices = [_device(number) for number in range(devices)]
        self._sick = [_device(number, taints=(Taint(key=f"{DRIVER}/unhealthy"),)) for number in range(devices)]
        self._agents: list[Member] = []
        self._old: list[Member] = []
        self._others = 0.0
        self._unanswered = unanswered

    async def run(self, spread: float, rest: float) -> None:
        """All phases."""
        await self.create_nodes()
        self._others = (await read_server(self._credentials)).get("open watches", 0)
        print(f"\n{len(self._names)} nodes with {len(self._devices)} devices")
        print(f"{'':<34}{'s':>7}{'CPU ms':>9}{'MiB':>6}{'watches':>9}   requests of each node: its Node, slices")
        try:
            await self.measure("start of all at once", lambda: self.start(0))
            await self.measure(f"{rest:g} s of rest", lambda: anyio.sleep(rest))
            await self.measure("all devices unhealthy", lambda: self.publish(self._sick))
            await self.measure("all devices healthy", lambda: self.publish(self._devices))
            if command := shlex.split(os.environ.get(RESTART, "")):
                await self.measure("API server restart", lambda: self.restart(command), restarted=True)
            else:
                print(f"  API server restart: skipped, {RESTART} names no command")
            await self.measure(f"rolling update, {TOGETHER} at once", self.replace)
            await self.stop()
            await self.measure(f"start of all within {spread:g} s", lambda: self.start(spread))
        finally:
            await self.stop()
            await self.clean()

    async def measure(self, name: str, action: Callable[[], Awaitable[object]], *, restarted: bool = False) -> None:
        """Print what the API server has seen of it, for each node; since its start if it was restarted."""
        before, began, own = await read_server(self._credentials), time.monotonic(), _own_cpu()
        self._unanswered.clear()
        await action()
        await self._wait("all is published", lambda: all(one.is_published() for one in self._agents))
        seconds = time.monotonic() - began
        await anyio.sleep(2)  # what the API server counts when it has answered
        after = await read_server(self._credentials)
        if restarted:
            before = {}
        nodes = len(self._names)
        each = {verb: (after.get(verb, 0) - before.get(verb, 0)) / nodes for verb in (*VERBS, *REFUSALS)}
        requests = " ".join(f"{verb} {count:g}" for verb, count in each.items() if count)
        cpu = (after["cpu"] - before.get("cpu", 0)) / nodes * 1000
        watches = (after.get("open watches", 0) - self._others) / nodes
        print(f"  {name:<32}{seconds:7.1f}{cpu:9.2f}{after['MiB']:6.0f}{watches:9g}   {requests or 'none'}", flush=True)
        if told := ", ".join(f"{count} {verb}" for verb, count in sorted(self._unanswered.items())):
            print(f"    not answered within the client's deadline, and sent again: {told}")
        if (share := (_own_cpu() - own) / max(seconds, 1)) > 0.8:
            print(f"    the generator took {share:.0%} of a core: it, not the API server, decided how long this took")

    async def start(self, spread: float) -> None:
        """Start all agents, each at a time of chance within so many seconds."""
        self._agents = [self._make(name) for name in self._names]
        chance = random.Random(1)
        begins = sorted((chance.uniform(0, spread), index) for index in range(len(self._agents)))
        began = time.monotonic()
        for at, index in begins:
            await anyio.sleep(max(0, at - (time.monotonic() - began)))
            self._agents[index].start(self._devices)

    async def publish(self, devices: Sequence[Device]) -> None:
        """Have all publish these."""
        for agent in self._agents:
            agent.publish(devices)

    async def restart(self, command: Sequence[str]) -> None:
        """Restart the API server; until all watch again."""
        await anyio.run_process(command)

        async def watches() -> bool:
            with suppress(KubeError, aiohttp.ClientError, KeyError):
                return (await read_server(self._credentials)).get("open watches", 0) >= len(self._names) + self._others
            return False

        with anyio.fail_after(PATIENCE):
            while not await watches():  # noqa: ASYNC110 - it is another process that watches are counted in
                await anyio.sleep(0.2)

    async def replace(self) -> None:
        """Start a second agent for each node, and stop the first once it has published."""
        for first in range(0, len(self._agents), TOGETHER):
            group = self._agents[first : first + TOGETHER]
            for offset, old in enumerate(group):
                new = self._make(self._names[first + offset])
                new.start(self._devices)
                self._agents[first + offset] = new
                self._old.append(old)
            await self._wait("a group has published", lambda: all(one.is_published() for one in self._agents))
            while self._old:
                await self._old.pop().stop()

    async def stop(self) -> None:
        """Stop all agents."""
        agents, self._agents = (*self._agents, *self._old), []
        await asyncio.gather(*(agent.stop() for agent in agents))
        self._old = []

    async def create_nodes(self) -> None:
        """Node objects for the slices to belong to."""
        for name in self._names:
            with suppress(Conflict):
                await self._client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})

    async def clean(self) -> None:
        """Remove slices and Nodes."""
        listed = await self._client.list(RESOURCE_SLICES, field_selector=f"spec.driver={DRIVER}", metadata_only=True)
        for one in listed.items:
            await self._client.delete(RESOURCE_SLICES, one["metadata"]["name"])
        for name in self._names:
            await self._client.delete(NODES, name)

    async def _wait(self, what: str, look: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not look():
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {PATIENCE} s: {what}")
            await anyio.sleep(0.05)


def _device(number: int, taints: tuple[Taint, ...] = ()) -> Device:
    """About as large as a GPU's."""
    attributes: dict[str, str | int | Version] = {
        "type": "gpu",
        "uuid": f"GPU-00000000-0000-0000-0000-{number:012}",
        "productName": "Example Accelerator 80GB",
        "architecture": "Example",
        "driverVersion": Version("580.65.6"),
        "resource.kubernetes.io/pciBusID": f"0000:{number:02x}:00.0",
        "index": number,
    }
    return Device(name=f"accel-{number}", attributes=attributes, capacity={"memory": Capacity("80Gi")}, taints=taints)


def _own_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def measure(options: argparse.Namespace) -> None:
    """Each size of the fleet, then whole agents."""
    credentials = await load_credentials(environ=os.environ)
    with tempfile.TemporaryDirectory(prefix="pydra-fleet-") as directory:
        async with KubeClient(credentials) as client:
            unanswered: Counter[str] = Counter()

            async def run(make: Callable[[str], Member], nodes: int) -> None:
                fleet = Fleet(make, credentials, client, nodes, options.devices, unanswered)
                await fleet.run(options.spread, options.rest)

            for nodes in options.nodes:
                await run(lambda node: Requests(credentials, node, unanswered), nodes)
            if options.agents:
                print("\nwhole agents:", end="")
                await run(lambda node: Process(os.environ["KUBECONFIG"], Path(directory), node), options.agents)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet", description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, nargs="*", default=[250, 1000], help="sizes of the fleet (250 1000)")
    parser.add_argument("--agents", type=int, default=0, help="then so many whole agents (0)")
    parser.add_argument("--devices", type=int, default=10, help="of each node (10)")
    parser.add_argument("--spread", type=float, default=60, metavar="SECONDS", help="of a start that is spread (60)")
    parser.add_argument("--rest", type=float, default=30, metavar="SECONDS", help="how long nothing is done (30)")
    text = "instead, a ComputeDomain of so many nodes on an embedded API server: needs no cluster"
    parser.add_argument("--domain", type=int, default=0, metavar="NODES", help=text)
    options = parser.parse_args()
    if options.domain:
        logging.disable()
        with tempfile.TemporaryDirectory(prefix="pydra-fleet-") as directory:
            asyncio.run(measure_domain(options.domain, Path(directory)))
        return 0
    if not os.environ.get("KUBECONFIG"):
        print("fleet: KUBECONFIG names no cluster; take one that nobody else uses", file=sys.stderr)
        return 2
    logging.getLogger("pydra").setLevel(logging.CRITICAL)  # each node would say that the API server restarts
    asyncio.run(measure(options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
