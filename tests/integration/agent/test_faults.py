"""Every fault of simulated hardware, met by the real agent: one claim pays, in words, and nobody else does."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from pydra.kube.resources import DEVICE_CLASSES, EVENTS, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, JsonObject
from pydra_dev.kubelet.steps import Called, PodRunning, Step
from pydra_dev.node import EmbeddedNode, run_node
from tests.integration.agent.process import Agent, run_agent

DEADLINE = 30.0
VICTIM, OTHER = "victim", "other"


class Scene:
    """A node with the agent and the sim on it, and two claims: the scenario's faults are meant for one of them."""

    def __init__(self, node: EmbeddedNode, agent: Agent, steps: list[Step]) -> None:
        self.node = node
        self.agent = agent
        self.steps = steps

    async def start(self, name: str) -> None:
        """A claim for an accelerator, and a pod that needs it."""
        request = {"name": "accelerator", "exactly": {"deviceClassName": "sim"}}
        claim = {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}}
        await self.node.client.create(RESOURCE_CLAIMS, claim, namespace="default")
        container = {
            "name": "main",
            "image": "busybox",
            "command": ["sleep", "infinity"],
            "resources": {"claims": [{"name": "accelerator"}]},
        }
        spec = {
            "restartPolicy": "Never",
            "resourceClaims": [{"name": "accelerator", "resourceClaimName": name}],
            "containers": [container],
        }
        await self.node.client.create(PODS, {"metadata": {"name": name}, "spec": spec}, namespace="default")

    async def wait_running(self, name: str) -> None:
        await wait(lambda: any(isinstance(one, PodRunning) and one.pod == f"default/{name}" for one in self.steps))

    def errors(self, name: str) -> list[str]:
        """What the kubelet was told of this claim."""
        calls = [step for step in self.steps if isinstance(step, Called)]
        return [one.error for one in calls if one.error and any(name in claim for claim in one.claims)]

    async def wait_error(self, pattern: str) -> None:
        """The kubelet is told this of the victim, within the deadline."""
        await wait(lambda: any(re.search(pattern, error) for error in self.errors(VICTIM)))

    async def wait_event(self, reason: str, pattern: str) -> JsonObject:
        """The Event on the victim's claim."""
        with anyio.fail_after(DEADLINE):
            while True:
                for event in (await self.node.client.list(EVENTS, namespace="default")).items:
                    about = event.get("regarding") or event.get("involvedObject") or {}
                    note = event.get("note") or event.get("message") or ""
                    if about.get("kind") == "ResourceClaim" and event["reason"] == reason and re.search(pattern, note):
                        assert about["name"] == VICTIM, note
                        return event
                await anyio.sleep(0.02)

    async def metric(self, series: str) -> float:
        """One number of /metrics."""
        _, text = await self.agent.get("/metrics")
        found = re.search(rf"^{re.escape(series)} (\S+)$", text, re.MULTILINE)
        assert found is not None, series
        return float(found[1])

    async def taints(self) -> list[tuple[str, JsonObject]]:
        """Published devices that have one."""
        slices = (await self.node.client.list(RESOURCE_SLICES)).items
        devices = [device for one in slices for device in one["spec"].get("devices", ())]
        return [(device["name"], taint) for device in devices for taint in device.get("taints") or ()]


async def wait(holds: Callable[[], bool]) -> None:
    with anyio.fail_after(DEADLINE):
        while not holds():
            await anyio.sleep(0.02)


@asynccontextmanager
async def staged(*faults: dict[str, Any], flags: tuple[str, ...] = ()) -> AsyncIterator[Scene]:
    """The agent is up, its devices are published; at the end it is still the same process, alive and ready."""
    steps: list[Step] = []
    async with run_node(steps.append) as node:
        scenario = Path(node.root, "scenario.yaml")
        scenario.write_bytes(msgspec.yaml.encode({"faults": [{"claim": VICTIM, **fault} for fault in faults]}))
        environ = {"PYDRA_SIM_SCENARIO": str(scenario)}
        async with run_agent(node, "--backend", "sim", *flags, environ=environ) as agent:
            await agent.wait_ready()
            await agent.wait_log(lambda text: "is published" in text)
            selector = {"cel": {"expression": "device.driver == 'sim.pydra.dev'"}}
            device_class = {"metadata": {"name": "sim"}, "spec": {"selectors": [selector]}}
            await node.client.create(DEVICE_CLASSES, device_class)
            scene = Scene(node, agent, steps)
            yield scene
            assert agent.process.returncode is None
            await agent.wait_ready()
            assert await agent.stop() == 0


