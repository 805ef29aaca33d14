"""The agent as its admin meets it: a process with flags, signals, logs, an HTTP endpoint and an exit code."""

from __future__ import annotations

import signal
from pathlib import Path

import anyio
from grpclib.client import Channel, UnaryUnaryMethod

from pydra.kube.api_resources import RESOURCE_SLICES
from pydra.kubelet.pb import Claim, NodePrepareResourcesRequest, NodePrepareResourcesResponse
from pydra_dev.apiserver.faults import Fault
from pydra_dev.node import run_node
from tests.integration.agent.process import DEADLINE, run_agent


def ignore(step: object) -> None:
    """Ignore what the kubelet reports."""


async def test_a_backend_that_breaks_its_contract_is_refused_with_all_faults_while_the_others_serve() -> None:
    async with run_node(ignore) as node, run_agent(node, "--backend", "lawless:", "--backend", "sim") as agent:
        await agent.wait_log(lambda text: "prepare" in text and "unprepare" in text and "Not A Driver" in text)
        with anyio.fail_after(20):
            while "sim" in (missing := (await agent.get("/readyz"))[1]) or not missing:
                await anyio.sleep(0.02)
            assert "backend lawless" in missing
            while len((await node.client.list(RESOURCE_SLICES)).items) != 1:
                await anyio.sleep(0.02)


async def test_two_backends_of_one_driver_name_are_distinguished_by_a_setting() -> None:
    async with run_node(ignore) as node:
        async with run_agent(node, "--backend", "sim", "--backend", "modest:") as agent:
            text = await agent.wait_log(lambda text: "is served by backend" in text)
            assert "--driver " in text
            await agent.stop()
        flags = ("--backend", "sim", "--backend", "modest:", "--driver", "modest:=modest.example.com")
        async with run_agent(node, *flags, name="named") as agent:
            await agent.wait_ready()
            with anyio.fail_after(20):
                while len((await node.client.list(RESOURCE_SLICES)).items) < 2:
                    await anyio.sleep(0.02)
            assert await agent.stop() == 0


async def test_lists_of_numa_nodes_and_overheads_are_published_where_the_server_has_their_gates(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("backendOverheads: {sim: {memory: {perPod: 256Mi, perContainer: 64Mi}, cpu: {perPod: 1}}}\n")
    gates = {"DRAListTypeAttributes": True, "DRANodeAllocatableResources": True}
    flags = ("--backend", "sim", "--config", str(config), "--numa-node-lists", "true")
    async with run_node(ignore, version="1.37.0", gates=gates) as node, run_agent(node, *flags) as agent:
        await agent.wait_ready()
        with anyio.fail_after(DEADLINE):
            while not (slices := (await node.client.list(RESOURCE_SLICES)).items):
                await anyio.sleep(0.02)
    (device, *_) = slices[0]["spec"]["devices"]
    (kind,) = device["attributes"]["resource.kubernetes.io/numaNode"]
    assert kind == "ints"
    memory = {"overhead": {"perPod": "256Mi", "perContainer": "64Mi"}}
    assert device["nodeAllocatableResources"] == {"cpu": {"overhead": {"perPod": "1"}}, "memory": memory}


async def test_a_driver_without_room_for_its_sockets_costs_no_other() -> None:
    async with run_node(ignore) as node:
        deep = f"{node.root}/{'d' * (80 - len(node.root))}"
        long_name = f"{'modest.' * 5}example.com"
        flags = ("--backend", "sim", "--backend", "modest:", "--driver", f"modest:={long_name}", "--plugins-dir", deep)
        async with run_agent(node, *flags) as agent:
            await agent.wait_log(lambda text: "is too deep" in text and "has registered driver sim.pydra.dev" in text)
            await agent.wait_metric(r'^pydra_backend_up\{backend="modest"\} 1.0$')
            assert await agent.stop() == 0


async def test_a_stop_lets_the_work_end_for_which_the_kubelet_no_longer_waits() -> None:
    async with run_node(ignore) as node, run_agent(node, "--backend", "sim") as agent:
        await agent.wait_ready()
        request = NodePrepareResourcesRequest(claims=[Claim(namespace="ns", uid="uid-1", name="claim")])
        with node.server.faults.frozen():
            before = len(node.server.requests.select("get", "resourceclaims"))
            async with Channel(path=f"{node.settings.root}/plugins/sim.pydra.dev/dra.sock") as channel:
                with anyio.CancelScope() as patience:
                    async with anyio.create_task_group() as calls:
                        path = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"
                        types = type(request), NodePrepareResourcesResponse
                        calls.start_soon(UnaryUnaryMethod(channel, path, *types), request)
                        await node.server.requests.wait_count(before + 1, "get", "resourceclaims")
                        patience.cancel()
            await agent.wait_log(lambda text: "stopped waiting for claims (1);" in text)
            agent.process.terminate()
            await agent.wait_log(lambda text: "calls in flight end first" in text)
        with anyio.fail_after(DEADLINE):
            assert await agent.process.wait() == 0
        assert "the agent is stopping" not in agent.messages()
        assert [line["reason"] for line in agent.lines() if line.get("claim") == "ns/claim" and "reason" in line] == [
            "NotFound"
        ]


async def test_a_hangup_rereads_the_log_level_and_names_what_needs_a_restart() -> None:
    async with run_node(ignore) as node:
        config = Path(node.root, "config.yaml")
        config.write_text("backends: [sim]\nlogLevel: error\n")
        environ = {"PYDRA_SIM_STATE": f"{node.root}/hardware"}
        async with run_agent(node, "--config", str(config), environ=environ) as agent:
            await agent.wait_ready()
            assert agent.lines() == []
            config.write_text("backends: [sim]\nlogLevel: info\nsweepPeriod: 60\n")
            agent.process.send_signal(signal.SIGHUP)
            told = "settings read again; need a restart: sweep_period"
            await agent.wait_log(lambda text: told in text.splitlines())
            agent.process.send_signal(signal.SIGHUP)
            await agent.wait_log(lambda text: text.splitlines().count(told) == 2)
            for count, wrong in enumerate(("logLevel: shout", "backends: 5", 'logFile: "/a\\0b"', "a: 2026-13-45"), 1):
                config.write_text(f"{wrong}\n")
                agent.process.send_signal(signal.SIGHUP)
                await agent.wait_log(lambda text, count=count: text.count("the settings are unchanged") == count)  # type: ignore[misc]
            assert await agent.stop() == 0


async def test_credentials_that_are_refused_make_the_agent_unready() -> None:
    async with run_node(ignore) as node, run_agent(node, "--backend", "sim") as agent:
        await agent.wait_ready()
        node.server.faults.add(Fault(verb="watch", resource="resourceslices", status=401, times=None))
        node.server.break_watches()
        assert "401 Unauthorized" in await agent.wait_ready(503)
        node.server.faults.clear()
        await agent.wait_ready()


async def test_a_kubelet_whose_directory_comes_late_is_waited_for() -> None:
    async with run_node(ignore) as node:
        elsewhere = Path(node.root, "late")
        elsewhere.mkdir()
        async with run_agent(node, "--backend", "sim", "--kubelet-root", str(elsewhere)) as agent:
            await agent.wait_ready(503)
            with anyio.fail_after(20):
                while "plugins_registry" not in (await agent.get("/readyz"))[1]:
                    await anyio.sleep(0.02)
            (elsewhere / "plugins_registry").mkdir()
            with anyio.fail_after(20):
                while not any((elsewhere / "plugins_registry").iterdir()):
                    await anyio.sleep(0.02)
