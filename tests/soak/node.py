"""The node under test: the agent, one after another, what it keeps, and pods that come and go."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread

from pydra.checkpoint.record_files import RECORD, UNDO
from pydra.errors import Conflict, KubeError, NotFound
from pydra.kube.api_resources import DEVICE_CLASSES, PODS, RESOURCE_CLAIMS
from tests.e2e.agent import Agent, run_agent
from tests.e2e.cluster import KUBELET_ROOT, STAY, Cluster, cdi_files
from tests.soak.relay import Relay

PATIENCE = 300.0
"""In seconds; the kubelet tries a failed prepare again after 60 to 90, and a pod may meet several faults."""

DRIVER = "soak.sim.pydra.dev"
TEMPLATE = "accel"

T = TypeVar("T")


class PatientCluster(Cluster):
    """Raises TimeoutError where a test would fail."""

    async def wait(self, what: str, look: Callable[[], Any]) -> Any:
        """What `look` gives, once that is something."""
        with anyio.move_on_after(PATIENCE):
            while True:
                with suppress(KubeError):
                    if found := await look():
                        return found
                await anyio.sleep(0.5)
        raise TimeoutError(f"not within {PATIENCE:g} s: {what}")


class Node:
    """The agents, of which one is current, over simulated hardware, with records in `records` below `scratch`."""

    def __init__(self, cluster: Cluster, relay: Relay, scratch: Path) -> None:
        self.cluster = cluster
        self.relay = relay
        self.hardware = scratch / "hardware"
        self.records = scratch / "records"
        self._agents = ExitStack()
        self._scratch = scratch
        self._lives = 0
        self._agent: Agent | None = None

    @property
    def agent(self) -> Agent:
        assert self._agent is not None, "start comes first"
        return self._agent

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        """An agent that serves; the pods go before it does."""
        with self._agents:
            await self.start()
            try:
                yield
            finally:
                with anyio.move_on_after(60, shield=True), suppress(TimeoutError, KubeError):
                    await self.cluster.clear()

    async def start(self) -> None:
        """Start an agent beside the current one, as another pod's, and make it the current one once it serves."""
        self._lives += 1
        flags = (
            *("--driver", f"sim={DRIVER}", "--kubeconfig", str(self.relay.kubeconfig)),
            *("--records-dir", str(self.records), "--log-level", "info"),
        )
        agent = self._agents.enter_context(
            run_agent(self.cluster.node, self._scratch, pod_uid=f"{self._lives:04}", flags=flags)
        )
        self._agent = agent
        await agent.wait_serving(self.cluster)

    async def replace(self) -> int:
        """A rolling update; returns the exit status of the agent that went."""
        old = self.agent
        await self.start()
        return await anyio.to_thread.run_sync(old.stop)

    async def kill(self) -> None:
        """End the agent without notice, and start another."""
        await anyio.to_thread.run_sync(self.agent.stop, signal.SIGKILL)
        await self.start()

    def backend(self) -> int:
        """The process of the current agent's backend; 0 while there is none."""
        pid = self.agent.process.pid
        with suppress(OSError):
            for child in (Path(f"/proc/{pid}/task/{pid}/children")).read_text().split():
                if b"pydra.backends.child" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
        return 0

    async def wait_serving(self) -> None:
        """Wait until the current agent's devices are published, all of them healthy."""

        async def look() -> bool:
            devices = await self.cluster.devices()
            return bool(self.backend()) and len(devices) == 8 and not any(one.get("taints") for one in devices)

        if (status := self.agent.process.poll()) is not None:
            raise TimeoutError(f"the agent ended by itself with status {status}")
        await self.cluster.wait("the agent serves 8 healthy devices", look)

    async def wait_unused(self) -> None:
        """Wait until no claim is left, in the cluster or on the node."""

        async def look() -> bool:
            return not (await self._claims() or any(self._left().values()))

        await self.cluster.wait("no claim is left", look)

    async def _claims(self) -> int:
        return len((await self.cluster.client.list(RESOURCE_CLAIMS, namespace=self.cluster.namespace)).items)

    def _left(self) -> dict[str, float]:
        return {
            "records": sum(path.suffix in (RECORD, UNDO) for path in self.records.rglob("*")),
            "CDI files": len(cdi_files(DRIVER)),
            "devices at work": len(list((self.hardware / "active").iterdir())),
        }

    async def measure(self) -> dict[str, float]:
        """What there is, by name; memory in MiB."""
        figures = {
            "claims": float(await self._claims()),
            "slices": float(len(await self.cluster.slices())),
            **self._left(),
            "files of the driver": len(list(self._files())),
            "processes": len(list(self._processes())),
        }
        for name, pid in (("agent", self.agent.process.pid), ("backend", self.backend())):
            figures |= {f"{name} {what}": value for what, value in read_process(pid).items()}
        return figures

    def _files(self) -> Iterator[Path]:
        yield from (path for path in self.records.rglob("*") if path.is_file())
        yield from (KUBELET_ROOT / "plugins" / DRIVER).rglob("*")
        yield from (KUBELET_ROOT / "plugins_registry").glob(f"*{DRIVER}*")

    def _processes(self) -> Iterator[int]:
        """All that have the simulated hardware's directory in their environment: the agents and what they started."""
        mark = str(self.hardware).encode()
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if mark in path.read_bytes():
                    yield int(path.parent.name)

    def find_tracebacks(self) -> list[str]:
        """Where agents have logged an exception that nobody expected."""
        logs = sorted(self._scratch.glob("agent*.log"))
        return [f"a traceback in {log}" for log in logs if b"Traceback" in log.read_bytes()]


