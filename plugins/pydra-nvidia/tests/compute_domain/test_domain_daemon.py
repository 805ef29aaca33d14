"""The daemon's process with a simulated nvidia-imex, against an API server: it joins, tells, restarts and ends."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import anyio.lowlevel
import pytest

from pydra_dev.api import kinds
from pydra_dev.apiserver.custom_kinds import parse_definition
from pydra_dev.apiserver.server import ApiServer, serve_api
from pydra_dev.node import free_port
from pydra_nvidia.compute_domain.custom_resource_definitions import CLIQUE_DEFINITION, DEFINITIONS
from pydra_nvidia.compute_domain.imex_directories import TEMPLATE
from pydra_nvidia.compute_domain.names import IMEX_CONDITION
from pydra_nvidia.simulation.programs import imex
from tests.forked import ForkedProgram

JsonObject = dict[str, Any]
UID, CLIQUE = "0f4a1c5e", "rack.1"
NAME = f"{UID}.{CLIQUE}"
DEADLINE = 100
CLIQUES = parse_definition(CLIQUE_DEFINITION).kind
OFTEN = {"IMEX_PERIOD_SCALE": "0.2"}
"""For tests that wait for several periods."""


class Node:
    """The container of one daemon."""

    def __init__(self, scene: Scene, name: str, path: Path, clique: str) -> None:
        self.scene = scene
        self.name = name
        self.path = path
        self.clique = clique
        self.port = free_port()
        path.mkdir()
        (path / "imexd").mkdir()
        (path / "imexd/imexd.cfg.tmpl").write_text(TEMPLATE)
        (path / "hosts").write_text("127.0.0.1\tlocalhost\n")
        for program, part in (("nvidia-imex", "daemon"), ("nvidia-imex-ctl", "ctl")):
            file = path / program
            file.write_text(f'#!/bin/sh\nexec {sys.executable} -IS {imex.__file__} {part} "$@"\n')
            file.chmod(0o755)
        body = {
            "metadata": {"name": f"pod-{name}"},
            "spec": {"nodeName": name, "containers": [{"name": "c", "image": "c"}]},
        }
        scene.server.api.create(kinds.PODS, body, namespace="default")
        status = {"conditions": [{"type": "PodScheduled", "status": "True"}]}
        scene.patch_pod_status(f"pod-{name}", status)

    def behave(self, **behaviour: Any) -> None:
        (self.path / "imexd/behaviour.json").write_text(json.dumps(behaviour))

    def imex(self) -> JsonObject:
        """What the simulated nvidia-imex is; empty while none runs."""
        try:
            found: JsonObject = json.loads((self.path / "imexd/imex.json").read_text())
        except FileNotFoundError:
            return {}
        return found

    def condition(self) -> tuple[str, str]:
        """Status and message of the daemon's condition."""
        pod = self.scene.server.api.get(kinds.PODS, f"pod-{self.name}", namespace="default")
        found = [one for one in pod["status"]["conditions"] if one["type"] == IMEX_CONDITION]
        return (found[0]["status"], found[0]["message"]) if found else ("", "")

    async def is_ready(self) -> bool:
        try:
            return (await self.ask("/readyz"))[0] == 200
        except aiohttp.ClientError:
            return False

    async def ask(self, page: str) -> tuple[int, str]:
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{self.port}{page}") as response:
            return response.status, await response.text()

    @asynccontextmanager
    async def run(self, **more: str) -> AsyncIterator[ForkedProgram]:
        """The daemon, ended as a container is."""
        environ = {
            **os.environ,
            "KUBECONFIG": str(self.scene.server.kubeconfig),
            "COMPUTE_DOMAIN_UUID": UID,
            "CLIQUE_ID": self.clique,
            "COMPUTE_DOMAIN_NAME": "cd",
            "COMPUTE_DOMAIN_NAMESPACE": "team",
            "NODE_NAME": self.name,
            "POD_IP": "127.0.0.1",
            "POD_NAME": f"pod-{self.name}",
            "POD_NAMESPACE": "default",
            "READY_PORT": str(self.port),
            "IMEX_DIRECTORY": str(self.path / "imexd"),
            "IMEX_REPORT_SECONDS": "0.1",
            "IMEX_HOSTS_FILE": str(self.path / "hosts"),
            "IMEX_PROGRAM": str(self.path / "nvidia-imex"),
            "IMEX_CONTROL_PROGRAM": str(self.path / "nvidia-imex-ctl"),
            **more,
        }
        module = "pydra_nvidia.compute_domain.command"
        process = ForkedProgram(module, ("daemon",), environ, str(self.path / "log"))
        try:
            yield process
        finally:
            process.terminate()
            with anyio.move_on_after(DEADLINE):
                await process.wait()


