"""A node as its users see it: claims, pods and Events, with the real agent over a simulated machine."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import anyio.to_thread
import msgspec
import pytest

from node_thread import NodeThread
from pydra.checkpoint.record_files import RECORD, UNDO
from pydra.errors import NotFound
from pydra.kube.api_resources import (
    NAMESPACES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    JsonObject,
    Resource,
)
from pydra_dev.kubelet.observations import Step
from pydra_dev.node import EmbeddedNode, run_node
from pydra_nvidia import DEVICE_CLASSES as CLASSES
from pydra_nvidia import DRIVER
from pydra_nvidia.claim_config import GROUP_VERSION
from pydra_nvidia.simulation.machine_state import GpuState
from pydra_nvidia.simulation.simulation import Simulation, open_simulation
from tests.integration.agent.node_user import NAMESPACE, NodeUser
from tests.integration.agent.process import Agent, run_agent


class State(NamedTuple):
    """What claims change: traces on the machine, and which devices are published."""

    traces: dict[str, Any]
    devices: frozenset[str]


class Scene(NodeUser):
    """The node, its agent, and the machine below it."""

    def __init__(self, node: EmbeddedNode, agent: Agent, simulation: Simulation, steps: list[Step]) -> None:
        super().__init__(node, steps)
        self.agent = agent
        self.inject = simulation.inject
        self.machine = simulation.machine
        self.first = State({}, frozenset())

    # What users do

    async def run(self, name: str, *requests: JsonObject, **devices: Any) -> list[str]:
        """The devices that the claim of a pod that runs has."""
        await self.create_both(name, *requests, **devices)
        await self.wait_running(name)
        return await self.allocated(name)

    async def allocate(self, claim: str, device: str) -> None:
        """What a scheduler decided that knew less: the claim has this device."""
        found = await self.node.client.get(RESOURCE_CLAIMS, claim, namespace=NAMESPACE)
        pool = self.node.settings.node_name
        result = {"request": "it", "driver": DRIVER, "pool": pool, "device": device}
        found["status"] = {"allocation": {"devices": {"results": [result]}}}
        await self.node.client.replace(RESOURCE_CLAIMS, claim, found, namespace=NAMESPACE, subresource="status")

    # What they see

    async def published(self, *devices: str, gone: bool = False) -> None:
        """These devices are published, or none of them."""
        found: dict[str, Any] = {}

        async def look() -> bool:
            found.clear()
            found.update(await self.devices())
            return not found.keys() & set(devices) if gone else found.keys() >= set(devices)

        await self.until(look, lambda: f"{devices} are {'gone' if gone else 'published'}: {sorted(found)}")

    async def tainted(self, *devices: str) -> None:
        """These devices have taints, and no others."""

        found: dict[str, Any] = {}

        async def look() -> bool:
            found.clear()
            found.update({name: one["taints"] for name, one in (await self.devices()).items() if one.get("taints")})
            return found.keys() == set(devices)

        await self.until(look, lambda: f"{devices} are tainted: {found}")

    async def lost(self, device: str) -> None:
        """The agent has found that this GPU is lost: a reset after that ends what it knows of the GPU's errors."""

        async def look() -> bool:
            taints = (await self.devices())[device].get("taints", ())
            return any(taint["key"] == "gpu.nvidia.com/gpu-lost" for taint in taints)

        await self.until(look, f"{device} is known to be lost")

    async def until_one_runs(self, *pods: str) -> None:
        """At least one of these pods runs."""
        await self.until(lambda: any(map(self.runs, pods)), f"one of {pods} runs")

    async def wait_event(self, claim: str, reason: str, pattern: str) -> str:
        """The Event on the claim that says so; whatever it says, it is not a traceback."""
        note = await super().wait_event(claim, reason, pattern)
        text = "\n".join((note, *self.errors(claim)))
        assert not re.search(r"Traceback|File \"|\.py\b|Error\(|object at 0x", text), text
        return note

    def metadata(self, pod: str) -> dict[str, JsonObject]:
        """The attributes in the metadata files of the pod's container, by request; each has one device."""
        found = {}
        for mount in self.container(pod).mounts:
            _, is_metadata, path = mount.container_path.partition("/dra-device-attributes/resourceclaimtemplates/it/")
            if is_metadata:
                document, _ = json.JSONDecoder().raw_decode(Path(mount.host_path).read_text())
                found[path.removesuffix(f"/{DRIVER}-metadata.json")] = document["requests"][0]["devices"][0][
                    "attributes"
                ]
        return found

    def nodes(self, pod: str, name: str = "") -> list[str]:
        """The GPUs whose device nodes the container has."""
        found = (device.path for device in self.container(pod, name).devices)
        return sorted(path for path in found if re.fullmatch(r"/dev/nvidia\d+", path))

    # The machine

    def gpus(self) -> list[GpuState]:
        """By minor number."""
        view = self.machine.read()
        return [view.state.gpus[uuid] for uuid in sorted(view.boards, key=lambda uuid: view.boards[uuid].minor)]

    def uuid(self, minor: int) -> str:
        """Of the GPU."""
        return next(one.uuid for one in self.machine.read().boards.values() if one.minor == minor)

    def address(self, minor: int) -> str:
        """Of the GPU on the PCI bus."""
        return next(one.address for one in self.machine.read().boards.values() if one.minor == minor)

    def partitions(self, minor: int) -> list[tuple[int, int]]:
        """Profile and first memory slice of each on the GPU."""
        return sorted((one.profile, one.start) for one in self.gpus()[minor].instances)

    def traces(self) -> dict[str, Any]:
        """All that a claim can leave: the machine's state, CDI specs, daemons, the agent's record."""
        root, view = Path(self.node.root), self.machine.read()
        own = ("processes", "counters", "gauges", "recovery", "lost", "epoch")
        gpus = {
            board.minor: {
                name: value for name, value in msgspec.to_builtins(view.state.gpus[uuid]).items() if name not in own
            }
            for uuid, board in view.boards.items()
        }
        run = root / "hardware" / "run"
        return {
            "gpus": gpus,
            "fabric": view.state.fabric,
            "daemons": sorted(path.name for path in (run / "mps").glob("*/")),
            "cdi": sorted(path.name for path in Path(self.node.cdi_directory).iterdir()),
            "records": sorted(
                path.name for path in Path(root, "run", DRIVER, "claims").rglob("*") if path.suffix in (RECORD, UNDO)
            ),
        }

    async def look(self) -> State:
        """What is to be there again at the end."""
        return State(self.traces(), frozenset(await self.devices()))

    async def clear(self) -> None:
        """All pods and claims are deleted, and everything is as at first."""
        for kind in (PODS, RESOURCE_CLAIMS, RESOURCE_CLAIM_TEMPLATES):

            async def none(kind: Resource = kind) -> bool:
                return not (await self.node.client.list(kind)).items

            for found in (await self.node.client.list(kind)).items:
                with suppress(NotFound):  # the claim of a template, which goes with its pod
                    await self.node.client.delete(kind, found["metadata"]["name"], namespace=NAMESPACE)
            await self.until(none, f"all {kind.plural} are gone")
        await self.undone()
        await self.tainted()
        await self.until(self._is_published_as_at_first, "the devices are published as at first")

    async def _is_published_as_at_first(self) -> bool:
        return set(await self.devices()) == self.first.devices

    async def undone(self, since: Mapping[str, Any] | None = None) -> None:
        """Everything is as at first, or as it was then."""
        wanted = since or self.first.traces
        await self.until(
            lambda: self.traces() == wanted,
            lambda: "\n".join(
                f"{name}: {value} instead of {wanted[name]}"
                for name, value in self.traces().items()
                if value != wanted[name]
            ),
        )