@pytest.mark.parametrize(
    ("fault", "told", "reason"),
    [
        pytest.param({"do": "raise"}, "prepare failed: RuntimeError: a simulated fault", "BackendFailed", id="raise"),
        pytest.param({"do": "refuse", "message": "not today"}, "not today", "ClaimFailed", id="refuse"),
        pytest.param({"do": "refuse-forever", "message": "no"}, "no", "ClaimFailedTerminally", id="refuse-forever"),
        pytest.param(
            {"do": "garbage"}, r"prepare\[0\] is a str, not a pydra.PreparedDevice", "BackendContract", id="x"
        ),
        pytest.param({"do": "unplug"}, "no device accel-0, or it was unplugged", "UnknownDevice", id="unplug"),
        pytest.param(
            {"do": "slow", "seconds": 60},
            r"prepare did not end within (2|1\.\d+) s",
            "BackendTimeout",
            id="slower than allowed",
        ),
    ],
)
async def test_a_fault_that_leaves_the_process_alive_costs_one_claim_and_no_restart(
    fault: dict[str, Any], told: str, reason: str
) -> None:
    async with staged(fault, flags=("--prepare-deadline", "2")) as scene:
        await scene.start(VICTIM)
        await scene.start(OTHER)
        await scene.wait_error(told)
        await scene.wait_event(reason, told)
        await scene.wait_running(OTHER)
        assert scene.errors(OTHER) == []
        assert await scene.metric('pydra_backend_restarts_total{backend="sim"}') == 0


@pytest.mark.parametrize(
    ("effect", "told", "signal"),
    [
        pytest.param("segfault", r"died of SIGSEGV at string_at", "SIGSEGV", id="segfault"),
        pytest.param("abort", r"died of SIGABRT at <lambda>", "SIGABRT", id="abort"),
        pytest.param("exit", r"exited with status 3", "exit", id="exit"),
    ],
)
async def test_a_claim_that_kills_the_backend_is_told_how_and_kept_away_while_others_are_served(
    effect: str, told: str, signal: str
) -> None:
    async with staged({"do": effect}) as scene:
        await scene.start(VICTIM)
        await scene.start(OTHER)
        await scene.wait_error(told)
        await scene.wait_event("BackendDied", told)
        await scene.wait_event("ClaimQuarantined", "ended the process of backend sim 2 times and is not tried again")
        await scene.wait_running(OTHER)
        assert scene.errors(OTHER) == []
        deaths = await scene.metric(f'pydra_backend_crashes_total{{backend="sim",signal="{signal}"}}')
        assert deaths >= 2
        await scene.agent.wait_ready()
        with anyio.fail_after(DEADLINE):
            while not (tainted := await scene.taints()):
                await anyio.sleep(0.02)
            while await scene.metric('pydra_backend_restarts_total{backend="sim"}') < deaths:
                await anyio.sleep(0.02)
        assert {name for name, _ in tainted} == {"accel-0"}
        await scene.node.client.delete(PODS, VICTIM, namespace="default")
        with anyio.fail_after(DEADLINE):
            while await scene.taints():
                await anyio.sleep(0.02)


@pytest.mark.parametrize("effect", ["hang", "gil-hang"])
async def test_a_call_that_blocks_the_whole_process_is_ended_with_it_and_told_with_the_place(effect: str) -> None:
    async with staged({"do": effect, "count": 1}, flags=("--prepare-deadline", "2")) as scene:
        await scene.start(VICTIM)
        await scene.wait_error(r"prepare did not end within")
        await scene.wait_event("BackendTimeout", "prepare did not end within")
        await scene.start(OTHER)
        await scene.wait_running(OTHER)
        await scene.wait_running(VICTIM)
        assert await scene.metric('pydra_backend_restarts_total{backend="sim"}') == 1
        assert "pydra_sim/faults.py" in scene.agent.messages(), "the stack says where"


async def test_noise_on_stdout_and_slowness_harm_nobody() -> None:
    async with staged({"do": "stdout-noise"}, {"do": "slow", "seconds": 0.2}) as scene:
        await scene.start(VICTIM)
        await scene.wait_running(VICTIM)
        assert scene.errors(VICTIM) == []
        assert "libsim: WARNING: hello from native code" in scene.agent.messages()


async def test_a_device_that_falls_ill_is_tainted_and_told_while_its_pod_runs() -> None:
    async with staged({"do": "unhealthy", "message": "too hot"}) as scene:
        await scene.start(VICTIM)
        await scene.wait_running(VICTIM)
        with anyio.fail_after(DEADLINE):
            while not (tainted := await scene.taints()):
                await anyio.sleep(0.02)
        assert {name for name, _ in tainted} == {"accel-0"}
        assert await scene.metric('pydra_devices{driver="sim.pydra.dev",health="Unhealthy"}') == 1


async def test_hints_that_kill_the_process_are_not_held_against_a_claim() -> None:
    async with staged({"do": "segfault", "call": "wait_changed", "claim": "", "count": 6}) as scene:
        await scene.start(OTHER)
        await scene.wait_running(OTHER)
        assert scene.errors(OTHER) == []
        assert await scene.metric('pydra_backend_crashes_total{backend="sim",signal="SIGSEGV"}') >= 1