class Scene:
    """An API server with the clique, and nodes."""

    def __init__(self, server: ApiServer, path: Path) -> None:
        self.server = server
        self._path = path

    def add_node(self, name: str, clique: str = CLIQUE) -> Node:
        return Node(self, name, self._path / name, clique)

    def patch_pod_status(self, name: str, status: JsonObject) -> None:
        self.server.api.patch(
            kinds.PODS,
            name,
            {"status": status},
            content_type="application/merge-patch+json",
            namespace="default",
            subresource="status",
        )

    def enter(self, *nodes: str) -> None:
        """The clique has these nodes, in this order; the own address of each is loopback, here."""
        daemons = [
            {"nodeName": node, "ipAddress": "127.0.0.1", "cliqueID": CLIQUE, "index": index}
            for index, node in enumerate(nodes)
        ]
        found = self.server.api.find(CLIQUES, NAME, namespace="default")
        if found is None:
            body = {"metadata": {"name": NAME}, "daemons": daemons}
            self.server.api.create(CLIQUES, body, namespace="default")
        else:
            self.server.api.update(CLIQUES, NAME, {**found, "daemons": daemons}, namespace="default")

    async def until(self, holds: Callable[[], bool | Awaitable[bool]]) -> None:
        with anyio.fail_after(DEADLINE):
            while True:
                found = holds()
                if found if isinstance(found, bool) else await found:
                    return
                await anyio.sleep(0.02)


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with serve_api(definitions=DEFINITIONS) as server:
        yield Scene(server, tmp_path)


async def test_a_daemon_waits_for_its_entry_then_runs_imex_and_is_ready(scene: Scene) -> None:
    node = scene.add_node("a")
    async with node.run():
        await scene.until(lambda: node.condition() == ("False", "the clique has no entry for this node yet"))
        assert await node.ask("/readyz") == (503, "the clique has no entry for this node yet\n")
        node.behave(delay=1000)
        scene.enter("a", "b")
        await scene.until(lambda: node.condition() == ("False", "nvidia-imex says INITIALIZING: it starts"))
        node.behave()
        await scene.until(node.is_ready)
        assert node.imex()["peers"] == {
            "compute-domain-daemon-0000": "127.0.0.1",
            "compute-domain-daemon-0001": "127.0.0.1",
        }
        assert json.loads((node.path / "imexd/domain.json").read_text()) == {"name": "cd", "namespace": "team"}
        pod = scene.server.api.get(kinds.PODS, "pod-a", namespace="default")
        assert {one["type"] for one in pod["status"]["conditions"]} == {"PodScheduled", IMEX_CONDITION}
    assert node.imex() == {}  # ended with its daemon


async def test_peers_that_join_in_a_burst_are_all_known_in_the_end_and_no_signal_is_lost(scene: Scene) -> None:
    node = scene.add_node("a")
    node.behave(window=0.3)
    scene.enter("a")
    async with node.run(**OFTEN):
        await scene.until(node.is_ready)
        for count in range(2, 6):
            scene.enter("a", *(f"n{number}" for number in range(1, count)))
            await anyio.lowlevel.checkpoint()
        await scene.until(lambda: len(node.imex().get("peers", {})) == 5)
        assert node.imex()["ignored"] == 0
        assert (node.path / "hosts").read_text().count("compute-domain-daemon-") == 5


async def test_a_clique_that_is_deleted_and_made_again_takes_no_peer_away_meanwhile(scene: Scene) -> None:
    node = scene.add_node("a")
    scene.enter("a", "b")
    async with node.run(**OFTEN):
        await scene.until(node.is_ready)
        scene.server.api.delete(CLIQUES, NAME, namespace="default")
        await scene.until(lambda: "the clique is gone" in (node.path / "log").read_text())
        scene.enter("a", "b", "c")
        await scene.until(lambda: len(node.imex()["peers"]) == 3)
        assert node.imex()["reloads"] == 1