def read_process(pid: int) -> dict[str, float]:
    """What a process holds; memory is what is its own, in MiB."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {
        "descriptors": len(list(Path(f"/proc/{pid}/fd").iterdir())),
        "threads": float(status["Threads"]),
        "memory": round(int(status["RssAnon"].split()[0]) / 1024, 1),
    }


class Pods:
    """Pods with a claim each, which start, stay, and end; every tenth is removed by force."""

    def __init__(self, cluster: Cluster, findings: list[str]) -> None:
        self.starts: list[float] = []
        self.forced = 0
        self._cluster = cluster
        self._findings = findings

    async def prepare(self) -> None:
        """Create what the pods ask for."""
        selector = {"cel": {"expression": f"device.driver == '{DRIVER}'"}}
        with suppress(Conflict):
            await self._cluster.create(
                DEVICE_CLASSES, {"metadata": {"name": DRIVER}, "spec": {"selectors": [selector]}}
            )
        await self._cluster.create_claim(TEMPLATE, template=True)

    async def come_and_go(self, worker: str, chance: random.Random, pause: float, ending: anyio.Event) -> None:
        """One pod after another, about `pause` seconds apart; the last ends after `ending`."""
        number = 0
        while not ending.is_set():
            number += 1
            name = f"{worker}-{number}"
            try:
                await self._run(name, chance, pause)
            except TimeoutError as error:
                self._findings.append(f"{error}; {await self._explain(name)}")
                with suppress(KubeError):
                    await self._cluster.force_delete_pod(name)
            with anyio.move_on_after(chance.uniform(0, pause)):
                await ending.wait()

    async def _run(self, name: str, chance: random.Random, pause: float) -> None:
        began = time.monotonic()
        await persist(lambda: self._cluster.create_pod(name, STAY, resourceClaimTemplateName=TEMPLATE))
        await self._cluster.wait_phase(name, "Running")
        self.starts.append(time.monotonic() - began)
        await anyio.sleep(chance.uniform(0, pause))
        force = chance.random() < 0.1
        self.forced += force
        grace, namespace = 0 if force else None, self._cluster.namespace
        await persist(lambda: self._cluster.client.delete(PODS, name, namespace=namespace, grace_period=grace))
        await self._cluster.wait_gone(name)

    async def _explain(self, name: str) -> str:
        with suppress(KubeError):
            notes = await self._cluster.notes("FailedPrepareDynamicResources", about=name)
            pod = await self._cluster.pod(name)
            return f"phase {pod['status'].get('phase')}; {notes}"
        return "the API server does not tell more"


async def persist(call: Callable[[], Awaitable[T]]) -> None:
    """Repeat what the API server has not answered. That it is done already is well."""
    with anyio.fail_after(PATIENCE):
        while True:
            try:
                await call()
            except (Conflict, NotFound):
                return
            except KubeError:
                await anyio.sleep(1)
            else:
                return