def request(
    kind: str, cel: str = "", *, name: str = "it", profile: str = "", device: str = "", **exactly: Any
) -> JsonObject:
    """For the class of `kind`: gpu, mig or vfio; devices that satisfy `cel`, of a MIG profile, on one GPU."""
    conditions = [cel, f"device.attributes['{DRIVER}'].profile == '{profile}'" if profile else "", device]
    selectors = [{"cel": {"expression": one}} for one in conditions if one]
    classes = {"gpu": "gpu.nvidia.com", "mig": "mig.nvidia.com", "vfio": "vfio.gpu.nvidia.com"}
    return {"name": name, "exactly": {"deviceClassName": classes[kind], "selectors": selectors, **exactly}}


def config(kind: str, *requests: str, **fields: Any) -> JsonObject:
    """An opaque config of the plugin's `kind`, for requests or all of them."""
    parameters = {"apiVersion": GROUP_VERSION, "kind": kind, **fields}
    return {"requests": list(requests), "opaque": {"driver": DRIVER, "parameters": parameters}}


class _Stage:
    """A machine and its agent at work, for the tests that want them so, one after another."""

    def __init__(
        self, wanted: str, gpus: str | list[JsonObject], scenario: JsonObject, settings: Mapping[str, Any]
    ) -> None:
        self.wanted = wanted
        self.steps: list[Step] = []
        self._gpus = gpus
        self._scenario = scenario
        self._settings = settings
        self._thread = NodeThread()
        try:
            self._node, self._agent, self._simulation = self._thread.enter(self._run())
        except BaseException:
            self._thread.close()
            raise
        self._node = self._thread.seen_from_outside(self._node)
        self._first: State | None = None

    @asynccontextmanager
    async def _run(self) -> AsyncIterator[tuple[EmbeddedNode, Agent, Simulation]]:
        async with run_node(self._report) as node:
            location = self._gpus if isinstance(self._gpus, str) else f"{node.root}/scenario.json"
            self._write(location, self._scenario)
            simulation = open_simulation(location, f"{node.root}/hardware")
            environ = {"PYDRA_NVIDIA_SCENARIO": location, "PYDRA_NVIDIA_STATE": f"{node.root}/hardware"}
            environ |= {"PYDRA_NVIDIA_POLL_PERIOD": "0.05", "PYDRA_MEASURE_PERIOD": "0.5", "PYDRA_HEALTHY_AFTER": "0.3"}
            environ |= {f"PYDRA_{name.upper()}": str(value).lower() for name, value in self._settings.items()}
            await NodeUser(node, self.steps).create_classes(CLASSES)
            labels = {"resource.kubernetes.io/admin-access": "true"}
            await node.client.patch(NAMESPACES, NAMESPACE, {"metadata": {"labels": labels}})
            async with run_agent(node, "--backend", "nvidia", environ=environ, forked=True) as agent:
                await agent.wait_ready()
                await agent.wait_log(lambda text: "is published" in text)
                yield node, agent, simulation
                assert await agent.stop() == 0

    @asynccontextmanager
    async def scene(self, scenario: JsonObject) -> AsyncIterator[Scene]:
        """The stage for one test, with these faults; afterwards it is as it was for the first one."""
        if scenario != self._scenario:
            shutil.rmtree(f"{self._node.root}/hardware/faults", ignore_errors=True)
            self._scenario = scenario
            self._write(self._simulation.machine.scenario.path, scenario)
        self.steps = []
        said = len(self._agent.messages())
        scene = Scene(self._node, self._agent, self._simulation, self.steps)
        self._first = self._first or await scene.look()
        scene.first = self._first
        yield scene
        assert self._agent.process.returncode is None
        await scene.clear()
        await self._agent.wait_ready()
        if "Traceback" in (new := self._agent.messages()[said:]):
            pytest.fail(new)

    def _report(self, step: Step) -> None:
        self.steps.append(step)

    def _write(self, location: str | Path, scenario: JsonObject) -> None:
        if not isinstance(self._gpus, str):
            draft = Path(f"{location}.draft")
            draft.write_text(json.dumps({"host": {"onlyGpus": True}, "gpus": self._gpus, **scenario}))
            draft.replace(location)

    def close(self) -> None:
        """The agent stops with 0, and all is gone."""
        self._thread.close()


