"""A node of a GB200 rack as the ComputeDomain's controller and users see it, with the real agent between.

The tests play the controller, which makes claims from its templates, and the pod of the IMEX daemon, which writes its
configuration and answers. All use one agent, and leave the node as it was.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pydra.kube.api_resources import PODS, RESOURCE_CLAIMS, JsonObject
from pydra_dev.container_runtime.cdi_injection import OciSpec
from pydra_dev.kubelet.observations import PodFailed, Step
from pydra_dev.node import EmbeddedNode, run_node
from pydra_nvidia.compute_domain import DEVICE_CLASSES as CLASSES
from pydra_nvidia.compute_domain import DRIVER
from tests.integration.agent.node_user import NAMESPACE, NodeUser
from tests.integration.agent.process import run_agent

CLIQUE = "5a4f3c1e-9d27-4b86-a0c5-7e1f2b3d4c5a.2"
CHANNEL, DAEMON = "compute-domain-default-channel.nvidia.com", "compute-domain-daemon.nvidia.com"
SOCKET = "etc/nvidia-imex/imex_ctrl.sock"


class Scene(NodeUser):
    """The node, and what happened on it; `state` is the simulated machine's directory."""

    def __init__(self, node: EmbeddedNode, steps: list[Step], state: Path) -> None:
        super().__init__(node, steps)
        self.state = state
        self.domains = state / "run" / "domains"

    async def start(self, name: str, device_class: str, *configs: JsonObject, driver: str = DRIVER) -> None:
        """A claim as a template of the controller has it, and a pod with it."""
        opaque = [
            {
                "requests": ["it"],
                "opaque": {"driver": driver, "parameters": {"apiVersion": "resource.nvidia.com/v1beta1", **one}},
            }
            for one in configs
        ]
        await self.create_both(name, {"name": "it", "exactly": {"deviceClassName": device_class}}, config=opaque)

    async def running(self, name: str) -> OciSpec:
        """The container of a pod, once it runs."""
        await self.wait_running(name)
        return self.container(name)

    async def end_all(self, *names: str) -> None:
        """Pods and their claims are deleted, and gone; nothing is left on the node."""
        await self.end(*names)
        places = (self.domains, Path(self.node.cdi_directory), Path(self.node.root, "run", DRIVER, "claims"))
        left = [path for place in places if place.exists() for path in place.iterdir()]
        assert left == []

    def imex_says(self, words: str) -> None:
        """What nvidia-imex-ctl prints from now on."""
        place = self.state / "tree" / "run" / "nvidia-imex" / "status"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"{words}\n")


def channel(domain: str, **fields: Any) -> JsonObject:
    return {"kind": "ComputeDomainChannelConfig", "domainID": domain, **fields}


def daemon(domain: str) -> JsonObject:
    return {"kind": "ComputeDomainDaemonConfig", "domainID": domain}


def channels(container: OciSpec) -> list[tuple[str, int, int]]:
    """Path, major and minor of the IMEX channels in a container."""
    found = [one for one in container.devices if one.path.startswith("/dev/nvidia-caps-imex-channels/")]
    return sorted(((one.path, one.major, one.minor) for one in found), key=lambda one: one[2])


@asynccontextmanager
async def scene(state: Path, **settings: str) -> AsyncIterator[Scene]:
    steps: list[Step] = []
    async with run_node(steps.append) as node:
        given = {"scenario": "gb200", "state": str(state), "ready_deadline": "0.1", **settings}
        environ = {f"PYDRA_NVIDIA_COMPUTE_DOMAIN_{name.upper()}": value for name, value in given.items()}
        found = Scene(node, steps, state)
        await found.create_classes(CLASSES)
        async with run_agent(node, "--backend", "nvidia-compute-domain", environ=environ, forked=True) as agent:
            await agent.wait_ready()
            await found.wait_published()
            yield found
            assert await agent.stop() == 0


