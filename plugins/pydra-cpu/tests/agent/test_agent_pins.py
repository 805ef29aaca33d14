"""A node as its pods see it: the agent prepares a claim, and the container runtime asks the backend for CPUs."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
import yaml

from pydra.kube.api_resources import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from pydra_cpu import DEVICE_CLASSES as CLASSES
from pydra_cpu import DRIVER
from pydra_cpu.devices import CAPACITY
from pydra_cpu.simulation.machine import Machine
from pydra_dev.kubelet.observations import ContainerCreated, Step
from pydra_dev.node import EmbeddedNode, run_node
from pydra_nri import Container, PodSandbox
from pydra_nri.simulation.runtime import FakeRuntime, OperationFailed
from tests.integration.agent.node_user import NAMESPACE, NodeUser
from tests.integration.agent.process import DEADLINE, Agent, run_agent

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "pinned.yaml"
POD = PodSandbox(id="sandbox", name="pinned", uid="uid", namespace=NAMESPACE)


class Node(NodeUser):
    """An embedded node, whose containers a fake runtime creates, too."""

    def __init__(self, node: EmbeddedNode, root: Path, steps: list[Step]) -> None:
        super().__init__(node, steps)
        self.runtime = FakeRuntime(request_timeout=100.0)
        self._root = root

    @asynccontextmanager
    async def run_agent(self, name: str, **settings: str) -> AsyncIterator[Agent]:
        """The agent, until the runtime calls its backend; killed at the end."""
        environ = {
            "PYDRA_CPU_SYS_ROOT": f"{self._root}/sys",
            "PYDRA_CPU_HOST_ROOT": str(self._root),
            "PYDRA_CPU_NRI_SOCKET": f"{self._root}/nri.sock",
            **settings,
        }
        known = self.runtime.log.count(f"registered {DRIVER}")
        async with run_agent(self.node, "--backend", "cpu", environ=environ, name=name, forked=True) as agent:
            await agent.wait_ready()
            await self.runtime.wait_logged(f"registered {DRIVER}", times=known + 1)
            yield agent

    async def apply_example(self, *, is_counted: bool = False) -> dict[str, tuple[str, ...]]:
        """The environment of each container of the example's pod; with one CPU if the embedded scheduler counts it."""
        template, pod = yaml.safe_load_all(EXAMPLE.read_text())
        if is_counted:
            template["spec"]["spec"]["devices"]["requests"][0]["exactly"]["capacity"]["requests"][CAPACITY] = "1"
            del pod["spec"]["containers"][0]["resources"]["requests"]
        await self.node.client.create(RESOURCE_CLAIM_TEMPLATES, template, namespace=NAMESPACE)
        return await self.run_pod(pod)

    async def run_pod(self, pod: dict[str, Any]) -> dict[str, tuple[str, ...]]:
        """The environment of each container of a new pod, once it runs."""
        await self.node.client.create(PODS, pod, namespace=NAMESPACE)
        await self.wait_running(pod["metadata"]["name"])
        names = {one["name"] for one in pod["spec"]["containers"]}
        created = [one for one in self.steps if isinstance(one, ContainerCreated) and one.container in names]
        return {one.container: tuple(one.after.env) for one in created}

    async def create(self, name: str, env: tuple[str, ...]) -> str:
        """The CPUs of a new container."""
        container = Container(id=name, name=name, pod_sandbox_id=POD.id, env=env)
        return (await self.runtime.create_container(container)).linux.resources.cpu.cpus


@asynccontextmanager
async def serve(*, cores: int = 4, **options: Any) -> AsyncIterator[Node]:
    steps: list[Step] = []
    with tempfile.TemporaryDirectory(prefix="cpu") as root:
        Machine(cores=cores).write(Path(root))
        async with run_node(steps.append, **options) as embedded:
            found = Node(embedded, Path(root), steps)
            await found.create_classes(CLASSES)
            async with found.runtime.serve(f"{root}/nri.sock"):
                await found.runtime.run_pod(POD)
                yield found


async def test_a_prepared_claim_has_its_cpus_also_after_the_agent_was_killed() -> None:
    async with serve() as node:
        async with node.run_agent("first"):
            env = await node.apply_example()
            assert await node.create("pinned", env["pinned"]) == "0-1"
            assert await node.create("shared", env["shared"]) == "2-3"
        async with node.run_agent("second"):
            assert await node.create("again", env["pinned"]) == "0-1"
            with pytest.raises(OperationFailed, match="which is not what claim default/pinned-cpus-"):
                await node.create("forged", tuple(one.replace("=0-1", "=0-3") for one in env["pinned"]))


async def test_both_instances_of_an_upgrade_know_at_once_what_one_has_prepared() -> None:
    """The runtime asks both, and creates no container that one of them refuses."""
    seldom = dict.fromkeys(("PYDRA_MEASURE_PERIOD", "PYDRA_RESCAN_PERIOD", "PYDRA_SWEEP_PERIOD"), "3600")
    async with (
        serve() as node,
        node.run_agent("old", PYDRA_POD_UID="old", **seldom),
        node.run_agent("new", PYDRA_POD_UID="new", **seldom),
    ):
        env = await node.apply_example()
        with anyio.fail_after(DEADLINE):
            while True:
                with suppress(OperationFailed):
                    assert await node.create("pinned", env["pinned"]) == "0-1"
                    break
                await anyio.sleep(0.05)


