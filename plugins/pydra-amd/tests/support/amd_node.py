"""A node with a simulated machine as its users see it, with the real agent between."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from pydra.kube.api_resources import DEVICE_CLASSES, PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_SLICES, JsonObject
from pydra_amd import DEVICE_CLASSES as CLASSES
from pydra_amd import DRIVER
from pydra_dev.kubelet.observations import Called, ContainerCreated, PodEnded, PodRunning, Step
from pydra_dev.node import EmbeddedNode, run_node
from tests.integration.agent.process import DEADLINE, Agent, list_records, run_agent

NAMESPACE = "default"


class Scene:
    """The node, and what happened on it."""

    def __init__(self, node: EmbeddedNode, steps: list[Step], state: Path) -> None:
        self.node = node
        self.steps = steps
        self._state = state
        self._agents = 0

    @asynccontextmanager
    async def agent(self, *flags: str, environ: Mapping[str, str] = {}) -> AsyncIterator[Agent]:
        """One more agent, once it publishes; the block ends it in good order when it still runs."""
        self._agents += 1
        around = {
            "PYDRA_AMD_SCENARIO": "mi300x-8",
            "PYDRA_AMD_STATE": str(self._state),
            "PYDRA_AMD_PARTITIONING": "compute",
            **environ,
        }
        backend = () if "--backend" in flags else ("--backend", "amd")
        async with run_agent(
            self.node, *backend, *flags, environ=around, name=f"agent-{self._agents}", forked=True
        ) as agent:
            await agent.wait_ready()
            await self.until(self.is_published, "devices are published")
            try:
                yield agent
            except BaseException as error:
                error.add_note(f"modes {self.modes()}; the agent said:\n{agent.log.read_text()[-6000:]}")
                raise
            if agent.process.returncode is None:
                assert await agent.stop() == 0

    def fault(self, address: str, *faults: str) -> None:
        """What goes wrong with the next changes of the GPU's mode."""
        file = self._state / "faults" / address
        file.parent.mkdir(exist_ok=True)
        file.write_text("\n".join(faults))

    def errors(self) -> list[str]:
        """What the kubelet was told of claims."""
        return [one.error for one in self.steps if isinstance(one, Called) and one.error]

    def leftovers(self) -> list[object]:
        """What claims left on the node: modes, CDI files, records."""
        records = Path(self.node.root, "run", DRIVER, "claims")
        return [
            *(mode for mode in self.modes() or ["no driver"] if mode != "SPX"),
            *(self._state / "tree/dev/vfio").glob("[0-9]*"),
            *os.listdir(self.node.cdi_directory),
            *list_records(records),
        ]

    async def wait_clean(self) -> None:
        """Nothing of any claim is left."""

        async def is_clean() -> bool:
            return not self.leftovers()

        await self.until(is_clean, "nothing is left of any claim")

    async def run(self, name: str, mode: str, count: int = 1) -> list[str]:
        """A pod that asks for devices of a compute mode; the render nodes of its container, once it runs."""
        await self.ask(name, mode, count)
        await self.wait_running(name)
        created = (one for one in self.steps if isinstance(one, ContainerCreated) and one.pod == f"{NAMESPACE}/{name}")
        paths = (one.path for one in next(created).after.devices)
        return [path.rpartition("/")[2] for path in paths if "renderD" in path]

    async def ask(self, name: str, mode: str, count: int = 1) -> None:
        """`mode` is a compute mode, both as in `cpx_nps4`, or `vfio`."""
        attribute = "type" if mode == "vfio" else "partitionProfile" if "_" in mode else "computePartition"
        condition = f"device.attributes['{DRIVER}'].{attribute} == '{mode}'"
        exactly: JsonObject = {"deviceClassName": f"vfio.{DRIVER}" if mode == "vfio" else DRIVER, "count": count}
        exactly["selectors"] = [{"cel": {"expression": condition}}]
        devices = {"requests": [{"name": "gpus", "exactly": exactly}]}
        template = {"metadata": {"name": name}, "spec": {"spec": {"devices": devices}}}
        await self.node.client.create(RESOURCE_CLAIM_TEMPLATES, template, namespace=NAMESPACE)
        container = {"name": "main", "image": "busybox", "resources": {"claims": [{"name": "it"}]}}
        claims = [{"name": "it", "resourceClaimTemplateName": name}]
        pod = {"metadata": {"name": name}, "spec": {"containers": [container], "resourceClaims": claims}}
        await self.node.client.create(PODS, pod, namespace=NAMESPACE)

    async def end(self, name: str) -> None:
        await self.node.client.delete(PODS, name, namespace=NAMESPACE)
        await self.wait_ended(name)

    async def wait_running(self, name: str) -> None:
        await self.until(lambda: self._saw(PodRunning(pod=f"{NAMESPACE}/{name}")), f"{name} runs")

    async def wait_ended(self, name: str) -> None:
        await self.until(lambda: self._saw(PodEnded(pod=f"{NAMESPACE}/{name}")), f"{name} ended")

    async def pending(self, name: str) -> str:
        """Why the scheduler leaves the pod alone."""
        said: list[str] = []

        async def look() -> bool:
            status = (await self.node.client.get(PODS, name, namespace=NAMESPACE))["status"]
            said[:] = [one["message"] for one in status.get("conditions") or () if one["status"] != "True"]
            return bool(said)

        await self.until(look, f"{name} is pending")
        return said[0]

    def modes(self) -> list[str]:
        """The compute modes of the machine's GPUs; none while the driver is not loaded."""
        return self._read_modes("current_compute_partition")

    def driver(self, address: str) -> str:
        """The kernel's driver that has the GPU; empty for none."""
        link = self._state / "tree/sys/bus/pci/devices" / address / "driver"
        return link.readlink().name if link.is_symlink() else ""

    def memory_modes(self) -> set[str]:
        """The memory modes of the machine's GPUs."""
        return {*self._read_modes("current_memory_partition")}

    def _read_modes(self, file: str) -> list[str]:
        gpus = self._state / "tree" / "sys" / "bus" / "pci" / "drivers" / "amdgpu"
        return [(one / file).read_text().strip() for one in sorted(gpus.glob("*:*"))] if gpus.exists() else []

    async def is_published(self) -> bool:
        """Whether any device is."""
        slices = (await self.node.client.list(RESOURCE_SLICES)).items
        return any(one["spec"].get("devices") for one in slices)

    def lose(self, address: str) -> None:
        """The GPU falls off the bus: all that is read of it is ones."""
        gpus = self._state / "tree" / "sys" / "bus" / "pci" / "drivers" / "amdgpu"
        (gpus / address / "config").write_bytes(b"\xff" * 64)

    async def taints(self) -> dict[str, set[str]]:
        """The keys of taints, with the names of the devices that have them."""
        found: dict[str, set[str]] = {}
        for one in (await self.node.client.list(RESOURCE_SLICES)).items:
            for device in one["spec"].get("devices") or ():
                for taint in device.get("taints") or ():
                    found.setdefault(taint["key"], set()).add(device["name"])
        return found

    async def until(self, holds: Callable[[], Awaitable[bool]], what: str) -> None:
        """It holds before the deadline."""
        with anyio.move_on_after(DEADLINE):
            while not await holds():  # noqa: ASYNC110 - what it waits for happens in other processes
                await anyio.sleep(0.02)
            return
        raise AssertionError(f"not in time: {what}")

    async def _saw(self, step: Step) -> bool:
        return step in self.steps


@asynccontextmanager
async def run_scene(state: Path) -> AsyncIterator[Scene]:
    """A node without an agent; the machine's files are below `state`."""
    steps: list[Step] = []
    async with run_node(steps.append) as node:
        for name, spec in CLASSES.items():
            await node.client.create(DEVICE_CLASSES, {"metadata": {"name": name}, "spec": dict(spec)})
        yield Scene(node, steps, state)
