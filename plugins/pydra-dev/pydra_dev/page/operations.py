"""What the page can look at and do, of one run of `pydra dev`: the API server's objects, the agent and the hardware."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path

import msgspec

from pydra.diagnosis.explain import Judgements
from pydra.errors import SettingsError
from pydra_dev.api.errors import StatusError
from pydra_dev.api.kinds import DEVICE_TAINT_RULES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from pydra_dev.container_runtime.cdi_specs import read_specs
from pydra_dev.kubelet.observations import Called, Deregistered, HealthChanged, Step
from pydra_dev.manifests import Manifest, create_object, parse_manifests
from pydra_dev.node import AgentProcess, EmbeddedNode
from pydra_dev.output.descriptions import full_name
from pydra_dev.page.view import (
    Claim,
    ClaimPage,
    Device,
    DevicePage,
    Pool,
    build_claim_page,
    build_claims,
    build_device_page,
    build_shown_pools,
)
from pydra_dev.scheduler.allocator import AllocationError
from pydra_dev.scheduler.pools import DeviceKey
from pydra_dev.scheduler.scheduler import SliceReader, read_claims_in_use, review_claim

TAINT = {"key": "pydra.dev/broken", "value": "on-the-page", "effect": "NoSchedule"}


class OperationError(Exception):
    """The page asked for what cannot be done; the text says why."""


class View(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that changes by itself. `agent` and `backends` are processes, `failure` is why the run has failed."""

    agent: int
    backends: tuple[int, ...]
    failure: str
    pods: bool
    """Whether another pod can be started."""
    pools: tuple[Pool, ...]
    claims: tuple[Claim, ...]