def build_pod(name: str, claims: dict[str, str], *, counted: int = 0, **pod: Any) -> dict[str, Any]:
    """A pod with a container for each claim, and one without; the number of CPUs as request and limit of the first."""
    amounts = {"cpu": str(counted), "memory": "2Gi"} if counted else {"memory": "2Gi"}
    containers: list[dict[str, Any]] = [
        {
            "name": f"{name}-{number}",
            "image": "registry.k8s.io/pause:3.9",
            "resources": {"requests": amounts, "limits": amounts, "claims": [{"name": reference}]},
        }
        for number, reference in enumerate(claims, 1)
    ]
    containers.append({"name": f"{name}-sidecar", "image": "registry.k8s.io/pause:3.9"})
    uses = [{"name": reference, "resourceClaimName": claim} for reference, claim in claims.items()]
    return {"metadata": {"name": name}, "spec": {**pod, "containers": containers, "resourceClaims": uses}}


def ask(**fields: Any) -> dict[str, Any]:
    """A request for devices of the driver's class."""
    return {"deviceClassName": "dra.cpu", **fields}


LARGE, TEN, FOUR = (ask(capacity={"requests": {CAPACITY: amount}}) for amount in ("100", "10", "4"))
FIRST = {"firstAvailable": [{"name": "large", **LARGE}, {"name": "small", **FOUR}]}
EXACT = {"apiVersion": "v1alpha1", "cpuConfig": {"cpuset": "2-5"}}
BOTH = {"container1-claim": "first", "container2-claim": "second"}


@pytest.mark.parametrize(
    ("group_by", "requests", "config", "pod", "cpus"),
    [
        (
            "numaNode",
            ({"exactly": TEN},),
            (),
            build_pod("pod-cpu-dra-claim", {"pod-cpu-claim-ref": "first"}, counted=10),
            ["0-9", "10-15"],
        ),
        (
            "numaNode",
            ({"exactly": TEN}, {"exactly": FOUR}),
            (),
            build_pod("pod-with-pod-level-resources", BOTH, resources={"requests": {"cpu": "16"}}),
            ["0-9", "10-13", "14-15"],
        ),
        (
            "cpu",
            ({"exactly": ask(count=4)}, {"exactly": ask(count=6)}),
            (),
            build_pod("my-app-with-dra-cpu", BOTH),
            ["0-3", "4-9", "10-15"],
        ),
        ("machine", ({"exactly": FOUR},), (EXACT,), build_pod("exact", {"cpus": "first"}), ["2-5", "0-1,6-15"]),
        ("socket", (FIRST,), (), build_pod("first-available", {"cpus": "first"}), ["0-3", "4-15"]),
    ],
    ids=["grouped", "pod-level-resources", "individual", "exact-cpus-of-a-machine", "first-available"],
)
async def test_claims_and_pods_of_kubernetes_own_driver_run_unchanged(
    group_by: str,
    requests: tuple[dict[str, Any], ...],
    config: tuple[dict[str, Any], ...],
    pod: dict[str, Any],
    cpus: list[str],
) -> None:
    async with serve(cores=16) as node, node.run_agent("agent", PYDRA_CPU_GROUP_BY=group_by):
        for name, request in zip(("first", "second"), requests, strict=False):
            devices: dict[str, Any] = {
                "requests": [{"name": "req-cpu-slice", **request}],
                "config": [
                    {"requests": ["req-cpu-slice"], "opaque": {"driver": DRIVER, "parameters": one}} for one in config
                ],
            }
            claim = {"metadata": {"name": name}, "spec": {"devices": devices}}
            await node.node.client.create(RESOURCE_CLAIMS, claim, namespace=NAMESPACE)
        env = await node.run_pod(pod)
        for name in env:
            await node.create(name, env[name])
        assert [node.runtime.containers[name].linux.resources.cpu.cpus for name in env] == cpus


@pytest.mark.parametrize(
    ("version", "counted"),
    [("1.36.2", {"resources": {"cpu": "1"}}), ("1.37.0", {"mapping": [{"name": "cpu", "quantity": "1"}]})],
)
async def test_the_scheduler_counts_the_cpus_of_a_claim_as_used_ones_of_the_node(
    version: str, counted: dict[str, Any]
) -> None:
    async with (
        serve(version=version, gates={"DRANodeAllocatableResources": True}) as node,
        node.run_agent("agent", PYDRA_CPU_NODE_ALLOCATABLE="true"),
    ):
        await node.apply_example(is_counted=True)
        pod = await node.node.client.get(PODS, "pinned", namespace=NAMESPACE)
        [entry] = pod["status"]["nodeAllocatableResourceClaimStatuses"]
        assert entry == {"resourceClaimName": entry["resourceClaimName"], "containers": ["pinned"], **counted}