async def test_imex_goes_on_while_the_addresses_of_peers_cannot_be_written(scene: Scene) -> None:
    """Its end would end the imports of the node's pods."""
    node = scene.add_node("a")
    scene.enter("a")
    hosts, aside = node.path / "hosts", node.path / "aside"
    control, asked = node.path / "nvidia-imex-ctl", node.path / "asked"
    control.write_text(control.read_text().replace("exec", f"echo >> {asked}; exec"))
    async with node.run(IMEX_PERIOD_SCALE="0.05"):
        await scene.until(node.is_ready)
        first = node.imex()["pid"]
        hosts.rename(aside)
        hosts.mkdir()
        scene.enter("a", "b")
        text = "cannot be written, by which nvidia-imex finds"
        await scene.until(lambda: text in (node.path / "log").read_text())
        several = len(asked.read_text()) + 5  # questions, between which it tries to write as often
        await scene.until(lambda: len(asked.read_text()) > several)
        assert (node.path / "log").read_text().count(text) == 1
        hosts.rmdir()
        aside.rename(hosts)
        await scene.until(lambda: len(node.imex()["peers"]) == 2)
        assert node.imex()["pid"] == first


async def test_imex_reads_its_keys_again_when_the_secret_has_changed(scene: Scene) -> None:
    node = scene.add_node("a")
    scene.enter("a")
    keys = node.path / "tls"
    keys.mkdir()
    node.behave(window=0.3)
    for name in ("tls.key", "tls.crt", "ca.crt"):
        (keys / name).write_text("first")
    async with node.run(IMEX_TLS_DIRECTORY=str(keys), **OFTEN):
        await scene.until(node.is_ready)
        assert node.imex()["reloads"] == 0
        (keys / "tls.crt").write_text("second")
        await scene.until(lambda: node.imex()["reloads"] == 1)


async def test_an_imex_that_dies_is_started_again_and_the_reason_is_reported(scene: Scene) -> None:
    node = scene.add_node("a")
    scene.enter("a")
    async with node.run(**OFTEN):
        await scene.until(node.is_ready)
        first = node.imex()["pid"]
        node.behave(exit=1)
        os.kill(first, signal.SIGKILL)
        await scene.until(lambda: "NV_ERR_IN_USE" in node.condition()[1])
        node.behave()
        await scene.until(node.is_ready)
        assert node.imex()["pid"] != first


async def test_what_imex_says_is_reported_and_a_query_that_hangs_too(scene: Scene) -> None:
    node = scene.add_node("a")
    scene.enter("a")
    node.behave(state="WAITING_FOR_RECOVERY")
    async with node.run(**OFTEN):
        await scene.until(lambda: node.condition()[1].startswith("nvidia-imex says WAITING_FOR_RECOVERY"))
        node.behave(hang=True)
        await scene.until(lambda: node.condition()[1] == "nvidia-imex-ctl has not answered within 5 s")
        node.behave()
        await scene.until(node.is_ready)


async def test_a_peer_with_another_driver_version_is_reported_and_the_node_stays_ready(scene: Scene) -> None:
    node = scene.add_node("a")
    scene.enter("a", "b")
    node.behave(versions={"1": "575.1"})
    async with node.run():
        await scene.until(lambda: "b has driver 575.1, and this node 570.158.01" in node.condition()[1])
        assert await node.is_ready()


async def test_a_node_outside_all_cliques_runs_no_imex_and_is_ready_at_once(scene: Scene) -> None:
    node = scene.add_node("a", clique="")
    async with node.run():
        await scene.until(lambda: node.condition()[0] == "True")
        assert await node.is_ready()
        assert node.imex() == {}


async def test_a_joining_node_costs_a_watch_and_nothing_else_while_all_goes_well(scene: Scene) -> None:
    node = scene.add_node("a")
    scene.enter("a")
    async with node.run(IMEX_REPORT_SECONDS="3600"):
        await scene.until(node.is_ready)
    assert [(call.verb, call.resource) for call in scene.server.requests.calls] == [("watch", "computedomaincliques")]