Stage = Callable[..., AbstractAsyncContextManager[Scene]]


@pytest.fixture
def ask_for() -> Callable[..., JsonObject]:
    return request


@pytest.fixture
def configure() -> Callable[..., JsonObject]:
    return config


@pytest.fixture(scope="module")
def _kept() -> Iterator[list[_Stage]]:
    kept: list[_Stage] = []
    yield kept
    for one in kept:
        one.close()


@pytest.fixture
def stage(_kept: list[_Stage]) -> Stage:
    """`stage("hgx-h100", dynamic_mig=True)`: a bundled scenario, or a list of groups of GPUs, and settings.

    `scenario` are its other parts; `rescan` is after how many seconds the backend looks at the hardware unasked;
    `metadata` switches on metadata files. Tests of a module that ask for the same one after another, `faults` apart,
    share node and agent. At the end of each the agent is the same process, ready, and nothing is left of the claims; at
    the end of the last it stops with 0.
    """

    @asynccontextmanager
    async def make(
        gpus: str | list[JsonObject],
        *,
        scenario: Mapping[str, Any] = {},
        rescan: float = 60.0,
        metadata: bool = False,
        **settings: Any,
    ) -> AsyncIterator[Scene]:
        settings = {f"nvidia_{name}": value for name, value in settings.items()}
        settings |= {"rescan_period": rescan, "device_metadata": metadata}
        wanted = json.dumps([gpus, {**scenario, "faults": ()}, settings])
        if _kept and _kept[0].wanted != wanted:
            await anyio.to_thread.run_sync(_kept.pop().close)
        if not _kept:
            _kept.append(await anyio.to_thread.run_sync(_Stage, wanted, gpus, dict(scenario), settings))
        try:
            async with _kept[0].scene(dict(scenario)) as scene:
                yield scene
        except BaseException:
            with suppress(Exception):  # its own failure is not what the test fails with
                _kept.pop().close()
            raise

    return make
