"""Record what the scheduler of a real cluster gives to the worlds of `test_allocation_outcomes`.

    KUBECONFIG=... .venv/bin/python plugins/pydra-dev/tests/record_allocations.py [generated worlds, 320 by default]

The cluster must be of the release that the embedded one follows (1.36), with its default feature gates, and without
ResourceSlices of others. Its node is only an object: nothing of a pod runs.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "support"))

from allocation_families import FAMILIES
from allocation_outcomes import DATA, allocate_world, fingerprint, normalize
from allocation_worlds import NODE, build_world
from pydra.errors import Conflict, KubeError, NotFound
from pydra.kube.api_resources import (
    DEVICE_CLASSES,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    JsonObject,
    Resource,
)
from pydra.kube.client import KubeClient
from pydra.kube.credentials import load_credentials
from pydra_dev.scheduler.allocator import AllocationError

NAMESPACE = "pydra-allocations"
SETTLE = 0.25
"""Seconds for the scheduler's caches to see what was written."""
PATIENCE = 60.0
CONSUMER = {"apiGroup": "example.com", "resource": "things", "name": "x", "uid": "x"}
"""Keeps claims allocated that no pod uses."""


class Recorder:
    """Builds one world after another in a cluster, and reads what became of its claims."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._made: list[tuple[Resource, str]] = []

    async def prepare(self) -> None:
        """Make the node and the namespace."""
        labels = {"resource.kubernetes.io/admin-access": "true"}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        resources = {"cpu": "64", "memory": "64Gi", "pods": "1000"}
        node = {
            "metadata": {"name": NODE, "labels": {"kubernetes.io/hostname": NODE, "zone": "a"}},
            "status": {"allocatable": resources, "capacity": resources, "conditions": [ready]},
        }
        with suppress(Conflict):
            await self._client.create(
                NAMESPACES, _body(NAMESPACES, {"metadata": {"name": NAMESPACE, "labels": labels}})
            )
        with suppress(Conflict):
            await self._client.create(NODES, _body(NODES, node))

    async def create(self, resource: Resource, body: JsonObject) -> JsonObject:
        """Create an object that goes with its world."""
        created = await self._client.create(resource, _body(resource, body), namespace=_namespace(resource))
        self._made.append((resource, created["metadata"]["name"]))
        return created

    async def record(self, world: JsonObject) -> JsonObject:
        """What the scheduler did: `allocations`, or why it `refused`."""
        try:
            await self._build(world)
            await asyncio.sleep(SETTLE)
            names = [claim["metadata"]["name"] for claim in world["claims"]]
            await self._create_pod(names)
            return await self._read_outcome(names)
        finally:
            await self.clean(self._made)
            self._made.clear()

    async def _build(self, world: JsonObject) -> None:
        for name, spec in world["classes"].items():
            await self.create(DEVICE_CLASSES, {"metadata": {"name": name}, "spec": spec})
        for one in world["slices"]:
            await self.create(RESOURCE_SLICES, one)
        for index, status in enumerate(world["held"]):
            (result,) = status["allocation"]["devices"]["results"]
            admin = {"adminAccess": True} if result.get("adminAccess") else {}
            requests = [{"name": "r", "exactly": {"deviceClassName": "any", **admin}}]
            held = {"metadata": {"name": f"held-{index}"}, "spec": {"devices": {"requests": requests}}}
            created = await self.create(RESOURCE_CLAIMS, held)
            body = {**created, "status": {**status, "reservedFor": [CONSUMER]}}
            await self._client.replace(
                RESOURCE_CLAIMS, f"held-{index}", body, namespace=NAMESPACE, subresource="status"
            )
        for claim in world["claims"]:
            await self.create(RESOURCE_CLAIMS, claim)

    async def _create_pod(self, claims: list[str]) -> None:
        spec = {
            "nodeSelector": {"kubernetes.io/hostname": NODE},
            "tolerations": [{"operator": "Exists"}],
            "automountServiceAccountToken": False,
            "containers": [{"name": "c", "image": "none:1"}],
            "resourceClaims": [{"name": name, "resourceClaimName": name} for name in claims],
        }
        for attempt in count():
            try:
                await self.create(PODS, {"metadata": {"name": "pod"}, "spec": spec})
                return
            except KubeError:  # a new namespace has no service account yet
                if attempt > 20:
                    raise
                await asyncio.sleep(0.5)

    async def _read_outcome(self, claims: list[str]) -> JsonObject:
        async with asyncio.timeout(PATIENCE):
            while True:
                found = [await self._client.get(RESOURCE_CLAIMS, name, namespace=NAMESPACE) for name in claims]
                allocations = [claim.get("status", {}).get("allocation") for claim in found]
                if all(allocations):
                    return {"allocations": [normalize(allocation) for allocation in allocations]}
                pod = await self._client.get(PODS, "pod", namespace=NAMESPACE)
                for condition in pod.get("status", {}).get("conditions") or ():
                    if condition["type"] == "PodScheduled" and condition["status"] == "False" and not any(allocations):
                        return {"refused": condition["message"].replace(f"{NAMESPACE}/", "default/")}
                await asyncio.sleep(0.05)

    async def clean(self, made: Iterable[tuple[Resource, str]]) -> None:
        """Delete objects, their finalizers first."""
        objects = list(reversed(list(made)))
        for resource, name in objects:
            with suppress(NotFound):
                if resource is RESOURCE_CLAIMS:
                    none = {"metadata": {"finalizers": None}}
                    await self._client.patch(resource, name, none, namespace=NAMESPACE)
                await self._client.delete(resource, name, namespace=_namespace(resource), grace_period=0)
        for resource, name in objects:
            with suppress(NotFound):
                while resource is RESOURCE_CLAIMS:
                    await self._client.get(resource, name, namespace=NAMESPACE)
                    with suppress(NotFound):
                        none = {"metadata": {"finalizers": None}}
                        await self._client.patch(resource, name, none, namespace=NAMESPACE)
                    await asyncio.sleep(0.05)


def _body(resource: Resource, body: JsonObject) -> JsonObject:
    return {"apiVersion": resource.api_version, "kind": resource.kind, **body}


def _namespace(resource: Resource) -> str:
    return NAMESPACE if resource.namespaced else ""


def choose_worlds(generated: int) -> dict[str, Any]:
    """The hand-written worlds, and generated ones whose search is short enough for the embedded allocator."""
    worlds: dict[str, Any] = dict(FAMILIES)
    for seed in count():
        if len(worlds) == len(FAMILIES) + generated:
            return worlds
        world = build_world(seed)
        try:
            allocate_world(world)
        except AllocationError as error:
            if "no combination of devices found" in str(error):
                continue
        worlds[f"world-{seed}"] = world
    raise AssertionError("there is no last number")


async def main() -> None:
    """Record every world."""
    worlds = choose_worlds(int(sys.argv[1]) if len(sys.argv) > 1 else 320)
    outcomes: dict[str, JsonObject] = {}
    async with KubeClient(await load_credentials(environ=os.environ), user_agent="pydra-record") as client:
        recorder = Recorder(client)
        await recorder.prepare()
        version = (await client.fetch("/version"))["gitVersion"]
        for number, (name, world) in enumerate(worlds.items(), 1):
            outcomes[name] = {"world": fingerprint(world), **await recorder.record(world)}
            sys.stdout.write(f"{number}/{len(worlds)} {name}: {', '.join(sorted(outcomes[name]))}\n")
        await recorder.clean([(NODES, NODE), (NAMESPACES, NAMESPACE)])
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(outcome)}" for name, outcome in outcomes.items())
    DATA.parent.mkdir(exist_ok=True)
    DATA.write_text(f'{{"scheduler": {json.dumps(version)}, "outcomes": {{\n{lines}\n}}}}\n')


if __name__ == "__main__":
    asyncio.run(main())
