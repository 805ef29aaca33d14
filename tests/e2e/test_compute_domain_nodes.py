"""A ComputeDomain of three nodes against a real API server, its scheduler and its controllers.

Of the nodes only agents and daemons are real processes; the kubelets are embedded ones, so neither image nor runtime
is needed. The controller is a process of this machine.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import anyio

from pydra.errors import Conflict, KubeError, NotFound
from pydra.kube.api_resources import (
    DEVICE_CLASSES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    JsonObject,
    Resource,
)
from pydra_dev.node import make_root
from pydra_nvidia.compute_domain import DEVICE_CLASSES as CLASSES
from pydra_nvidia.compute_domain import DRIVER
from pydra_nvidia.compute_domain.controller.object_fields import CLIQUES, COMPUTE_DOMAINS, DAEMON_SETS
from pydra_nvidia.compute_domain.custom_resource_definitions import DEFINITIONS
from pydra_nvidia.compute_domain.names import DOMAIN_LABEL
from tests.e2e.added_nodes import TOLERATION, AddedNode, AddedNodes
from tests.e2e.cluster import Cluster, open_cluster

BACKEND = "nvidia-compute-domain"
PRIVILEGED = {"pod-security.kubernetes.io/enforce": "privileged"}
DEFINITION = Resource(
    group="apiextensions.k8s.io", version="v1", plural="customresourcedefinitions", kind="CustomResourceDefinition"
)
DAEMON = {
    "pydra-compute-domain": {
        "IMEX_HOSTS_FILE": "/etc/hosts",
        "IMEX_DIRECTORY": "/imexd",
        "IMEX_PROGRAM": "/usr/bin/nvidia-imex",
        "IMEX_CONTROL_PROGRAM": "/usr/bin/nvidia-imex-ctl",
    }
}


async def test_a_domain_of_three_nodes_lives_through_the_loss_of_one_and_its_return(tmp_path: Path) -> None:
    async with open_domain_nodes(tmp_path) as (cluster, nodes, names):
        await cluster.create(
            COMPUTE_DOMAINS,
            {"metadata": {"name": "rack"}, "spec": {"channel": {"resourceClaimTemplate": {"name": "rack-channel"}}}},
        )
        joined = [await nodes.join(name) for name in names]
        for number, name in enumerate(names):
            await start_pod(cluster, f"pod-{number}", name)
        await wait_condition(cluster, "Ready", "NodesReady", "all 3 nodes are ready")
        for number, node in enumerate(joined):
            assert channels(cluster, node, f"pod-{number}") == ["/dev/nvidia-caps-imex-channels/channel0"]

        lost, before = names[2], await indexes(cluster)
        assert sorted(before) == names
        assert sorted(before.values()) == [0, 1, 2]
        await nodes.lose(lost)
        await wait_condition(cluster, "Ready", "NodesNotReady", f"2 of 3 nodes are ready; {lost}: ")
        await nodes.remove(lost)
        await cluster.wait_gone("pod-2")
        await wait_condition(cluster, "Ready", "NodesReady", "all 2 nodes are ready")
        returned = await nodes.join(lost)
        await start_pod(cluster, "pod-3", lost)
        await wait_condition(cluster, "Ready", "NodesReady", "all 3 nodes are ready")
        assert await indexes(cluster) == before
        assert channels(cluster, returned, "pod-3") == ["/dev/nvidia-caps-imex-channels/channel0"]

        await cluster.client.delete(COMPUTE_DOMAINS, "rack", namespace=cluster.namespace)
        await wait_condition(cluster, "Deleting", "WaitingForPods", f"{cluster.namespace}/pod-0")
        for pod in ("pod-0", "pod-1", "pod-3"):
            await cluster.delete_pod(pod)
        await cluster.wait_gone("rack", COMPUTE_DOMAINS)
        await wait_nothing_left(cluster, nodes)


@asynccontextmanager
async def open_domain_nodes(scratch: Path) -> AsyncIterator[tuple[Cluster, AddedNodes, list[str]]]:
    """The kinds and classes, a controller, and the names of three nodes that may join."""
    own = secrets.token_hex(3)
    with make_root() as root:
        async with (
            open_cluster(DRIVER, **PRIVILEGED) as cluster,
            served(cluster),
            anyio.create_task_group() as tasks,
        ):
            nodes = AddedNodes(cluster, Path(root), tasks, backend=BACKEND, scenario="gb200", runs=DAEMON, logs=scratch)
            with run_controller(cluster.namespace, scratch / "controller.log"):
                try:
                    yield cluster, nodes, [f"pydra-e2e-{own}-{number}" for number in (1, 2, 3)]
                finally:
                    with anyio.CancelScope(shield=True):
                        await nodes.close()
                        await let_go(cluster)


@asynccontextmanager
async def served(cluster: Cluster) -> AsyncIterator[None]:
    """The custom resources and the classes, removed at the end if they were made here."""
    client, made = cluster.client, list[tuple[Resource, str]]()
    kinds = [(DEFINITION, one) for one in DEFINITIONS] if not await is_served(cluster) else []
    classes = [(DEVICE_CLASSES, {"metadata": {"name": name}, "spec": dict(spec)}) for name, spec in CLASSES.items()]
    for resource, body in (*kinds, *classes):
        with suppress(Conflict):
            made.append((resource, (await client.create(resource, body))["metadata"]["name"]))
    try:
        await cluster.wait("ComputeDomains are served", lambda: is_served(cluster))
        yield
    finally:
        with anyio.CancelScope(shield=True):
            for resource, name in made:
                with suppress(NotFound):
                    await client.delete(resource, name)


async def is_served(cluster: Cluster) -> bool:
    try:
        for resource in (COMPUTE_DOMAINS, CLIQUES):
            await cluster.client.list(resource)
    except KubeError:
        return False
    return True


@contextmanager
def run_controller(namespace: str, log: Path) -> Iterator[None]:
    """The controller as a process, for daemons in this namespace."""
    flags = ("--namespace", namespace, "--daemon-image", "pydra-nvidia", "--service-account", "default")
    command = [sys.executable, "-m", "pydra_nvidia.compute_domain.command", "controller", *flags]
    with log.open("ab") as output:
        process = subprocess.Popen(command, env={**os.environ, "POD_NAME": "e2e"}, stdout=output, stderr=output)
    try:
        yield
    finally:
        process.terminate()
        process.wait(40)


async def start_pod(cluster: Cluster, name: str, node: str) -> None:
    """A pod on this node that has a channel of the domain."""
    spec = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "nodeSelector": {"kubernetes.io/hostname": node},
        "tolerations": [TOLERATION],
        "resourceClaims": [{"name": "channel", "resourceClaimTemplateName": "rack-channel"}],
        "containers": [
            {
                "name": "main",
                "image": "busybox",
                "command": ["sleep", "infinity"],
                "resources": {"claims": [{"name": "channel"}]},
            }
        ],
    }
    await cluster.create(PODS, {"metadata": {"name": name}, "spec": spec})
    await cluster.wait_phase(name, "Running")


def channels(cluster: Cluster, node: AddedNode, pod: str) -> list[str]:
    created = node.created[f"{cluster.namespace}/{pod}"]
    return [device.path for device in created.after.devices if "imex-channels" in device.path]


async def wait_condition(cluster: Cluster, kind: str, reason: str, text: str) -> None:
    async def look() -> bool:
        found = await cluster.client.get(COMPUTE_DOMAINS, "rack", namespace=cluster.namespace)
        conditions = (found.get("status") or {}).get("conditions") or ()
        return any(one["type"] == kind and one["reason"] == reason and text in one["message"] for one in conditions)

    await cluster.wait(f"{kind} is {reason}: {text}", look)


async def indexes(cluster: Cluster) -> dict[str, int]:
    """The number of each node in the only clique."""
    (clique,) = (await cluster.client.list(CLIQUES, namespace=cluster.namespace)).items
    return {one["nodeName"]: one["index"] for one in clique["daemons"]}


async def wait_nothing_left(cluster: Cluster, nodes: AddedNodes) -> None:
    async def look() -> bool:
        client, own = cluster.client, cluster.namespace
        objects: list[JsonObject] = []
        for resource in (PODS, RESOURCE_CLAIMS, RESOURCE_CLAIM_TEMPLATES, DAEMON_SETS, CLIQUES):
            objects += (await client.list(resource, namespace=own)).items
        labelled = (await client.list(NODES, label_selector=DOMAIN_LABEL)).items
        on_nodes = [path for node in nodes.members.values() for path in node.find_left()]
        return not objects and not labelled and not on_nodes

    await cluster.wait("no object, label, record or CDI spec is left", look)


async def let_go(cluster: Cluster) -> None:
    """Of a test that failed: objects with finalizers, which would keep the namespace."""
    for resource in (COMPUTE_DOMAINS, DAEMON_SETS, RESOURCE_CLAIM_TEMPLATES):
        for found in (await cluster.client.list(resource, namespace=cluster.namespace)).items:
            with suppress(KubeError):
                name = found["metadata"]["name"]
                await cluster.client.patch(
                    resource, name, {"metadata": {"finalizers": None}}, namespace=cluster.namespace
                )
                await cluster.client.delete(resource, name, namespace=cluster.namespace)
