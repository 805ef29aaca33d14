"""`pydra dev`: the life of one pod on an embedded node, told as it happens.

Every step has a deadline. One that is missed ends the story with exit code 1, and says what was
seen instead.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import anyio

from pydra.errors import KubeError, NotFound
from pydra.kube.resources import (
    DEVICE_CLASSES,
    EVENTS,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    JsonObject,
)
from pydra_dev.cdi_specs import read_registry
from pydra_dev.kubelet.steps import Called, PodEnded, PodFailed, PodRunning, Registered, Step
from pydra_dev.narration import (
    Passage,
    describe_allocation,
    describe_cdi_spec,
    describe_hints,
    describe_slices,
    describe_step,
    render,
)
from pydra_dev.node import AgentProcess, EmbeddedNode, run_agent, run_node, scenario_environment
from pydra_dev.samples import NAMESPACE, POD, read_sample

STEP_DEADLINE = 30.0
LOOK_INTERVAL = 0.02
"""Seconds between two looks at the API server or at a directory while the story waits."""
INTERRUPTED = 130
POD_ATTEMPTS = 4
"""How often the sample pod may fail before nobody expects it to start or end any more."""
NEVER_SERVED = ("BackendContract", "BackendNotServed")
"""The reasons of Events after which no driver registers."""
RESOURCES = {one.kind: one for one in (DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES, PODS)}
FoundT = TypeVar("FoundT")
StepT = TypeVar("StepT", bound=Step)


class StoryError(Exception):
    """A step did not happen; the text says which one."""


def run(
    *, backend: str = "sim", scenario: str | None = None, once: bool = False, deadline: float = STEP_DEADLINE
) -> int:
    """Tell the story on standard output; the exit code. Without `once` it goes on until SIGINT or SIGTERM."""
    scenario_environment(backend, scenario, "")  # a wrong one is said before anything starts
    return anyio.run(lambda: tell(Story(backend, scenario, once=once, deadline=deadline)))


async def tell(story: Story) -> int:
    """Tell a story until it, or a signal, ends it; the exit code."""

    async def end_on_signal() -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for _ in signals:
                story.end()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(end_on_signal, name="signals")
        result = await story.tell()
        tasks.cancel_scope.cancel()
    return result


class Story:
    """One telling. `write` gets a passage at a time, `deadline` is in seconds and for each step."""

    def __init__(
        self,
        backend: str,
        scenario: str | None = None,
        *,
        once: bool,
        deadline: float = STEP_DEADLINE,
        write: Callable[[str], None] = lambda text: print(text, flush=True),  # noqa: T201 - this is what it is for
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backend = backend
        self._scenario = scenario
        self._once = once
        self._deadline = deadline
        self._write = write
        self._clock = clock
        self._start = clock()
        self._steps: list[Step] = []
        self._scope = anyio.CancelScope()
        self._agent: AgentProcess | None = None
        self._cdi_directory = ""

    def end(self) -> None:
        """End it now, in order: the agent first."""
        self._scope.cancel()

    async def tell(self) -> int:
        """From an empty node to the end; the exit code."""
        with self._scope:
            async with run_node(self._on_step) as node:
                self._cdi_directory = node.cdi_directory
                self._say(Passage(headline=f"ready: API server {node.server.url}, kubelet below {node.settings.root}"))
                environment = scenario_environment(self._backend, self._scenario, node.root)
                async with run_agent(node, self._backend, environment) as agent:
                    self._agent = agent
                    return await self._tell_with(node, agent)
        return INTERRUPTED if self._once else 0

    async def _tell_with(self, node: EmbeddedNode, agent: AgentProcess) -> int:
        try:
            await self._tell_of_start(node, agent)
            await (self._tell_of_end(node, agent) if self._once else self._stay(node, agent))
        except (StoryError, KubeError) as error:
            self._say(Passage(headline=f"FAILED: {error}", details=tuple(await self._explain(node, agent))))
            return 1
        return 0

    async def _tell_of_start(self, node: EmbeddedNode, agent: AgentProcess) -> None:
        self._say(Passage(headline=f"started: pydra-agent --backend {self._backend}, process {agent.pid}"))
        registered = await self._wait("the driver registers with the kubelet", lambda: self._find_registered(node))
        driver = registered.plugin.driver
        slices = await self._wait("the driver publishes its devices", lambda: _find_slices(node, driver))
        self._say(describe_slices(slices))
        sample = read_sample(self._backend, driver)
        for body in sample:
            resource, metadata = RESOURCES[body["kind"]], body["metadata"]
            await node.client.create(resource, body, namespace=metadata.get("namespace", ""))
            self._say(Passage(headline=f"applied: {body['kind']} {metadata['name']}"))
        claim = await self._wait("the claim is allocated", lambda: _find_claim(node))
        self._say(describe_allocation(claim))
        await self._wait_step(Called, "the claim is prepared", lambda call: not call.error)
        await self._wait_step(PodRunning, "the pod runs")

    async def _tell_of_end(self, node: EmbeddedNode, agent: AgentProcess) -> None:
        await node.client.delete(PODS, POD, namespace=NAMESPACE)
        self._say(Passage(headline=f"deleted: pod {NAMESPACE}/{POD}"))
        await self._wait_step(PodEnded, "the pod ends")
        await self._wait("the CDI spec is removed", lambda: _find_nothing(node.cdi_directory))
        await self._wait("the claim is deleted", lambda: _find_no_claims(node))
        self._say(Passage(headline="clean: no CDI spec and no claim is left"))
        self._agent = None  # it may end now
        if status := await agent.stop():
            raise StoryError(f"the agent ended with status {status} when told to stop")
        self._say(Passage(headline="stopped: pydra-agent"))

    async def _stay(self, node: EmbeddedNode, agent: AgentProcess) -> None:
        self._write(describe_hints(node.root, str(node.server.kubeconfig), agent.http_address, agent.pid))
        while True:
            self._refuse_dead_agent()
            await anyio.sleep(1)

    def _on_step(self, step: Step) -> None:
        self._steps.append(step)
        if passage := describe_step(step):
            self._say(passage)
        if isinstance(step, Called) and step.cdi_ids:
            for path, content in read_specs(self._cdi_directory, step.cdi_ids):
                self._say(describe_cdi_spec(path, content))

    def _say(self, passage: Passage) -> None:
        self._write(render(passage, self._clock() - self._start))

    async def _find_registered(self, node: EmbeddedNode) -> Registered | None:
        """The registration; raises StoryError when the agent has said that there will be none."""
        if found := next((step for step in self._steps if isinstance(step, Registered)), None):
            return found
        for event in (await node.client.list(EVENTS)).items:
            if event.get("reason") in NEVER_SERVED:
                raise StoryError(f"the agent does not serve the backend; the reason is below ({event['reason']})")
        return None

    async def _wait_step(self, kind: type[StepT], what: str, wanted: Callable[[StepT], bool] = lambda _: True) -> StepT:
        async def look() -> StepT | None:
            return next((step for step in self._steps if isinstance(step, kind) and wanted(step)), None)

        return await self._wait(what, look)

    async def _wait(self, what: str, look: Callable[[], Awaitable[FoundT | None]]) -> FoundT:
        """What `look` finds, as soon as it finds something; raises StoryError."""
        with anyio.move_on_after(self._deadline):
            while (found := await look()) is None:
                self._refuse_dead_agent()
                self._refuse_failing_pod()
                await anyio.sleep(LOOK_INTERVAL)
            return found
        raise StoryError(f"waited {self._deadline:g} s in vain: {what}")

    def _refuse_dead_agent(self) -> None:
        if self._agent is not None and self._agent.returncode is not None:
            raise StoryError(f"the agent ended with status {self._agent.returncode}")

    def _refuse_failing_pod(self) -> None:
        failures = [step for step in self._steps if isinstance(step, PodFailed)]
        if len(failures) >= POD_ATTEMPTS:
            raise StoryError(f"the pod failed {len(failures)} times, at last with {failures[-1].reason}")

    async def _explain(self, node: EmbeddedNode, agent: AgentProcess) -> list[str]:
        """What the cluster and the agent say themselves."""
        try:
            events = (await node.client.list(EVENTS)).items
        except KubeError as error:
            events = ()
            self._say(Passage(headline=f"no Events: {error}"))
        told = [f"Event {one.get('reason', '')}: {one.get('note') or one.get('message', '')}" for one in events]
        return [*told, "the agent's last words:", *(f"  {line}" for line in agent.log_tail().splitlines())]


async def _find_slices(node: EmbeddedNode, driver: str) -> tuple[JsonObject, ...] | None:
    """The driver's slices once its pool is complete and has devices."""
    found = (await node.client.list(RESOURCE_SLICES, field_selector=f"spec.driver={driver}")).items
    complete = found and len(found) == found[0]["spec"]["pool"]["resourceSliceCount"]
    return found if complete and any(one["spec"].get("devices") for one in found) else None


async def _find_claim(node: EmbeddedNode) -> JsonObject | None:
    """The pod's claim once it is allocated."""
    pod = await node.client.get(PODS, POD, namespace=NAMESPACE)
    for status in pod.get("status", {}).get("resourceClaimStatuses") or ():
        try:
            claim = await node.client.get(RESOURCE_CLAIMS, status["resourceClaimName"], namespace=NAMESPACE)
        except NotFound:
            continue
        if claim.get("status", {}).get("allocation"):
            return claim
    return None


def read_specs(directory: str, cdi_ids: Sequence[str]) -> tuple[tuple[str, bytes], ...]:
    """The CDI files that have these devices, and what is in them."""
    registry = read_registry([directory])
    files = sorted({registry.devices[one].file for one in cdi_ids if one in registry.devices})
    return tuple((file, Path(file).read_bytes()) for file in files)


async def _find_nothing(directory: str) -> bool | None:
    return None if os.listdir(directory) else True


async def _find_no_claims(node: EmbeddedNode) -> bool | None:
    return None if (await node.client.list(RESOURCE_CLAIMS)).items else True
