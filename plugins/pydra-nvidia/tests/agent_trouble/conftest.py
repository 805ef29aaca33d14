"""The real agent and backend beside an embedded node, over a simulated machine to which things happen."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from claim_requests import request_for
from pydra.kube.api_resources import JsonObject
from pydra_dev.kubelet.observations import HealthChanged, Step
from pydra_dev.node import EmbeddedNode, run_node
from pydra_nvidia import DEVICE_CLASSES as CLASSES
from pydra_nvidia import DRIVER
from pydra_nvidia.claim_config import GROUP_VERSION
from pydra_nvidia.cli import main
from pydra_nvidia.sharing.mps_processes import MARK, find_marked
from pydra_nvidia.simulation.inject import Injector
from pydra_nvidia.simulation.machine_state import GpuState
from pydra_nvidia.simulation.simulation import Simulation, open_simulation
from tests.integration.agent.node_user import NodeUser
from tests.integration.agent.process import Agent, list_records, run_agent

TWO_H100 = ({"model": "h100-80gb", "count": 2},)
POLL = {"PYDRA_NVIDIA_POLL_PERIOD": "0.1"}


class Scene(NodeUser):
    """A node with a simulated machine; `path` is the machine's directory, `steps` what the kubelet did."""

    def __init__(self, node: EmbeddedNode, scenario: Mapping[str, Any], steps: list[Step]) -> None:
        super().__init__(node, steps)
        self.path = Path(node.root, "hardware")
        self._scenario = scenario
        self._agents = 0
        self._file = Path(node.root, "scenario.json")
        self.fault()
        self.simulation: Simulation = open_simulation(str(self._file), str(self.path))

    # The machine

    @property
    def inject(self) -> Injector:
        return self.simulation.inject

    @property
    def boot_id_file(self) -> Path:
        return self.path / "tree/proc/sys/kernel/random/boot_id"

    @property
    def records(self) -> Path:
        return Path(self.node.root, "run", DRIVER, "claims")

    def fault(self, *faults: Mapping[str, Any]) -> None:
        """From now on these faults, and no others."""
        draft = self._file.with_suffix(".draft")
        draft.write_text(json.dumps({**self._scenario, "faults": faults}))
        draft.replace(self._file)

    def gpus(self) -> list[GpuState]:
        """By minor number, as the machine has them."""
        view = self.simulation.machine.read()
        return [view.state.gpus[uuid] for uuid in sorted(view.boards, key=lambda uuid: view.boards[uuid].minor)]

    def uuid(self, minor: int) -> str:
        boards = self.simulation.machine.read().boards.values()
        return next(board.uuid for board in boards if board.minor == minor)

    def daemons(self) -> list[int]:
        """The MPS processes of this machine."""
        places = self.path / "run" / "mps"
        names = os.listdir(places) if places.exists() else []
        return [one.pid for name in names for one in find_marked(f"{MARK}={places / name}")]

    def leftovers(self) -> list[str]:
        """What a claim left on the machine, in words; a partition only with its mode, where the mode was off."""
        found = []
        for minor, gpu in enumerate(self.gpus()):
            state = {
                "instances": [(one.profile, one.start) for one in gpu.instances],
                "mig": gpu.mig or gpu.mig_pending,
                "compute mode": gpu.compute_mode,
                "time slice": gpu.time_slice,
                "driver": "" if gpu.driver == "nvidia" else gpu.driver or "none",
                "override": gpu.override,
                "persistence": "" if gpu.persistence else "off",
            }
            found += [f"gpu-{minor} {name} {value}" for name, value in state.items() if value]
        found += [f"cdi {name}" for name in os.listdir(self.node.cdi_directory)]
        places = self.path / "run" / "mps"
        found += [f"mps {name}" for name in (os.listdir(places) if places.exists() else ()) if (places / name).is_dir()]
        found += [f"daemon {pid}" for pid in self.daemons()]
        found += [f"record {name}" for name in list_records(self.records)]
        return found

    async def wait_clean(self) -> None:
        """Nothing of any claim is left anywhere."""
        await self.until(lambda: not self.leftovers(), lambda: f"nothing is left: {self.leftovers()}")

    # The agent

    @asynccontextmanager
    async def agent(self, *flags: str, environ: Mapping[str, str] = {}, ready: bool = True) -> AsyncIterator[Agent]:
        """One more agent; the block ends it when it still runs, in good order."""
        self._agents += 1
        around = {"PYDRA_NVIDIA_SCENARIO": str(self._file), "PYDRA_NVIDIA_STATE": str(self.path), **POLL, **environ}
        backend = () if "--backend" in flags else ("--backend", "nvidia")
        options = (*backend, "--boot-id-file", str(self.boot_id_file), *flags)
        async with run_agent(self.node, *options, environ=around, name=f"agent-{self._agents}", forked=True) as agent:
            if ready:
                await agent.wait_ready()
                await agent.wait_log(lambda text: "is published" in text or "are published" in text)
            try:
                yield agent
            except BaseException as error:
                error.add_note(f"left: {self.leftovers()}; the agent said:\n{agent.log.read_text()[-6000:]}")
                raise
            if agent.process.returncode is None:
                assert await agent.stop() == 0

    async def command(self, *arguments: str) -> int:
        """The exit code of `pydra-nvidia` on this node, as its admin runs it."""
        own = {"PYDRA_NVIDIA_SCENARIO": str(self._file), "PYDRA_NVIDIA_STATE": str(self.path)}
        return await anyio.to_thread.run_sync(lambda: main(arguments, own))

    async def kill(self, agent: Agent) -> None:
        """kill -9 of the agent and of its backend, at once."""
        backend = self.backend_pids(agent)
        for pid in (agent.process.pid, *backend):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await agent.process.wait()
        await self.until(lambda: not any(map(_is_there, backend)), "its processes are gone")

    def backend_pids(self, agent: Agent) -> list[int]:
        """The processes of its backend."""
        found: list[int] = []
        for path in Path(f"/proc/{agent.process.pid}/task").glob("*/children"):
            with suppress(OSError):
                found += map(int, path.read_text().split())
        return found

    # The cluster

    async def create_configured(
        self, name: str, *requests: Mapping[str, Any], config: Mapping[str, Any] | None = None
    ) -> JsonObject:
        """A claim with a configuration of all its devices, or none."""
        opaque = {"driver": DRIVER, "parameters": {"apiVersion": GROUP_VERSION, **(config or {})}}
        devices = {"config": [{"opaque": opaque}]} if config is not None else {}
        return await self.create_claim(name, *requests, **devices)

    async def start(
        self, name: str, device: str, *, config: Mapping[str, Any] | None = None, profile: str = ""
    ) -> JsonObject:
        """A pod with a claim for one device: `gpu`, `mig`, `vfio`, or a device's name."""
        claim = await self.create_configured(name, request_for(device, profile), config=config)
        await self.create_pod(name)
        return claim

    async def taints(self) -> dict[str, dict[str, tuple[str, str]]]:
        """Value and effect, by device and key."""
        return {
            name: {taint["key"]: (taint.get("value", ""), taint["effect"]) for taint in device["taints"]}
            for name, device in (await self.devices()).items()
            if device.get("taints")
        }

    def health(self) -> dict[str, str]:
        """What the kubelet knows of the devices' health."""
        told = [step for step in self.steps if isinstance(step, HealthChanged)]
        return {device: health for step in told for _, device, health in step.devices}

    async def wait_taints(self, wanted: Mapping[str, Mapping[str, tuple[str, str]]]) -> None:
        """Exactly these taints, of all devices."""

        async def have() -> bool:
            return await self.taints() == wanted

        await self.until(have, f"the taints are {wanted}")

    async def wait_devices(self, names: Iterable[str]) -> None:
        """Exactly these devices."""
        wanted = set(names)

        async def are() -> bool:
            return set(await self.devices()) == wanted

        await self.until(are, f"the devices are {wanted}")


def _is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


MakeScene = Callable[..., AbstractAsyncContextManager[Scene]]


@asynccontextmanager
async def run_scene(*gpus: Mapping[str, Any], **scenario: Any) -> AsyncIterator[Scene]:
    steps: list[Step] = []
    async with run_node(steps.append) as node:
        scene = Scene(node, {"host": {"onlyGpus": True}, "gpus": gpus or TWO_H100, **scenario}, steps)
        await scene.create_classes(CLASSES)
        yield scene


@pytest.fixture
def make_scene() -> MakeScene:
    """A node over a machine with these groups of GPUs; the rest of the scenario by name."""
    return run_scene
