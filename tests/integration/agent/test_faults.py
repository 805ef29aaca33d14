"""Every fault of simulated hardware, met by the real agent: one claim pays, in words, and nobody else does."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pydra_dev.kubelet.observations import Step
from pydra_dev.node import EmbeddedNode, run_node
from tests.integration.agent.node_user import NodeUser
from tests.integration.agent.process import Agent, run_agent

OTHER = "other"


class Scene(NodeUser):
    """A node with the agent and the sim on it, and claims that each meet a fault of the scenario or none."""

    def __init__(self, node: EmbeddedNode, agent: Agent, steps: list[Step]) -> None:
        super().__init__(node, steps)
        self.agent = agent

    async def start(self, name: str) -> None:
        """A claim for an accelerator, and a pod that needs it."""
        await self.create_both(name, {"name": "accelerator", "exactly": {"deviceClassName": "sim"}})

    async def metric(self, series: str) -> float:
        """One number of /metrics."""
        _, text = await self.agent.get("/metrics")
        found = re.search(rf"^{re.escape(series)} (\S+)$", text, re.MULTILINE)
        assert found is not None, series
        return float(found[1])


@asynccontextmanager
async def staged(*faults: dict[str, Any], flags: tuple[str, ...] = ()) -> AsyncIterator[Scene]:
    """The agent is up, its devices are published; at the end it is still the same process, alive and ready."""
    steps: list[Step] = []
    async with run_node(steps.append) as node:
        scenario = Path(node.root, "scenario.yaml")
        scenario.write_bytes(msgspec.yaml.encode({"faults": faults}))
        environ = {"PYDRA_SIM_SCENARIO": str(scenario)}
        async with run_agent(node, "--backend", "sim", *flags, environ=environ) as agent:
            await agent.wait_ready()
            await agent.wait_log(lambda text: "is published" in text)
            selector = {"cel": {"expression": "device.driver == 'sim.pydra.dev'"}}
            scene = Scene(node, agent, steps)
            await scene.create_classes({"sim": {"selectors": [selector]}})
            yield scene
            assert agent.process.returncode is None
            await agent.wait_ready()
            assert await agent.stop() == 0


FAULTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "raise": ({"do": "raise"}, "prepare failed: RuntimeError: a simulated fault", "BackendFailed"),
    "refuse": ({"do": "refuse", "message": "not today"}, "not today", "ClaimFailed"),
    "refuse-forever": ({"do": "refuse-forever", "message": "never"}, "never", "ClaimFailedTerminally"),
    "garbage": ({"do": "garbage"}, r"prepare\[0\] is of type str, not a pydra.PreparedDevice", "BackendContract"),
    "unplug": ({"do": "unplug"}, r"no device accel-\d, or it was unplugged", "UnknownDevice"),
    "slow": ({"do": "slow", "seconds": 60}, "prepare timed out after", "BackendTimeout"),
}


async def test_faults_that_leave_the_process_alive_cost_one_claim_each_and_no_restart() -> None:
    faults = [{"claim": name, **fault} for name, (fault, _, _) in FAULTS.items()]
    async with staged(*faults, flags=("--prepare-deadline", "4")) as scene:
        for name in (*FAULTS, OTHER):
            await scene.start(name)
        for name, (_, told, reason) in FAULTS.items():
            await scene.wait_error(name, told)
            await scene.wait_event(name, reason, told)
        await scene.wait_running(OTHER)
        assert scene.errors(OTHER) == []
        assert await scene.metric('pydra_backend_restarts_total{backend="sim"}') == 0


@pytest.mark.parametrize(
    ("seconds", "deadline", "failures"), [(0.001, 1, 3), (5.5, 10, 1)], ids=["at once", "when it is registered"]
)
async def test_an_agent_whose_backend_cannot_restore_leaves_the_node_to_the_one_before_it(
    seconds: float, deadline: int, failures: int
) -> None:
    async with staged(flags=("--pod-uid", "old")) as scene:
        scenario = Path(scene.node.root, "of-the-new.yaml")
        faults = [{"call": "restore", "do": "slow", "seconds": seconds}, {"call": "restore", "do": "raise"}]
        scenario.write_bytes(msgspec.yaml.encode({"faults": faults}))
        environ = {"PYDRA_SIM_SCENARIO": str(scenario)}
        flags = ("--backend", "sim", "--pod-uid", "new", "--discover-deadline", str(deadline), "--stale-after", "1")
        async with run_agent(scene.node, *flags, name="new", environ=environ) as agent:
            await agent.wait_log(lambda text: text.count("restore failed") == failures)
            status, text = await agent.get("/readyz")
            assert status == 503
            assert "cannot be called until restore has succeeded: restore failed: RuntimeError: a simulated" in text
            assert len(await scene.devices()) == 8
            await scene.start(OTHER)
            await scene.wait_running(OTHER)
            assert scene.errors(OTHER) == []
            scenario.write_bytes(msgspec.yaml.encode({"faults": []}))
            await agent.wait_ready()
            assert await agent.stop() == 0


async def test_what_is_measured_counts_the_claims_that_another_instance_has_prepared() -> None:
    steps: list[Step] = []
    flags = ("--backend", "counting:", "--measure-period", "0.1", "--rescan-period", "3600", "--sweep-period", "3600")
    async with run_node(steps.append) as node, run_agent(node, *flags, "--pod-uid", "old", name="old") as old:
        await old.wait_ready()
        async with run_agent(node, *flags, "--pod-uid", "new", name="new") as new:
            await new.wait_ready()
            user = NodeUser(node, steps)
            await user.create_classes({"counted": {}})
            await user.create_both("claim", {"name": "it", "exactly": {"deviceClassName": "counted"}})
            await user.wait_running("claim")
            for agent in (old, new):
                await agent.wait_metric(r"^pydra_counting_held 1.0$")


async def test_what_cannot_be_measured_any_more_is_gone_and_hints_of_nothing_are_told(tmp_path: Path) -> None:
    sensor = tmp_path / "sensor"
    sensor.write_text("36.6")
    flags = ("--backend", "hasty:", "--driver", "hasty:=hasty.example.com", "--measure-period", "0.1")
    async with run_node(lambda step: None) as node, run_agent(node, *flags, environ={"SENSOR": str(sensor)}) as agent:
        await agent.wait_metric(r"^pydra_hasty_warmth 36.6$")
        sensor.unlink()
        await agent.wait_log(lambda text: "measurements cannot be read" in text)
        await agent.wait_log(lambda text: "wait_changed has returned 20 times within" in text)
        await agent.wait_metric(r"\A(?s:(?!.*pydra_hasty_warmth).)")


async def test_hints_that_kill_the_process_are_not_held_against_a_claim() -> None:
    async with staged({"do": "segfault", "call": "wait_changed", "count": 6}) as scene:
        await scene.start(OTHER)
        await scene.wait_running(OTHER)
        assert scene.errors(OTHER) == []
        assert await scene.metric('pydra_backend_crashes_total{backend="sim",signal="SIGSEGV"}') >= 1
