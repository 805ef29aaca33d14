"""A real cluster: the one that KUBECONFIG names, whose node's kubelet runs on this machine.

The agent runs as a process, as root, on the kubelet's own directories. Variables: PYDRA_E2E_NODE (the only node
otherwise), PYDRA_E2E_IMAGE (an image with sh, present on the node), PYDRA_E2E_KUBELET_ROOT, and
PYDRA_E2E_KUBELET_RESTART and PYDRA_E2E_RUNTIME_RESTART, commands that restart the kubelet and the container runtime
and return when they serve again.
"""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from pydra.checkpoint.record_files import RECORD, UNDO
from pydra.errors import Conflict, KubeError, NotFound
from pydra.kube.api_resources import (
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
from pydra.kube.client import KubeClient
from pydra.kube.credentials import load_credentials

DRIVER = "sim.pydra.dev"
IMAGE = os.environ.get("PYDRA_E2E_IMAGE", "localhost/busybox:latest")
KUBELET_ROOT = Path(os.environ.get("PYDRA_E2E_KUBELET_ROOT", "/var/lib/kubelet"))
CDI_DIRECTORY = Path("/var/run/cdi")
RECORDS_DIRECTORY = Path("/run/pydra")
REPORT = "{ env | grep ^SIM_; ls /dev/sim; } | sort >/dev/termination-log"
"""A script that ends with what it found in the container as its last word."""

STAY = "sleep 1000"
PING: JsonObject = {"securityContext": {"capabilities": {"add": ["NET_RAW"]}}}
"""Lets a container use `ping`. CRI-O gives none this capability by itself."""
PATIENCE = 200.0
"""The kubelet tries a failed prepare again after 60 to 90 seconds, and a second try can meet the same trouble."""

SHOWS_HEALTH = 36
"""The first minor version whose kubelets show the health of the devices of every claim, and the backend's message.

1.35 shows it for claims from templates only, 1.34 for claims that the pod calls by the name of the ResourceClaim.
"""


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
    """The cluster with a driver's devices in it, and a namespace of the test's own."""

    def __init__(self, client: KubeClient, namespace: str, node: str, driver: str = DRIVER) -> None:
        self.client = client
        self.namespace = namespace
        self.node = node
        self.driver = driver

    async def create(self, resource: Resource, body: JsonObject) -> JsonObject:
        """Create an object, in the test's namespace if it has one."""
        return await self.client.create(resource, body, namespace=self.namespace if resource.namespaced else "")

    async def create_class(self, name: str, *, kind: str = "accelerator") -> None:
        """A DeviceClass for the driver's devices of a type; left as it is when it exists."""
        expression = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == '{kind}'"
        with suppress(Conflict):
            body = {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}
            await self.create(DEVICE_CLASSES, body)

    async def create_claim(self, name: str, *, template: bool = False, **devices: Any) -> JsonObject:
        """A ResourceClaim, or a template, for one device of the driver's class unless `devices` says otherwise."""
        request = {"name": "accel", "exactly": {"deviceClassName": self.driver}}
        spec = {"devices": {"requests": [request], **devices}}
        if template:
            return await self.create(RESOURCE_CLAIM_TEMPLATES, {"metadata": {"name": name}, "spec": {"spec": spec}})
        return await self.create(RESOURCE_CLAIMS, {"metadata": {"name": name}, "spec": spec})

    async def create_pod(
        self,
        name: str,
        script: str,
        *,
        claims: Mapping[str, str] | None = None,
        containers: Mapping[str, Sequence[JsonObject]] | None = None,
        host_network: bool = True,
        **claim: str,
    ) -> JsonObject:
        """A pod whose containers run the script.

        `claim` says which claim it uses, resourceClaimName or resourceClaimTemplateName; or `claims` maps names in
        the pod to claims. `containers` maps a container to what it gets of them; one that gets all by default.
        """
        entries = (
            {"accel": claim} if claims is None else {key: {"resourceClaimName": one} for key, one in claims.items()}
        )
        containers = containers or {"main": [{"name": entry} for entry in entries]}
        spec = {
            "restartPolicy": "Never",
            "hostNetwork": host_network,
            "terminationGracePeriodSeconds": 1,
            "containers": [
                _container(key, script, uses) | ({} if host_network else PING) for key, uses in containers.items()
            ],
            "resourceClaims": [{"name": key, **entry} for key, entry in entries.items()],
        }
        return await self.create(PODS, {"metadata": {"name": name}, "spec": spec})

    async def start_pod(self, name: str, script: str, **options: Any) -> JsonObject:
        """The same, once it runs."""
        await self.create_pod(name, script, **options)
        return await self.wait_phase(name, "Running")

    async def run_pod(self, name: str, script: str = REPORT, **options: Any) -> dict[str, list[str]]:
        """What each container of a new pod found, once all have ended: variables of devices, and their nodes."""
        await self.create_pod(name, script, **options)
        return found_by(await self.wait_phase(name, "Succeeded"))

    async def pod(self, name: str) -> JsonObject:
        """The pod as it is."""
        return await self.client.get(PODS, name, namespace=self.namespace)

    async def wait_phase(self, name: str, phase: str) -> JsonObject:
        """The pod, once it has this phase."""
        found: JsonObject = await self.wait(f"pod {name} is {phase}", lambda: self._in_phase(name, phase))
        return found

    async def _in_phase(self, name: str, phase: str) -> JsonObject | None:
        pod = await self.pod(name)
        return pod if (pod.get("status") or {}).get("phase") == phase else None

    async def wait_health(self, pod: str, wanted: str, message: str = "") -> None:
        """Wait until the status of a pod's first container shows a device of this health, with these words.

        Kubelets older than SHOWS_HEALTH are not asked.
        """
        info = (await self.client.get(NODES, self.node))["status"]["nodeInfo"]
        if int(info["kubeletVersion"].split(".")[1]) < SHOWS_HEALTH:
            return
        await self.wait(f"{wanted} in the status of pod {pod}", lambda: self._shows_health(pod, wanted, message))

    async def _shows_health(self, pod: str, wanted: str, message: str) -> bool:
        statuses = (await self.pod(pod))["status"].get("containerStatuses") or [{}]
        resources = [one for status in statuses[0].get("allocatedResourcesStatus") or () for one in status["resources"]]
        return any(one["health"] == wanted and message in one.get("message", "") for one in resources)

    async def delete_pod(self, name: str) -> None:
        """Delete the pod and wait until it is gone, which the kubelet allows only after unprepare."""
        await self.client.delete(PODS, name, namespace=self.namespace)
        await self.wait_gone(name)

    async def force_delete_pod(self, name: str) -> None:
        """Remove the pod from the API at once; the kubelet finds out, and cleans up by itself."""
        await self.client.delete(PODS, name, namespace=self.namespace, grace_period=0)

    async def wait_gone(self, name: str, resource: Resource = PODS) -> None:
        """Wait until the pod, or another object of the test's namespace, is gone."""
        await self.wait(f"{resource.kind} {name} is gone", lambda: self._is_gone(resource, name))

    async def _is_gone(self, resource: Resource, name: str) -> bool:
        try:
            await self.client.get(resource, name, namespace=self.namespace)
        except NotFound:
            return True
        return False

    async def wait_unprepared(self) -> None:
        """Wait until nothing of any claim is left on the node."""

        async def look() -> bool:
            return not cdi_files(self.driver) and not records(self.driver)

        await self.wait("no CDI file and no checkpoint is left", look)

    async def clear(self) -> None:
        """Delete all pods of the test, and wait until they are gone; those of a release serve on meanwhile."""
        found = await self.client.list(
            PODS, namespace=self.namespace, label_selector="app.kubernetes.io/managed-by!=Helm"
        )
        names = [pod["metadata"]["name"] for pod in found.items]
        for name in names:
            with suppress(NotFound):
                await self.client.delete(PODS, name, namespace=self.namespace)
        for name in names:
            await self.wait_gone(name)

    async def slices(self) -> list[JsonObject]:
        """The driver's slices of the node."""
        selector = f"spec.driver={self.driver},spec.nodeName={self.node}"
        return list((await self.client.list(RESOURCE_SLICES, field_selector=selector)).items)

    async def wait_published(self) -> list[JsonObject]:
        """The slices, once there are any."""
        found: list[JsonObject] = await self.wait("slices are published", self.slices)
        return found

    async def notes(self, reason: str, *, about: str = "") -> list[str]:
        """What the Events with this reason in the namespace say, all or those about the object of a name."""
        found = (await self.client.list(EVENTS, namespace=self.namespace)).items
        return [
            str(event.get("note"))
            for event in found
            if event.get("reason") == reason and about in ("", event["regarding"]["name"])
        ]

    async def wait_note(self, reason: str, *, about: str, saying: str = "") -> str:
        """The first of them that has the words, once there is one."""

        async def look() -> str:
            return next((note for note in await self.notes(reason, about=about) if saying in note), "")

        return str(await self.wait(f"an Event {reason} on {about} saying {saying!r}", look))

    async def stays_pending(self, name: str) -> str:
        """Why the scheduler leaves the pod alone, in its own words, once it has said so."""
        return await self.wait_note("FailedScheduling", about=name)

    async def devices(self) -> list[JsonObject]:
        """All devices in the driver's slices of the node."""
        return [device for one in await self.slices() for device in one["spec"].get("devices") or ()]

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
async def open_cluster(driver: str = DRIVER, **labels: str) -> AsyncIterator[Cluster]:
    """The cluster with a fresh namespace with these labels, which goes with everything in it."""
    async with KubeClient(await load_credentials(environ=os.environ)) as client:
        nodes = [node["metadata"]["name"] for node in (await client.list(NODES)).items]
        namespace = f"pydra-e2e-{secrets.token_hex(4)}"
        cluster = Cluster(client, namespace, os.environ.get("PYDRA_E2E_NODE") or nodes[0], driver)
        await cluster.create(NAMESPACES, {"metadata": {"name": namespace, "labels": labels}})
        try:
            await cluster.wait("a service account", lambda: _has_account(client, namespace))
            yield cluster
        finally:
            for pod in (await client.list(PODS, namespace=namespace)).items:  # left by a test that failed
                await cluster.force_delete_pod(pod["metadata"]["name"])
            await client.delete(NAMESPACES, namespace)


def found_by(pod: JsonObject) -> dict[str, list[str]]:
    """What each container of an ended pod has said last, line by line."""
    ended = {one["name"]: one["state"]["terminated"] for one in pod["status"]["containerStatuses"]}
    return {name: str(one.get("message", "")).splitlines() for name, one in ended.items()}


def find_processes(pods: Iterable[JsonObject], named: bytes) -> Iterator[Path]:
    """The directories of processes of pods of this node whose command line has the name."""
    uids = [pod["metadata"]["uid"] for pod in pods]
    for path in Path("/proc").glob("[0-9]*/cgroup"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            groups = path.read_text().replace("_", "-")
            if any(uid in groups for uid in uids) and named in path.with_name("cmdline").read_bytes():
                yield path.parent


def kill_processes(pods: Iterable[JsonObject], named: bytes) -> None:
    """Kill these processes."""
    for path in find_processes(pods, named):
        with suppress(ProcessLookupError):
            os.kill(int(path.name), signal.SIGKILL)


def cdi_files(driver: str = DRIVER) -> list[Path]:
    """The driver's CDI specs on the node."""
    return sorted(CDI_DIRECTORY.glob(f"{driver}-claim_*.json"))


def records(driver: str = DRIVER) -> list[Path]:
    """The driver's records on the node, volatile and durable ones."""
    directories = (RECORDS_DIRECTORY / driver, KUBELET_ROOT / "plugins" / driver)
    found = (path for directory in directories for path in directory.rglob("*"))
    return sorted(path for path in found if path.suffix in (RECORD, UNDO))


def _container(name: str, script: str, uses: Sequence[JsonObject]) -> JsonObject:
    return {
        "name": name,
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", script],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": {"claims": list(uses)},
    }


async def _has_account(client: KubeClient, namespace: str) -> bool:
    accounts = Resource(version="v1", plural="serviceaccounts", kind="ServiceAccount", namespaced=True)
    return bool((await client.list(accounts, namespace=namespace)).items)