async def test_a_workload_waits_for_the_imex_daemon_of_its_domain_and_gets_its_channel(tmp_path: Path) -> None:
    domain = str(uuid.uuid4())
    async with scene(tmp_path) as node:
        devices = await node.devices()
        assert {name: list(one["attributes"].items()) for name, one in devices.items()} == {
            f"{kind}-0": [("cliqueID", {"string": CLIQUE}), ("id", {"int": 0}), ("type", {"string": kind})]
            for kind in ("channel", "daemon")
        }
        await node.start("workload", CHANNEL, channel(domain))
        await node.wait_event("workload", "ComputeDomainNotReady", f"label resource.nvidia.com/computeDomain={domain}")
        await node.start("imex", DAEMON, daemon(domain))
        container = await node.running("imex")
        variables = dict(one.split("=", 1) for one in container.env)
        assert variables["CLIQUE_ID"] == CLIQUE
        assert variables["COMPUTE_DOMAIN_UUID"] == domain
        assert variables["NVIDIA_VISIBLE_DEVICES"] == "void"
        nodes = {one.path for one in container.devices}
        assert nodes >= {"/dev/nvidiactl", *(f"/dev/nvidia{minor}" for minor in range(4))}
        assert next(one for one in container.devices if one.path == "/dev/nvidia-caps/nvidia-cap4323").major == 237
        mounts = {one.container_path: one for one in container.mounts}
        assert {"/usr/bin/nvidia-imex", "/usr/bin/nvidia-imex-ctl"} <= mounts.keys()
        assert mounts["/imexd"].host_path == str(node.domains / domain)
        assert {"rw", "bind"} <= set(mounts["/imexd"].options)

        template = (node.domains / domain / "imexd.cfg.tmpl").read_text()
        assert set(re.findall(r"{{ \.(\w+) }}", template)) == {"IMEXCmdBindInterfaceIP", "IMEXDaemonNodesConfigPath"}
        await node.wait_event("workload", "ComputeDomainNotReady", "its pod is starting")
        node.imex_says("NOT_READY")
        (node.domains / domain / "imexd.cfg").write_text("IMEX_CMD_PORT=50005\n")
        await node.wait_event("workload", "ComputeDomainNotReady", 'is not ready yet: nvidia-imex-ctl says "NOT_READY"')
        whose = node.domains / domain / "domain.json"
        whose.write_text('{"name": "cd", "namespace": "elsewhere"}')
        await node.wait_event(
            "workload", "ComputeDomainOfOtherNamespace", "elsewhere/cd is for claims of its own namespace"
        )
        whose.write_text(f'{{"name": "cd", "namespace": "{NAMESPACE}"}}')
        node.imex_says("READY")
        assert channels(await node.running("workload")) == [("/dev/nvidia-caps-imex-channels/channel0", 236, 0)]
        await node.end_all("workload", "imex")

        # The next domain, whose workload asks for all channels, and a wrong one beside it.
        other = str(uuid.uuid4())
        await node.start("imex-2", DAEMON, daemon(other))
        await node.running("imex-2")
        (node.domains / other / "imexd.cfg").write_text("IMEX_CMD_PORT=50005\n")
        await node.start("stranger", CHANNEL, channel(domain))
        await node.wait_event(
            "stranger", "ComputeDomainNotReady", f"the node is one of ComputeDomain {other}, and can be"
        )
        (node.domains / other / "domain.json").write_text(f'{{"name": "cd-2", "namespace": "{NAMESPACE}"}}')
        await node.wait_event(
            "stranger", "ComputeDomainNotReady", rf"one of ComputeDomain {NAMESPACE}/cd-2 \({other}\)"
        )
        await node.node.client.delete(PODS, "stranger", namespace=NAMESPACE)
        await node.start("all", CHANNEL, channel(other, allocationMode="All"))
        found = channels(await node.running("all"))
        assert len(found) == 2048
        assert found[2047] == ("/dev/nvidia-caps-imex-channels/channel2047", 236, 2047)
        await node.node.client.delete(RESOURCE_CLAIMS, "stranger", namespace=NAMESPACE)
        await node.end_all("all", "imex-2")

        for number, (device_class, configs, words) in enumerate(WRONG):
            await node.start(f"wrong-{number}", device_class, *configs)
            await node.wait_event(f"wrong-{number}", "InvalidConfig", words)
            await node.end_all(f"wrong-{number}")


async def test_a_channel_that_waits_holds_up_nobody_and_needs_one_call(tmp_path: Path) -> None:
    async with scene(tmp_path, ready_deadline="20") as node:
        await node.start("workload", CHANNEL, channel(ID))
        records = Path(node.node.root, "run", DRIVER, "claims")
        await node.until(lambda: records.exists() and any(records.iterdir()), "the channel is being prepared")
        await node.start("imex", DAEMON, daemon(ID))
        await node.running("imex")
        (node.domains / ID / "imexd.cfg").write_text("IMEX_CMD_PORT=50005\n")
        await node.running("workload")
        assert not [one for one in node.steps if isinstance(one, PodFailed)]
        await node.end_all("workload", "imex")


ID = "0f4a1c5e-7d0b-4f38-9d3a-5a0c4f7e2b11"
WRONG: list[tuple[str, tuple[JsonObject, ...], str]] = [
    (CHANNEL, (), "channel-0 needs a ComputeDomainChannelConfig with the domainID of its ComputeDomain"),
    (CHANNEL, (daemon(ID),), "found a ComputeDomainDaemonConfig, allowed for channel-0: a ComputeDomainChannelConfig"),
    (DAEMON, (daemon("../../etc"),), "domainID"),
]


async def test_with_a_daemon_of_the_host_there_is_only_a_channel_and_it_waits_for_that_daemon(tmp_path: Path) -> None:
    async with scene(tmp_path, imex="hostManaged") as node:
        assert list(await node.devices()) == ["channel-0"]
        await node.start("workload", CHANNEL, channel(ID, allocationMode="All"))
        await node.wait_event(
            "workload", "ComputeDomainNotReady", "the host's IMEX daemon at /etc/nvidia-imex/imex_ctrl.sock"
        )
        socket = tmp_path / "tree" / SOCKET
        socket.parent.mkdir(parents=True)
        node.imex_says("NOT_READY")
        socket.touch()
        await node.wait_event("workload", "ComputeDomainNotReady", 'nvidia-imex-ctl says "NOT_READY"')
        node.imex_says("READY")
        assert channels(await node.running("workload")) == [("/dev/nvidia-caps-imex-channels/channel0", 236, 0)]
        await node.end_all("workload")


pytestmark = pytest.mark.timeout(120)
