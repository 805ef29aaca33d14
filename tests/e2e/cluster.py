"""A real cluster: the one that KUBECONFIG names, whose node's kubelet runs on this machine.

The agent runs as a process, as root, on the kubelet's own directories. Variables: PYDRA_E2E_NODE (the only node
otherwise), PYDRA_E2E_IMAGE (an image with sh, present on the node), PYDRA_E2E_KUBELET_ROOT.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from pydra.errors import Conflict, KubeError, NotFound
from pydra.kube.auth import load_credentials
from pydra.kube.client import KubeClient
from pydra.kube.resources import (
    DEVICE_CLASSES,
    EVENTS,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    JsonObject,
    Resource,
)

DRIVER = "sim.pydra.dev"
IMAGE = os.environ.get("PYDRA_E2E_IMAGE", "localhost/busybox:latest")
KUBELET_ROOT = Path(os.environ.get("PYDRA_E2E_KUBELET_ROOT", "/var/lib/kubelet"))
CDI_DIRECTORY = Path("/var/run/cdi")
PATIENCE = 100.0
"""The kubelet tries a failed prepare again after 60 to 90 seconds."""


def missing() -> str:
    """Why there is nothing to test against, or nothing."""
    if not os.environ.get("KUBECONFIG"):
        return "KUBECONFIG names no cluster"
    if os.geteuid() != 0:
        return "the kubelet's directories need root"
    if not KUBELET_ROOT.is_dir():
        return f"no kubelet on this machine: {KUBELET_ROOT} does not exist"
    return ""


class Cluster:
    """The cluster, and a namespace of the test's own in it."""

    def __init__(self, client: KubeClient, namespace: str, node: str) -> None:
        self.client = client
        self.namespace = namespace
        self.node = node

    async def create(self, resource: Resource, body: JsonObject) -> JsonObject:
        """Create an object, in the test's namespace if it has one."""
        body = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
        return await self.client.create(resource, body, namespace=self.namespace if resource.namespaced else "")

    async def create_class(self, name: str, **spec: Any) -> None:
        """A DeviceClass for the driver's accelerators; left as it is when it exists."""
        expression = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'accelerator'"
        selectors = [{"cel": {"expression": expression}}]
        with suppress(Conflict):
            await self.create(DEVICE_CLASSES, {"metadata": {"name": name}, "spec": {"selectors": selectors, **spec}})

    async def create_claim(self, name: str, *, template: bool = False, **devices: Any) -> JsonObject:
        """A ResourceClaim, or a template, for one accelerator unless `devices` says otherwise."""
        request = {"name": "accel", "exactly": {"deviceClassName": DRIVER}}
        spec = {"devices": {"requests": [request], **devices}}
        if template:
            return await self.create(RESOURCE_CLAIM_TEMPLATES, {"metadata": {"name": name}, "spec": {"spec": spec}})
        return await self.create(RESOURCE_CLAIMS, {"metadata": {"name": name}, "spec": spec})

    async def create_pod(self, name: str, script: str, **claim: str) -> JsonObject:
        """A pod of one container that runs the script; `claim` says which: resourceClaimName or ...TemplateName."""
        container = {
            "name": "main",
            "image": IMAGE,
            "imagePullPolicy": "IfNotPresent",
            "command": ["sh", "-c", script],
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "resources": {"claims": [{"name": "accel"}]},
        }
        spec = {
            "restartPolicy": "Never",
            "hostNetwork": True,
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
            "resourceClaims": [{"name": "accel", **claim}],
        }
        return await self.create(PODS, {"metadata": {"name": name}, "spec": spec})

    async def pod(self, name: str) -> JsonObject:
        """The pod as it is."""
        return await self.client.get(PODS, name, namespace=self.namespace)

    async def wait_phase(self, name: str, phase: str) -> JsonObject:
        """The pod, once it has this phase."""
        return await self.wait(f"pod {name} is {phase}", lambda: self._in_phase(name, phase))

    async def _in_phase(self, name: str, phase: str) -> JsonObject | None:
        pod = await self.pod(name)
        return pod if (pod.get("status") or {}).get("phase") == phase else None

    async def delete_pod(self, name: str) -> None:
        """Delete the pod and wait until it is gone, which the kubelet allows only after unprepare."""
        await self.client.delete(PODS, name, namespace=self.namespace, grace_period=0)
        await self.wait(f"pod {name} is gone", lambda: self._is_gone(name))

    async def _is_gone(self, name: str) -> bool:
        try:
            await self.pod(name)
        except NotFound:
            return True
        return False

    async def slices(self) -> list[JsonObject]:
        """The driver's slices of the node."""
        selector = f"spec.driver={DRIVER},spec.nodeName={self.node}"
        return list((await self.client.list(RESOURCE_SLICES, field_selector=selector)).items)

    async def wait_published(self) -> list[JsonObject]:
        """The slices, once there are any."""
        return await self.wait("slices are published", self.slices)

    async def notes(self, reason: str) -> list[str]:
        """What the Events with this reason in the namespace say."""
        found = (await self.client.list(EVENTS, namespace=self.namespace)).items
        return [str(event.get("note")) for event in found if event.get("reason") == reason]

    async def wait(self, what: str, look: Callable[[], Any]) -> Any:
        """What `look` gives, once that is something."""
        with anyio.move_on_after(PATIENCE):
            while True:
                try:
                    if found := await look():
                        return found
                except KubeError:
                    pass
                await anyio.sleep(0.1)
        pytest.fail(f"not within {PATIENCE:g} s: {what}")