class Operations:
    """One node, from its start to its end. The run tells it the kubelet's steps, and its own failure.

    `manifests` are what was applied: another pod is a copy of the first one there.
    """

    def __init__(self, node: EmbeddedNode, agent: AgentProcess) -> None:
        self.failure = ""
        self.manifests: Sequence[Manifest] = ()
        self._node = node
        self._api = node.server.api
        self._agent = agent
        self._slices = SliceReader(self._api)
        self._calls: dict[str, Called] = {}
        self._health: dict[str, dict[DeviceKey, str]] = {}

    def follow(self, step: Step) -> None:
        """Remember what the API does not say."""
        match step:
            case Called():
                self._calls.update(dict.fromkeys(step.claims, step))
            case HealthChanged(driver=driver, devices=devices):
                self._health[driver] = {(driver, pool, device): health for pool, device, health in devices}
            case Deregistered(plugin=plugin):
                self._health.pop(plugin.driver, None)

    def build_view(self) -> View:
        """The node as it is now."""
        return View(
            agent=self._agent.pid if self._agent.returncode is None else 0,
            backends=self._agent.find_backends(),
            failure=self.failure,
            pods=self._find_pod() is not None,
            pools=self._build_pools(),
            claims=self._build_claims(),
        )

    def _build_pools(self) -> tuple[Pool, ...]:
        claims = self._api.list(RESOURCE_CLAIMS).items
        node = self._api.find(NODES, self._node.settings.node_name)
        if node is None:
            return ()
        return build_shown_pools(
            self._slices.read(),
            node=node,
            in_use=read_claims_in_use(claims),
            claims=claims,
            health={key: health for known in self._health.values() for key, health in known.items()},
        )

    def _build_claims(self) -> tuple[Claim, ...]:
        return build_claims(self._api.list(RESOURCE_CLAIMS).items, self._api.list(PODS).items, self._calls)

    def explain_claim(self, namespace: str, name: str) -> ClaimPage:
        """Why a claim has its devices, and not others. Raises OperationError."""
        obj = self._api.find(RESOURCE_CLAIMS, name, namespace=namespace)
        if obj is None:
            raise OperationError(f"there is no claim {namespace}/{name} any more")
        try:
            reviews = review_claim(self._api, obj, self._node.settings.node_name)
        except AllocationError as error:
            reviews = Judgements(problem=str(error))
        (claim,) = (one for one in self._build_claims() if (one.namespace, one.name) == (namespace, name))
        call = self._calls.get(full_name(obj))
        found = read_specs(self._node.cdi_directory, call.cdi_ids if call is not None else ())
        specs = tuple((path, content.decode(errors="replace")) for path, content in found)
        return msgspec.structs.replace(build_claim_page(claim, obj, reviews), specs=specs)

    def describe_device(self, key: DeviceKey) -> DevicePage:
        """All about a device. Raises OperationError."""
        return build_device_page(self._find_device(key), self._api.list(RESOURCE_SLICES).items)

    def _find_device(self, key: DeviceKey) -> Device:
        devices = (one for pool in self._build_pools() for group in pool.groups for one in group.devices)
        found = next((one for one in devices if one.key == key), None)
        if found is None:
            raise OperationError(f"device {key[-1]} is not published any more")
        return found

    def break_device(self, key: DeviceKey) -> None:
        """Make the simulated hardware unhealthy, where it can be told so, or else taint the device in the API."""
        self._find_device(key)
        if (marks := self._marks).is_dir():
            (marks / key[-1]).write_text("broken on the page of pydra dev")
            return
        rule = {
            "metadata": {"name": _name_rule(key)},
            "spec": {"deviceSelector": dict(zip(("driver", "pool", "device"), key, strict=True)), "taint": TAINT},
        }
        try:
            self._api.create(DEVICE_TAINT_RULES, rule)
        except StatusError as error:
            raise OperationError(error.message) from error

    def repair_device(self, key: DeviceKey) -> None:
        """Undo `break_device`. Raises OperationError for a device that was not broken here."""
        self._find_device(key)
        mark, rule = self._marks / key[-1], _name_rule(key)
        if mark.exists():
            mark.unlink()
        elif self._api.find(DEVICE_TAINT_RULES, rule) is not None:
            self._api.delete(DEVICE_TAINT_RULES, rule)
        else:
            raise OperationError(f"device {key[-1]} was not broken on this page")

    @property
    def _marks(self) -> Path:
        """Simulated hardware that reads marks has made this directory: a file in it breaks the device of its name."""
        return Path(self._node.root, "hardware", "unhealthy")

    def crash_backend(self) -> None:
        """End its processes as a segmentation fault in a vendor's library does. Raises OperationError."""
        found = self._agent.find_backends()
        if not found:
            raise OperationError("the backend has no process now: the agent starts it again")
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSEGV)

    def start_pod(self) -> None:
        """Create one more pod like the first one that was applied. Raises OperationError."""
        first = self._find_pod()
        if first is None:
            raise OperationError("no pod was applied that could be copied")
        metadata = first.body["metadata"]
        if name := metadata.get("name"):
            taken = {pod["metadata"]["name"] for pod in self._api.list(PODS).items}
            metadata = {**metadata, "name": next(one for n in count(2) if (one := f"{name}-{n}") not in taken)}
        try:
            create_object(self._api, Manifest(source=first.source, body={**first.body, "metadata": metadata}))
        except SettingsError as error:
            raise OperationError(str(error)) from error

    def apply(self, text: str) -> tuple[str, ...]:
        """Create the objects of this YAML, and return their names.

        Raises OperationError: nothing was created where the YAML is wrong, else what comes before the object that is.
        """
        created: list[str] = []
        try:
            for manifest in parse_manifests(text, "the YAML"):
                made = create_object(self._api, manifest)
                created.append(f"{manifest.body['kind']} {made['metadata']['name']}")
        except SettingsError as error:
            before = f"; created before: {', '.join(created)}" if created else ""
            raise OperationError("; ".join(error.problems) + before) from error
        return tuple(created)

    def _find_pod(self) -> Manifest | None:
        return next((one for one in self.manifests if one.body["kind"] == PODS.kind), None)

    def delete_pod(self, namespace: str, name: str) -> None:
        """Delete a pod, as `kubectl delete` does. Raises OperationError."""
        try:
            self._api.delete(PODS, name, namespace=namespace)
        except StatusError as error:
            raise OperationError(error.message) from error


def _name_rule(key: DeviceKey) -> str:
    """The DeviceTaintRule that breaks a device; a pool may have slashes in its name, an object may not."""
    return ".".join(("broken", *key)).replace("/", ".")
