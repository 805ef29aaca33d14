"""A node as its users see it: claims, pods and Events, with the real agent over a simulated machine."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
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
    DEVICE_CLASSES,
    EVENTS,
    NAMESPACES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    JsonObject,
    Resource,
)
from pydra_dev.container_runtime.cdi_injection import OciSpec
from pydra_dev.kubelet.observations import Called, ContainerCreated, PodRunning, Step
from pydra_dev.node import EmbeddedNode, run_node
from pydra_nvidia import DEVICE_CLASSES as CLASSES
from pydra_nvidia import DRIVER
from pydra_nvidia.claim_config import GROUP_VERSION
from pydra_nvidia.simulation.machine_state import GpuState
from pydra_nvidia.simulation.simulation import Simulation, open_simulation
from tests.integration.agent.process import Agent, run_agent

DEADLINE = 60.0
NAMESPACE = "default"


class State(NamedTuple):
    """What claims change: traces on the machine, and which devices are published."""

    traces: dict[str, Any]
    devices: frozenset[str]


class Scene:
    """The node, its agent, and the machine below it."""

    def __init__(self, node: EmbeddedNode, agent: Agent, simulation: Simulation, steps: list[Step]) -> None:
        self.node = node
        self.agent = agent
        self.inject = simulation.inject
        self.machine = simulation.machine
        self.steps = steps
        self._uids: dict[str, str] = {}
        self.first = State({}, frozenset())

    # What users do

    async def claim(self, name: str, *requests: JsonObject, template: bool = False, **devices: Any) -> JsonObject:
        """A ResourceClaim, or a template; `devices` are further fields of `spec.devices`."""
        spec = {"devices": {"requests": list(requests), **devices}}
        if template:
            body = {"metadata": {"name": name}, "spec": {"spec": spec}}
            return await self.node.client.create(RESOURCE_CLAIM_TEMPLATES, body, namespace=NAMESPACE)
        body = {"metadata": {"name": name}, "spec": spec}
        made = await self.node.client.create(RESOURCE_CLAIMS, body, namespace=NAMESPACE)
        self._uids[name] = made["metadata"]["uid"]
        return made

    async def pod(
        self,
        name: str,
        claim: str = "",
        *,
        template: str = "",
        containers: Mapping[str, Sequence[JsonObject]] | None = None,
    ) -> None:
        """A pod with one claim, the one of its name by default, for its container `main`."""
        source = {"resourceClaimTemplateName": template} if template else {"resourceClaimName": claim or name}
        uses = {"main": [{"name": "it"}]} if containers is None else containers
        spec = {
            "restartPolicy": "Never",
            "resourceClaims": [{"name": "it", **source}],
            "containers": [
                {"name": key, "image": "busybox", "command": ["sleep", "infinity"], "resources": {"claims": list(used)}}
                for key, used in uses.items()
            ],
        }
        await self.node.client.create(PODS, {"metadata": {"name": name}, "spec": spec}, namespace=NAMESPACE)

    async def ask(self, name: str, *requests: JsonObject, **devices: Any) -> None:
        """A claim and a pod with it."""
        await self.claim(name, *requests, **devices)
        await self.pod(name)

    async def run(self, name: str, *requests: JsonObject, **devices: Any) -> list[str]:
        """The devices that the claim of a pod that runs has."""
        await self.ask(name, *requests, **devices)
        await self.running(name)
        return await self.given(name)

    async def leave(self, *names: str) -> None:
        """Pods and the claims of the same names are deleted, and gone."""
        await self.drop(*names)
        for name in names:
            await self.node.client.delete(RESOURCE_CLAIMS, name, namespace=NAMESPACE)

    async def delete(self, pod: str) -> None:
        """The pod is to go; whether it can is another matter."""
        await self.node.client.delete(PODS, pod, namespace=NAMESPACE)

    async def allocate(self, claim: str, device: str) -> None:
        """What a scheduler decided that knew less: the claim has this device."""
        found = await self.node.client.get(RESOURCE_CLAIMS, claim, namespace=NAMESPACE)
        pool = self.node.settings.node_name
        result = {"request": "it", "driver": DRIVER, "pool": pool, "device": device}
        found["status"] = {"allocation": {"devices": {"results": [result]}}}
        await self.node.client.replace(RESOURCE_CLAIMS, claim, found, namespace=NAMESPACE, subresource="status")

    async def drop(self, *pods: str) -> None:
        """Pods are deleted, and gone; the claims of their templates go with them."""
        for pod in pods:
            await self.delete(pod)
        for pod in pods:
            await self.until(lambda pod=pod: self._is_gone(pod), f"pod {pod} is gone")

    # What they see

    async def given(self, claim: str) -> list[str]:
        """The devices of a claim."""
        return [one["device"] for one in await self.results(claim)]

    async def results(self, claim: str) -> list[JsonObject]:
        """The results of its allocation."""
        found = await self.node.client.get(RESOURCE_CLAIMS, claim, namespace=NAMESPACE)
        results: list[JsonObject] = found["status"]["allocation"]["devices"]["results"]
        return results

    async def devices(self) -> dict[str, JsonObject]:
        """All that is published, by name."""
        slices = (await self.node.client.list(RESOURCE_SLICES)).items
        return {device["name"]: device for one in slices for device in one["spec"].get("devices") or ()}

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

    async def running(self, *pods: str) -> None:
        """These pods run."""
        for pod in pods:
            await self.until(
                _ready(lambda pod=pod: self.runs(pod)), lambda pod=pod: f"{pod} runs: {self.errors(pod)[-1:]}"
            )

    def runs(self, pod: str) -> bool:
        """Whether the pod runs or has run."""
        return PodRunning(pod=f"{NAMESPACE}/{pod}") in self.steps

    async def until_one_runs(self, *pods: str) -> None:
        """At least one of these pods runs."""
        await self.until(_ready(lambda: any(map(self.runs, pods))), f"one of {pods} runs")

    async def pending(self, pod: str) -> str:
        """Why the scheduler leaves the pod alone."""
        said: list[str] = []

        async def look() -> bool:
            found = await self.node.client.get(PODS, pod, namespace=NAMESPACE)
            conditions = found["status"].get("conditions") or ()
            said[:] = [
                one["message"] for one in conditions if one["type"] == "PodScheduled" and one["status"] != "True"
            ]
            return bool(said)

        await self.until(look, f"{pod} is pending")
        return said[0]

    def container(self, pod: str, name: str = "main") -> OciSpec:
        """What the runtime made the container with."""
        created = [step for step in self.steps if isinstance(step, ContainerCreated)]
        return next(one.after for one in created if one.pod == f"{NAMESPACE}/{pod}" and one.container == name)

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

    def nodes(self, pod: str, name: str = "main") -> list[str]:
        """The GPUs whose device nodes the container has."""
        found = (device.path for device in self.container(pod, name).devices)
        return sorted(path for path in found if re.fullmatch(r"/dev/nvidia\d+", path))

    def errors(self, claim: str) -> list[str]:
        """What the kubelet got for it."""
        calls = [step for step in self.steps if isinstance(step, Called)]
        return [one.error for one in calls if one.error and f"{NAMESPACE}/{claim}" in one.claims]

    async def event(self, claim: str, reason: str, pattern: str) -> str:
        """The Event on the claim that says so; whatever it says, it is not a traceback."""
        notes: list[str] = []

        async def look() -> bool:
            found = (await self.node.client.list(EVENTS, namespace=NAMESPACE)).items
            about = [one for one in found if (one.get("regarding") or {}).get("uid") == self._uids[claim]]
            notes[:] = [f"{one['reason']}: {one.get('note')}" for one in about]
            return any(re.match(rf"({reason}): .*({pattern})", note, re.DOTALL) for note in notes)

        await self.until(look, lambda: f"{reason} on {claim} says {pattern}: {notes}, {self.errors(claim)[-1:]}")
        text = "\n".join((*notes, *self.errors(claim)))
        assert not re.search(r"Traceback|File \"|\.py\b|Error\(|object at 0x", text), text
        return next(note for note in notes if re.match(rf"({reason}): .*({pattern})", note, re.DOTALL))

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
            _ready(lambda: self.traces() == wanted),
            lambda: "\n".join(
                f"{name}: {value} instead of {wanted[name]}"
                for name, value in self.traces().items()
                if value != wanted[name]
            ),
        )

    async def until(self, holds: Callable[[], Awaitable[bool]], what: str | Callable[[], str]) -> None:
        """It holds before the deadline; else `what` does not."""
        with anyio.move_on_after(DEADLINE):
            while not await holds():  # noqa: ASYNC110 - what it waits for is in files and in other processes
                await anyio.sleep(0.05)  # to ask the API server costs a tenth of that
            return
        pytest.fail(f"not in time: {what if isinstance(what, str) else what()}")

    async def _is_gone(self, pod: str) -> bool:
        return all(one["metadata"]["name"] != pod for one in (await self.node.client.list(PODS)).items)


def _ready(look: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    async def holds() -> bool:
        return look()

    return holds


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
            for name, spec in CLASSES.items():
                await node.client.create(DEVICE_CLASSES, {"metadata": {"name": name}, "spec": dict(spec)})
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
            draft.write_text(json.dumps({"gpus": self._gpus, **scenario}))
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
