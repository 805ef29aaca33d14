"""Two instances of the agent on a node with TPUs, as in a rolling update."""

from __future__ import annotations

from pathlib import Path

from pydra_dev.kubelet.observations import Step
from pydra_dev.node import run_node
from pydra_tpu import DEVICE_CLASSES as CLASSES
from pydra_tpu import DRIVER
from tests.integration.agent.node_user import NodeUser
from tests.integration.agent.process import run_agent
from tpu_values import add_process


async def test_a_claim_that_the_other_instance_prepared_explains_its_processes(tmp_path: Path) -> None:
    environ = {"PYDRA_TPU_SCENARIO": "v5e-8", "PYDRA_TPU_STATE": str(tmp_path), "PYDRA_TPU_POLL_PERIOD": "0.1"}
    steps: list[Step] = []
    async with run_node(steps.append) as node:
        user = NodeUser(node, steps)
        await user.create_classes(CLASSES)
        async with run_agent(node, "--backend", "tpu", "--pod-uid", "old", environ=environ, name="old") as old:
            await old.wait_ready()
            async with run_agent(node, "--backend", "tpu", "--pod-uid", "new", environ=environ, name="new") as new:
                await new.wait_ready()
                await user.wait_published()
                await user.create_both("square", {"name": "tpus", "exactly": {"deviceClassName": f"2x2.{DRIVER}"}})
                await user.wait_running("square")
                assert await user.allocated("square") == ["2x2-0"]
                for chip in (3, 7):
                    add_process(tmp_path, 4711 + chip, f"/dev/vfio/{chip}")
                for agent in (old, new):
                    said = await agent.wait_log(lambda said: "chip 7 is open in process 4718" in said)
                    assert "chip 3 is open" not in said