@asynccontextmanager
async def open_cluster() -> AsyncIterator[Cluster]:
    """The cluster with a fresh namespace, which goes with everything in it."""
    async with KubeClient(await load_credentials(environ=os.environ)) as client:
        nodes = [node["metadata"]["name"] for node in (await client.list(NODES)).items]
        namespace = f"pydra-e2e-{secrets.token_hex(4)}"
        cluster = Cluster(client, namespace, os.environ.get("PYDRA_E2E_NODE") or nodes[0])
        await cluster.create(NAMESPACES, {"metadata": {"name": namespace}})
        try:
            await cluster.wait("a service account", lambda: _has_account(client, namespace))
            yield cluster
        finally:
            for pod in (await client.list(PODS, namespace=namespace)).items:
                await cluster.delete_pod(pod["metadata"]["name"])
            await client.delete(NAMESPACES, namespace)


async def _has_account(client: KubeClient, namespace: str) -> bool:
    accounts = Resource(version="v1", plural="serviceaccounts", kind="ServiceAccount", namespaced=True)
    return bool((await client.list(accounts, namespace=namespace)).items)


class Agent:
    """The agent's process."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Its exit code."""
        self.process.send_signal(how)
        return self.process.wait(40)


@contextmanager
def run_agent(
    node: str, scratch: Path, *, scenario: str = "", pod_uid: str = "", flags: tuple[str, ...] = ()
) -> Iterator[Agent]:
    """The agent with simulated accelerators on the real kubelet's directories."""
    environ = {**os.environ, "PYDRA_SIM_STATE": str(scratch / "hardware")}
    for name in [name for name in environ if name.startswith("PYDRA_E2E_")]:
        del environ[name]
    if scenario:
        (scratch / "scenario.yaml").write_text(scenario)
        environ["PYDRA_SIM_SCENARIO"] = str(scratch / "scenario.yaml")
    log = scratch / f"agent{pod_uid}.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "pydra.cli.agent", "--backend", "sim", "--node-name", node),
                *("--kubelet-root", str(KUBELET_ROOT), "--http-address", "", "--log-level", "debug"),
                *(("--pod-uid", pod_uid) if pod_uid else ()),
                *flags,
            ],
            env=environ,
            stdout=output,
            stderr=output,
        )
    agent = Agent(process, log)
    try:
        yield agent
    finally:
        if process.poll() is None:
            agent.stop()
