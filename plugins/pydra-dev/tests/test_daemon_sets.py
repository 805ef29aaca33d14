"""DaemonSets on several embedded nodes: where their pods are, when they are replaced, and when they are ready."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import anyio
from aiohttp import web

from pydra_dev.api.kinds import DAEMON_SETS, NODES, PODS
from pydra_dev.apiserver.verbs import Api
from pydra_dev.kubelet.observations import ContainerCreated, Step
from pydra_dev.node import EmbeddedNode, join_node, mark_lost, run_node

JsonObject = dict[str, Any]
MERGE = "application/merge-patch+json"
SELECTOR = {"rack": "r1"}


class World:
    """The DaemonSet `ds` on the nodes of one control plane."""

    def __init__(self, node: EmbeddedNode) -> None:
        self.api: Api = node.server.api

    def create(self, container: JsonObject, **spec: Any) -> None:
        template = {
            "metadata": {"labels": {"app": "ds"}},
            "spec": {"nodeSelector": SELECTOR, "containers": [{"name": "c", **container}]},
        }
        body = {"selector": {"matchLabels": {"app": "ds"}}, "template": template, **spec}
        self.api.create(DAEMON_SETS, {"metadata": {"name": "ds"}, "spec": body}, namespace="default")

    def label(self, node: str, value: str | None) -> None:
        self.api.patch(NODES, node, {"metadata": {"labels": {"rack": value}}}, content_type=MERGE)

    def change_image(self, image: str) -> None:
        found = self.api.get(DAEMON_SETS, "ds", namespace="default")
        template = found["spec"]["template"]
        containers = [{**template["spec"]["containers"][0], "image": image}]
        spec = {**found["spec"], "template": {**template, "spec": {**template["spec"], "containers": containers}}}
        self.api.update(DAEMON_SETS, "ds", {**found, "spec": spec}, namespace="default")

    def pods(self) -> Sequence[JsonObject]:
        return [pod for pod in self.api.list(PODS).items if "deletionTimestamp" not in pod["metadata"]]

    def running(self) -> Sequence[tuple[str, str]]:
        """Node and image of each pod that is ready."""
        ready = [pod for pod in self.pods() if is_ready(pod)]
        return sorted((pod["spec"]["nodeName"], pod["spec"]["containers"][0]["image"]) for pod in ready)

    def status(self) -> JsonObject:
        found: JsonObject = self.api.get(DAEMON_SETS, "ds", namespace="default").get("status") or {}
        return found

    async def until(self, holds: Callable[[], object]) -> None:
        with anyio.fail_after(60):
            await self.api.store.wait(holds)


def is_ready(pod: JsonObject) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def ignore(_step: Step) -> None:
    """Nobody looks."""


async def test_a_daemon_set_has_a_pod_on_each_node_that_it_selects() -> None:
    async with run_node(ignore, node_name="a") as first, join_node(first, ignore, node_name="b"):
        world = World(first)
        world.create({"image": "i:1"})
        await world.until(lambda: world.status().get("desiredNumberScheduled") == 0)
        world.label("a", "r1")
        world.label("b", "r1")
        await world.until(lambda: world.running() == [("a", "i:1"), ("b", "i:1")])
        await world.until(lambda: world.status().get("numberReady") == 2)
        assert len({pod["status"]["podIP"] for pod in world.pods()}) == 2
        world.change_image("i:2")
        await world.until(lambda: world.running() == [("a", "i:2"), ("b", "i:2")])
        await world.until(lambda: world.status()["updatedNumberScheduled"] == 2)
        assert world.status()["observedGeneration"] == 2
        world.api.patch(NODES, "a", {"spec": {"unschedulable": True}}, content_type=MERGE)
        world.api.delete(PODS, world.pods()[0]["metadata"]["name"], namespace="default")
        world.label("b", "r2")
        await world.until(lambda: world.running() == [("a", "i:2")] and world.status()["numberReady"] == 1)
        world.api.delete(DAEMON_SETS, "ds", namespace="default")
        await world.until(lambda: not world.api.list(PODS).items)


async def test_the_pods_of_two_clusters_on_one_machine_have_other_addresses() -> None:
    async with run_node(ignore) as one, run_node(ignore) as other:
        assert one.settings.pod_network != other.settings.pod_network


async def test_a_change_of_the_template_waits_for_pods_that_are_not_ready_yet() -> None:
    async with run_node(ignore, node_name="a") as first, join_node(first, ignore, node_name="b"):
        world = World(first)
        world.label("a", "r1")
        world.label("b", "r1")
        world.create({"image": "i:1"})
        await world.until(lambda: len(world.running()) == 2)
        least = len(world.running())

        def look() -> None:
            nonlocal least
            least = min(least, len(world.running()))

        world.api.store.listen(look)
        world.change_image("i:2")
        await world.until(lambda: world.running() == [("a", "i:2"), ("b", "i:2")])
        assert least == 1


async def test_with_probes_a_pod_is_ready_while_its_container_answers_at_the_address_of_the_pod() -> None:
    created: list[ContainerCreated] = []
    answers = {"status": 503}

    def note(step: Step) -> None:
        if isinstance(step, ContainerCreated):
            created.append(step)

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(status=answers["status"])

    container = {
        "image": "i:1",
        "ports": [{"name": "ready", "containerPort": 5006}],
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": "ready"}, "periodSeconds": 1},
        "env": [
            {"name": "PLAIN", "value": "1"},
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        ],
    }
    async with run_node(ignore) as first:
        world = World(first)
        async with join_node(first, note, node_name="b", probes=True):
            world.label("b", "r1")
            world.create(container)
            await world.until(lambda: created and world.pods()[0]["status"].get("phase") == "Running")
            variables = dict(one.split("=", 1) for one in created[0].after.env)
            address = world.pods()[0]["status"]["podIP"]
            assert (variables["PLAIN"], variables["POD_IP"], variables["NODE"]) == ("1", address, "b")
            app = web.Application()
            app.router.add_get("/readyz", answer)
            runner = web.AppRunner(app)
            await runner.setup()
            await web.TCPSite(runner, address, 5006).start()
            assert not world.running()
            answers["status"] = 200
            await world.until(world.running)
            await runner.cleanup()
        mark_lost(world.api, "b")
        await world.until(lambda: world.status()["numberReady"] == 0)
