"""A node as its users see it: the claims and pods that they create, and what becomes of these."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import anyio

from pydra.errors import NotFound
from pydra.kube.api_resources import (
    DEVICE_CLASSES,
    EVENTS,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    JsonObject,
)
from pydra_dev.container_runtime.cdi_injection import OciSpec
from pydra_dev.kubelet.observations import Called, ContainerCreated, PodEnded, PodRunning, Step
from pydra_dev.node import EmbeddedNode
from tests.integration.agent.process import DEADLINE

NAMESPACE = "default"
LOOK_SECONDS = 0.05
"""Between two looks: a question to the API server costs a tenth of that."""


class NodeUser:
    """Creates claims and pods on an embedded node; `steps` has what the kubelet does."""

    def __init__(self, node: EmbeddedNode, steps: list[Step]) -> None:
        self.node = node
        self.steps = steps
        self._uids: dict[str, str] = {}

    # What users do

    async def create_classes(self, classes: Mapping[str, Mapping[str, Any]]) -> None:
        """Create the DeviceClasses of a backend."""
        for name, spec in classes.items():
            await self.node.client.create(DEVICE_CLASSES, {"metadata": {"name": name}, "spec": dict(spec)})

    async def create_claim(
        self, name: str, *requests: Mapping[str, Any], template: bool = False, **devices: Any
    ) -> JsonObject:
        """Create a ResourceClaim, or a template; `devices` are further fields of `spec.devices`."""
        spec: JsonObject = {"devices": {"requests": list(requests), **devices}}
        if template:
            body = {"metadata": {"name": name}, "spec": {"spec": spec}}
            return await self.node.client.create(RESOURCE_CLAIM_TEMPLATES, body, namespace=NAMESPACE)
        body = {"metadata": {"name": name}, "spec": spec}
        created = await self.node.client.create(RESOURCE_CLAIMS, body, namespace=NAMESPACE)
        self._uids[name] = created["metadata"]["uid"]
        return created

    async def create_pod(
        self,
        name: str,
        claim: str = "",
        *,
        template: str = "",
        containers: Mapping[str, Sequence[JsonObject]] | None = None,
    ) -> None:
        """Create a pod with one claim, that of its name by default, for its container `main`."""
        source = {"resourceClaimTemplateName": template} if template else {"resourceClaimName": claim or name}
        uses = {"main": [{"name": "it"}]} if containers is None else containers
        spec = {
            "restartPolicy": "Never",
            "resourceClaims": [{"name": "it", **source}],
            "containers": [
                {"name": key, "image": "busybox", "command": ["sleep", "infinity"], "resources": {"claims": list(used)}}
                for key, used in uses.items()
            ],
        }
        await self.node.client.create(PODS, {"metadata": {"name": name}, "spec": spec}, namespace=NAMESPACE)

    async def create_both(self, name: str, *requests: Mapping[str, Any], **devices: Any) -> JsonObject:
        """Create a claim, and a pod with it."""
        created = await self.create_claim(name, *requests, **devices)
        await self.create_pod(name)
        return created

    async def apply(self, template: JsonObject, pod: JsonObject) -> JsonObject:
        """Create a ResourceClaimTemplate, and a pod."""
        await self.node.client.create(RESOURCE_CLAIM_TEMPLATES, template, namespace=NAMESPACE)
        return await self.node.client.create(PODS, pod, namespace=NAMESPACE)

    async def delete_pod(self, name: str) -> None:
        """Ask for the pod's end; whether it can end is another matter."""
        await self.node.client.delete(PODS, name, namespace=NAMESPACE)

    async def end_pods(self, *pods: str) -> None:
        """Delete pods, and wait until they are gone; the claims of their templates go with them."""
        for pod in pods:
            with suppress(NotFound):
                await self.delete_pod(pod)
        for pod in pods:
            await self.until(partial(self._is_gone, pod), f"pod {pod} is gone")

    async def end(self, *names: str) -> None:
        """Delete pods and, when they are gone, the claims of the same names."""
        await self.end_pods(*names)
        for name in names:
            await self.node.client.delete(RESOURCE_CLAIMS, name, namespace=NAMESPACE)

    # What they see

    async def allocated(self, claim: str) -> list[str]:
        """The devices of a claim."""
        return [one["device"] for one in await self.results(claim)]

    async def results(self, claim: str) -> list[JsonObject]:
        """The results of its allocation."""
        found = await self.node.client.get(RESOURCE_CLAIMS, claim, namespace=NAMESPACE)
        results: list[JsonObject] = found["status"]["allocation"]["devices"]["results"]
        return results

    async def devices(self) -> dict[str, JsonObject]:
        """All that is published, by name."""
        slices = (await self.node.client.list(RESOURCE_SLICES)).items
        return {device["name"]: device for one in slices for device in one["spec"].get("devices") or ()}

    async def wait_published(self) -> None:
        """Wait until there are devices."""
        await self.until(self.devices, "devices are published")

    def runs(self, pod: str) -> bool:
        """Whether the pod runs or has run."""
        return PodRunning(pod=f"{NAMESPACE}/{pod}") in self.steps

    async def wait_running(self, *pods: str) -> None:
        """Wait until these pods run."""
        for pod in pods:
            await self.until(partial(self.runs, pod), partial(self._describe, pod))

    async def wait_ended(self, *pods: str) -> None:
        """Wait until the kubelet has ended these pods."""
        wanted = {PodEnded(pod=f"{NAMESPACE}/{pod}") for pod in pods}
        await self.until(lambda: all(one in self.steps for one in wanted), f"{pods} ended")

    async def pending(self, pod: str) -> str:
        """Wait for the scheduler's reason to leave the pod alone."""
        said: list[str] = []

        async def look() -> bool:
            status = (await self.node.client.get(PODS, pod, namespace=NAMESPACE))["status"]
            said[:] = [
                one["message"]
                for one in status.get("conditions") or ()
                if one["type"] == "PodScheduled" and one["status"] != "True"
            ]
            return bool(said)

        await self.until(look, f"{pod} is pending")
        return said[0]

    def container(self, pod: str, name: str = "") -> OciSpec:
        """What the runtime made a container of the pod with: the first one, or that of a name."""
        created = (one for one in self.steps if isinstance(one, ContainerCreated) and one.pod == f"{NAMESPACE}/{pod}")
        return next(one.after for one in created if name in ("", one.container))

    def errors(self, claim: str = "") -> list[str]:
        """What the kubelet got for a claim, or for all."""
        calls = (step for step in self.steps if isinstance(step, Called))
        return [one.error for one in calls if one.error and (not claim or f"{NAMESPACE}/{claim}" in one.claims)]

    async def wait_error(self, claim: str, pattern: str) -> None:
        """Wait until the kubelet gets this for a claim."""
        await self.until(
            lambda: any(re.search(pattern, error) for error in self.errors(claim)),
            lambda: f"the error of {claim} has {pattern}: {self.errors(claim)[-1:]}",
        )

    async def wait_event(self, claim: str, reason: str, pattern: str) -> str:
        """Wait for this Event on a claim, or on anything for an empty `claim`."""
        notes: list[str] = []

        def find() -> str:
            return next((note for note in notes if re.match(rf"({reason}): .*({pattern})", note, re.DOTALL)), "")

        async def look() -> bool:
            found = (await self.node.client.list(EVENTS)).items
            uid = self._uids[claim] if claim else ""
            about = [one for one in found if not claim or (one.get("regarding") or {}).get("uid") == uid]
            notes[:] = [f"{one['reason']}: {one.get('note')}" for one in about]
            return bool(find())

        await self.until(look, lambda: f"{reason} on {claim} says {pattern}: {notes}, {self.errors(claim)[-1:]}")
        return find()

    async def until(
        self, holds: Callable[[], Awaitable[Any] | object], what: str | Callable[[], str] = "this happens"
    ) -> None:
        """Wait until it holds; else `what` does not."""
        with anyio.move_on_after(DEADLINE):
            while not (await found if inspect.isawaitable(found := holds()) else found):
                await anyio.sleep(LOOK_SECONDS)
            return
        raise AssertionError(f"not in time: {what if isinstance(what, str) else what()}")

    async def _is_gone(self, pod: str) -> bool:
        return all(one["metadata"]["name"] != pod for one in (await self.node.client.list(PODS)).items)

    def _describe(self, pod: str) -> str:
        return f"{pod} runs: {self.errors(pod)[-1:]}"
