"""A node as its users see it: the scheduler chooses the modes of a simulated machine, with the real agent between."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from pydra.kube.resources import DEVICE_CLASSES, PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_SLICES, JsonObject
from pydra_amd import DEVICE_CLASSES as CLASSES
from pydra_amd import DRIVER
from pydra_dev.kubelet.steps import ContainerCreated, PodEnded, PodRunning, Step
from pydra_dev.node import EmbeddedNode, run_node
from tests.integration.agent.process import DEADLINE, run_agent

NAMESPACE = "default"


class Scene:
    """The node, and what happened on it."""

    def __init__(self, node: EmbeddedNode, steps: list[Step], state: Path) -> None:
        self.node = node
        self.steps = steps
        self._state = state

    async def run(self, name: str, mode: str, count: int = 1) -> list[str]:
        """A pod that asks for devices of a compute mode; the render nodes of its container, once it runs."""
        await self.ask(name, mode, count)
        await self.until(lambda: self._saw(PodRunning(pod=f"{NAMESPACE}/{name}")), f"{name} runs")
        created = (one for one in self.steps if isinstance(one, ContainerCreated) and one.pod == f"{NAMESPACE}/{name}")
        paths = (one.path for one in next(created).after.devices)
        return [path.rpartition("/")[2] for path in paths if "renderD" in path]

    async def ask(self, name: str, mode: str, count: int = 1) -> None:
        condition = f"device.attributes['{DRIVER}'].computePartition == '{mode}'"
        exactly: JsonObject = {"deviceClassName": DRIVER, "count": count}
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
        """The compute modes of the machine's GPUs."""
        gpus = self._state / "tree" / "sys" / "bus" / "pci" / "drivers" / "amdgpu"
        return [(one / "current_compute_partition").read_text().strip() for one in sorted(gpus.iterdir())]

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
async def scene(state: Path) -> AsyncIterator[Scene]:
    steps: list[Step] = []
    async with run_node(steps.append) as node:
        environ = {
            "PYDRA_AMD_SCENARIO": "mi300x-8",
            "PYDRA_AMD_STATE": str(state),
            "PYDRA_AMD_PARTITIONING": "compute",
            "PYDRA_AMD_POLL_PERIOD": "0.2",
        }
        for name, spec in CLASSES.items():
            await node.client.create(DEVICE_CLASSES, {"metadata": {"name": name}, "spec": dict(spec)})
        async with run_agent(node, "--backend", "amd", environ=environ) as agent:
            await agent.wait_ready()
            found = Scene(node, steps, state)
            await found.until(found.is_published, "devices are published")
            yield found
            assert await agent.stop() == 0


async def test_the_scheduler_chooses_each_gpus_mode_until_its_claims_have_ended_and_sees_when_a_gpu_is_lost(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path) as node:
        assert await node.run("whole", "spx") == ["renderD128"]
        assert await node.run("eighth", "cpx") == ["renderD136"]
        assert await node.run("quarters", "qpx", count=3) == ["renderD144", "renderD145", "renderD146"]
        assert await node.run("next", "cpx", count=7) == [f"renderD{137 + index}" for index in range(7)]
        assert node.modes() == ["SPX", "CPX", "QPX", *["SPX"] * 5]
        await node.run("halves", "dpx", count=10)
        await node.ask("late", "spx")
        assert "cannot allocate all claims" in await node.pending("late")
        await node.end("eighth")
        assert node.modes()[1] == "CPX"
        await node.end("next")
        assert node.modes()[:2] == ["SPX", "SPX"]

        async def is_tainted() -> bool:
            found = await node.taints()
            lost = found.get("gpu.amd.com/gpu-lost", set())
            return len(lost) == 1 + 2 + 4 + 8 and all(name.startswith("gpu-9-136") for name in lost)

        node.lose("0000:27:00.0")
        await node.until(is_tainted, "the lost GPU's devices are tainted")
