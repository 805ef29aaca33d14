"""A node with a simulated machine as its users see it, with the real agent between."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from pydra.kube.api_resources import JsonObject
from pydra_amd import DEVICE_CLASSES as CLASSES
from pydra_amd import DRIVER
from pydra_dev.kubelet.observations import Step
from pydra_dev.node import EmbeddedNode, run_node
from tests.integration.agent.node_user import NodeUser
from tests.integration.agent.process import Agent, list_records, run_agent


class Scene(NodeUser):
    """The node, and what happened on it."""

    def __init__(self, node: EmbeddedNode, steps: list[Step], state: Path) -> None:
        super().__init__(node, steps)
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
            await self.wait_published()
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
        await self.until(lambda: not self.leftovers(), "nothing is left of any claim")

    async def run(self, name: str, mode: str, count: int = 1) -> list[str]:
        """A pod that asks for devices of a compute mode; the render nodes of its container, once it runs."""
        await self.ask(name, mode, count)
        await self.wait_running(name)
        paths = (one.path for one in self.container(name).devices)
        return [path.rpartition("/")[2] for path in paths if "renderD" in path]

    async def ask(self, name: str, mode: str, count: int = 1) -> None:
        """`mode` is a compute mode, both as in `cpx_nps4`, or `vfio`."""
        attribute = "type" if mode == "vfio" else "partitionProfile" if "_" in mode else "computePartition"
        condition = f"device.attributes['{DRIVER}'].{attribute} == '{mode}'"
        exactly: JsonObject = {"deviceClassName": f"vfio.{DRIVER}" if mode == "vfio" else DRIVER, "count": count}
        exactly["selectors"] = [{"cel": {"expression": condition}}]
        await self.create_claim(name, {"name": "gpus", "exactly": exactly}, template=True)
        await self.create_pod(name, template=name)

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

    def lose(self, address: str) -> None:
        """The GPU falls off the bus: all that is read of it is ones."""
        gpus = self._state / "tree" / "sys" / "bus" / "pci" / "drivers" / "amdgpu"
        (gpus / address / "config").write_bytes(b"\xff" * 64)

    async def taints(self) -> dict[str, set[str]]:
        """The keys of taints, with the names of the devices that have them."""
        found: dict[str, set[str]] = {}
        for name, device in (await self.devices()).items():
            for taint in device.get("taints") or ():
                found.setdefault(taint["key"], set()).add(name)
        return found


@asynccontextmanager
async def run_scene(state: Path) -> AsyncIterator[Scene]:
    """A node without an agent; the machine's files are below `state`."""
    steps: list[Step] = []
    async with run_node(steps.append) as node:
        scene = Scene(node, steps, state)
        await scene.create_classes(CLASSES)
        yield scene
