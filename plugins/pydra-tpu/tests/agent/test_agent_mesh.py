"""A node as its users see it: the scheduler cuts the mesh of a simulated host, with the real agent between."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import yaml

from pydra.kube.api_resources import JsonObject
from pydra_dev.kubelet.observations import Step
from pydra_dev.node import run_node
from pydra_tpu import DEVICE_CLASSES as CLASSES
from pydra_tpu import DRIVER
from tests.integration.agent.node_user import NodeUser
from tests.integration.agent.process import run_agent

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "four-pods.yaml"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "jax.md"


class Scene(NodeUser):
    """Pods with TPUs."""

    async def run(self, name: str, device_class: str, count: int = 1) -> None:
        """A pod that asks for devices of a class, by a template of its own."""
        exactly: JsonObject = {"deviceClassName": device_class, "count": count}
        await self.create_claim(name, {"name": "tpus", "exactly": exactly}, template=True)
        await self.create_pod(name, template=name)

    async def environment(self, name: str, container: str = "") -> dict[str, str]:
        """Of the container of a pod, or of the one of a name, once it runs."""
        await self.wait_running(name)
        return dict(line.split("=", 1) for line in self.container(name, container).env)


@asynccontextmanager
async def scene(tmp_path: Path, **settings: str) -> AsyncIterator[Scene]:
    steps: list[Step] = []
    async with run_node(steps.append) as node:
        environ = {
            "PYDRA_TPU_SCENARIO": "v5e-8",
            "PYDRA_TPU_STATE": str(tmp_path),
            **{f"PYDRA_TPU_{name.upper()}": value for name, value in settings.items()},
        }
        found = Scene(node, steps)
        await found.create_classes(CLASSES)
        async with run_agent(node, "--backend", "tpu", environ=environ, forked=True) as agent:
            await agent.wait_ready()
            await found.wait_published()
            yield found
            assert await agent.stop() == 0


async def test_the_scheduler_cuts_the_mesh_and_pods_that_do_not_fit_get_the_reason(tmp_path: Path) -> None:
    async with scene(tmp_path) as node:
        found = {}
        for name in ("left", "right"):
            await node.run(name, f"2x2.{DRIVER}")
            found[name] = await node.environment(name)
        await node.run("host", f"host.{DRIVER}")
        assert "cannot allocate all claims" in await node.pending("host")
        await node.end_pods("right")
        await node.run("chips", DRIVER, count=2)
        pair = await node.environment("chips")
        await node.run("chip", DRIVER)
        single = await node.environment("chip")
        await node.run("square", f"2x2.{DRIVER}")
        assert "cannot allocate all claims" in await node.pending("square")
    for environment in found.values():
        assert (environment["TPU_TOPOLOGY"], environment["TPU_ACCELERATOR_TYPE"]) == ("2x2", "v5litepod-4")
    assert (pair["TPU_TOPOLOGY"], pair["TPU_CHIPS_PER_PROCESS_BOUNDS"]) == ("1x2", "1,2,1")
    assert single["TPU_TOPOLOGY"] == "1x1"


async def test_the_pods_of_the_example_get_what_is_left_and_the_last_is_told_why_not(tmp_path: Path) -> None:
    objects = [*yaml.safe_load_all(EXAMPLE.read_text())]
    async with scene(tmp_path) as node:
        for template, pod in zip(objects[::2], objects[1::2], strict=True):
            await node.apply(template, pod)
        topologies = [(await node.environment(name))["TPU_TOPOLOGY"] for name in ("training", "tuning", "serving")]
        assert "of 2 that match 0 are available" in await node.pending("late")
    assert topologies == ["2x2", "1x2", "1x2"]


async def test_the_pod_of_the_page_has_what_the_page_says(tmp_path: Path) -> None:
    text = PAGE.read_text()
    text, processes = text.split("## Several processes on one mesh")
    async with scene(tmp_path) as node:
        for part, pod, container in ((text, "hello-jax", "jax"), (processes, "two-processes", "second")):
            (manifest,) = re.findall(r"```yaml\n(.*?)```", part, flags=re.DOTALL)
            told = dict(re.findall(r"^    ((?:CLOUD_)?TPU_\w+)=(.+)$", part, flags=re.MULTILINE))
            await node.apply(*yaml.safe_load_all(manifest))
            environment = await node.environment(pod, container)
            assert told.items() <= environment.items()
            assert environment["TPU_VISIBLE_CHIPS"] == "0,1,2,3"
            await node.end_pods(pod)


async def test_claims_for_all_chips_of_googles_class_get_the_whole_host(tmp_path: Path) -> None:
    async with scene(tmp_path) as node:
        await node.run("all", DRIVER, count=8)
        environment = await node.environment("all")
    assert (environment["TPU_TOPOLOGY"], environment["TPU_HOST_BOUNDS"]) == ("2x4", "1,1,1")
    assert "TPU_VISIBLE_CHIPS" not in environment
