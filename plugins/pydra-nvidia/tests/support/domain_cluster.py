"""A cluster with ComputeDomains, without I/O: the API server's verbs, what Kubernetes' own controllers and kubelets do,
and the decisions of ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from random import Random
from typing import Any

from pydra.controllers import NODES, PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from pydra_dev.api import kinds
from pydra_dev.api.errors import StatusError
from pydra_dev.api.feature_gates import build_gates
from pydra_dev.api.kinds import Kind
from pydra_dev.apiserver.custom_kinds import parse_definition
from pydra_dev.apiserver.store import Store
from pydra_dev.apiserver.verbs import Api
from pydra_nvidia.compute_domain.controller.decisions import decide, plan_garbage
from pydra_nvidia.compute_domain.controller.domain_view import build_view
from pydra_nvidia.compute_domain.controller.object_fields import CLIQUES, COMPUTE_DOMAINS, DAEMON_SETS, get_label
from pydra_nvidia.compute_domain.controller.requests import (
    Create,
    Delete,
    LabelNode,
    Patch,
    Replace,
    Request,
    UnlabelNode,
    is_status,
)
from pydra_nvidia.compute_domain.controller.settings import ControllerSettings
from pydra_nvidia.compute_domain.controller.writer import build_label, name_manager
from pydra_nvidia.compute_domain.custom_resource_definitions import DEFINITIONS
from pydra_nvidia.compute_domain.names import DOMAIN_LABEL, DRIVER

JsonObject = dict[str, Any]
Objects = Mapping[Resource, Sequence[JsonObject]]
MERGE = "application/merge-patch+json"
OWN = "kube-system"
"""The namespace of the daemons."""
SETTINGS = ControllerSettings(namespace=OWN, daemon_image="pydra:1", max_nodes=3)
_CUSTOM = [parse_definition(one) for one in DEFINITIONS]
_KINDS: Mapping[Resource, Kind] = {
    COMPUTE_DOMAINS: _CUSTOM[0].kind,
    CLIQUES: _CUSTOM[1].kind,
    DAEMON_SETS: kinds.DAEMON_SETS,
    NODES: kinds.NODES,
    PODS: kinds.PODS,
    RESOURCE_CLAIMS: kinds.RESOURCE_CLAIMS,
    RESOURCE_CLAIM_TEMPLATES: kinds.RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_SLICES: kinds.RESOURCE_SLICES,
}


class Cluster:
    """`now` counts in seconds, one for each decision; `api` is that of a server that runs, or one of its own."""

    def __init__(
        self, nodes: Mapping[str, str], settings: ControllerSettings = SETTINGS, api: Api | None = None
    ) -> None:
        self.settings = settings
        self.now = 0
        self.requests: list[Request] = []
        self.notes: list[str] = []
        self.refused = frozenset[str]()
        """The domains whose daemons the API server refuses, as by a quota."""
        self.api = api or Api(
            store=Store(),
            minor=36,
            gates=build_gates(36, {}),
            clock=lambda: datetime.fromtimestamp(self.now, UTC),
            random=Random(0),
            custom=_CUSTOM,
        )
        for name in ("default", "other", OWN):
            if self.api.find(kinds.NAMESPACES, name) is None:
                self.api.create(kinds.NAMESPACES, {"metadata": {"name": name}})
        for name, clique in nodes.items():
            self.add_node(name, clique)

    # What users and admins do

    def add_node(self, name: str, clique: str) -> None:
        """A node whose agent has published its channel; `clique` is empty outside a fabric."""
        made = self.api.create(kinds.NODES, {"metadata": {"name": name}})
        owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": made["metadata"]["uid"], "controller": True}
        attributes = {
            "type": {"string": "channel"},
            "id": {"int": 0},
            **({"cliqueID": {"string": clique}} if clique else {}),
        }
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        devices = [{"name": "channel-0", "attributes": attributes}]
        body = {
            "metadata": {"name": name, "ownerReferences": [owner]},
            "spec": {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": devices},
        }
        self.api.create(kinds.RESOURCE_SLICES, body)

    def remove_node(self, name: str) -> None:
        """The node is gone, with its slice and pods."""
        self._delete(RESOURCE_SLICES, name)
        self._delete(NODES, name)
        for pod in self.list(PODS):
            if pod["spec"]["nodeName"] == name:
                self._end_pod(pod)

    def create_domain(self, name: str, template: str = "", **spec: Any) -> str:
        """A ComputeDomain in `default`; returns its UID."""
        channel = {"resourceClaimTemplate": {"name": template or name}}
        body = {"metadata": {"name": name}, "spec": {"channel": channel, **spec}}
        made = self.api.create(_KINDS[COMPUTE_DOMAINS], body, namespace="default")
        return str(made["metadata"]["uid"])

    def delete_domain(self, name: str) -> None:
        """As `kubectl delete` begins it."""
        self._delete(COMPUTE_DOMAINS, name, "default")

    def start_pod(self, name: str, uid: str, node: str, namespace: str = "default") -> None:
        """A pod's claim has a channel of a node, as from the domain's template."""
        self.now += 1
        parameters = {
            "apiVersion": "resource.nvidia.com/v1beta1",
            "kind": "ComputeDomainChannelConfig",
            "domainID": uid,
            "allocationMode": "Single",
        }
        config = [{"requests": ["channel"], "opaque": {"driver": DRIVER, "parameters": parameters}}]
        requests = [{"name": "channel", "exactly": {"deviceClassName": "compute-domain-default-channel.nvidia.com"}}]
        claim = {"metadata": {"name": name}, "spec": {"devices": {"requests": requests, "config": config}}}
        made = self.api.create(kinds.RESOURCE_CLAIMS, claim, namespace=namespace)
        results = [{"request": "channel", "driver": DRIVER, "pool": node, "device": "channel-0"}]
        allocation = {"devices": {"results": results, "config": [{"source": "FromClaim", **config[0]}]}}
        status = {"allocation": allocation, "reservedFor": [{"resource": "pods", "name": name, "uid": f"{name}-uid"}]}
        body = {**made, "status": status}
        self.api.update(kinds.RESOURCE_CLAIMS, name, body, namespace=namespace, subresource="status")

    def end_pod(self, name: str, namespace: str = "default") -> None:
        """The pod has ended, and its claim is gone."""
        claim = self.api.get(kinds.RESOURCE_CLAIMS, name, namespace=namespace)
        self.api.update(kinds.RESOURCE_CLAIMS, name, {**claim, "status": {}}, namespace=namespace, subresource="status")
        self._delete(RESOURCE_CLAIMS, name, namespace)

    def patch(
        self, resource: Resource, name: str, body: JsonObject, namespace: str = "", subresource: str = ""
    ) -> None:
        """A merge patch, as of `kubectl edit`."""
        kind = _KINDS[resource]
        self.api.patch(kind, name, body, content_type=MERGE, namespace=namespace, subresource=subresource)

    def delete(self, resource: Resource, name: str, namespace: str = "") -> None:
        """As `kubectl delete --wait=false`."""
        self._delete(resource, name, namespace)

    # What Kubernetes does

    def run_daemon_sets(self) -> None:
        """One pod on each node that a DaemonSet selects, none elsewhere."""
        sets = {one["metadata"]["uid"]: one for one in self.list(DAEMON_SETS)}
        for pod in self.list(PODS):
            owner = sets.get(pod["metadata"]["ownerReferences"][0]["uid"])
            if owner is None or pod["spec"]["nodeName"] not in self._select(owner):
                self._end_pod(pod)
        for one in sets.values():
            if "deletionTimestamp" not in one["metadata"]:
                self._run_daemon_set(one)

    def _run_daemon_set(self, found: JsonObject) -> None:
        metadata, template = found["metadata"], found["spec"]["template"]
        nodes = self._select(found)
        running = {pod["spec"]["nodeName"] for pod in self.list(PODS) if get_label(pod) == get_label(found)}
        missing = sorted(set(nodes) - running) if get_label(found) not in self.refused else []
        for node in missing:
            owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": metadata["name"], "uid": metadata["uid"]}
            labels = template["metadata"]["labels"]
            name = f"daemon-{node}-{self.now}"
            pod = {
                "metadata": {"name": name, "labels": labels, "ownerReferences": [owner]},
                "spec": {**template["spec"], "nodeName": node},
            }
            self.api.create(kinds.PODS, pod, namespace=OWN)
        count = len(running & set(nodes)) + len(missing)
        status = {
            "desiredNumberScheduled": len(nodes),
            "currentNumberScheduled": count,
            "updatedNumberScheduled": count,
            "observedGeneration": metadata["generation"],
        }
        if status != found.get("status"):
            self.patch(DAEMON_SETS, metadata["name"], {"status": status}, OWN, "status")

    def _select(self, found: JsonObject) -> list[str]:
        [(label, value)] = found["spec"]["template"]["spec"]["nodeSelector"].items()
        return [one["metadata"]["name"] for one in self.list(NODES) if get_label(one, label) == value]

    def set_ready(self, node: str, *, ready: bool, why: str = "") -> None:
        """The kubelet reports the daemon's pod of a node; `why` is what the daemon itself says."""
        for number, pod in enumerate(self.list(PODS)):
            if pod["spec"]["nodeName"] != node:
                continue
            conditions = [{"type": "Ready", "status": str(ready)}]
            if why:
                imex = {"status": str(ready), "reason": "DomainDegraded" if ready else "NotReady", "message": why}
                conditions.append({"type": "resource.nvidia.com/imex", **imex})
            address = (pod.get("status") or {}).get("podIP") or f"10.0.{number}.{self.now % 250 + 1}"
            status = {"phase": "Running", "podIP": address, "conditions": conditions}
            self.patch(PODS, pod["metadata"]["name"], {"status": status}, OWN, "status")

    def _end_pod(self, pod: JsonObject) -> None:
        metadata = pod["metadata"]
        self.api.delete(kinds.PODS, metadata["name"], {"gracePeriodSeconds": 0}, namespace=metadata["namespace"])

    def _delete(self, resource: Resource, name: str, namespace: str = "") -> None:
        self.api.delete(_KINDS[resource], name, namespace=namespace)

    # What our controller does

    def snapshot(self) -> Objects:
        """All objects, as the controller's caches have them."""
        found = {resource: self.list(resource) for resource in _KINDS}
        found[NODES] = [node for node in found[NODES] if get_label(node) is not None]
        return found

    def plan(self, uid: str, objects: Objects | None = None) -> Sequence[Request]:
        """What the controller would send now, or would have with what it knew."""
        self.now += 1
        view = build_view(uid, objects or self.snapshot(), self.settings.namespace)
        if view is None:
            return ()
        decision = decide(view, self.settings, self.api.now)
        self.notes += [f"{event.reason}: {event.note}" for event in decision.events]
        return decision.requests

    def send(self, requests: Sequence[Request]) -> bool:
        """Carry them out as the writer does, against an API server; whether none failed."""
        failed = False
        for request in requests:
            if failed and is_status(request):
                continue
            self.requests.append(request)
            try:
                self._send(request)
            except StatusError as error:
                if error.code == 404 and not isinstance(request, Create):
                    continue
                if error.code not in (404, 409):
                    raise
                failed = True
                if isinstance(request, Patch) and request.comes_first:
                    break
        return not failed

    def _send(self, request: Request) -> None:
        api = self.api
        if isinstance(request, LabelNode):
            manager = name_manager(request.domain)
            with suppress(StatusError):  # somebody else's label stays
                api.apply(kinds.NODES, request.node, build_label(request), manager=manager)
        elif isinstance(request, UnlabelNode):
            metadata = {"labels": {DOMAIN_LABEL: None}, "resourceVersion": request.version}
            self.patch(NODES, request.node, {"metadata": metadata})
        elif isinstance(request, Create):
            namespace = request.body["metadata"]["namespace"]
            api.create(_KINDS[request.resource], request.body, namespace=namespace)
        elif isinstance(request, Replace):
            metadata = request.body["metadata"]
            api.update(_KINDS[request.resource], metadata["name"], request.body, namespace=metadata["namespace"])
        elif isinstance(request, Patch):
            self.patch(request.resource, request.name, request.body, request.namespace, request.subresource)
        elif isinstance(request, Delete):
            options = {"preconditions": {"uid": request.uid}}
            api.delete(_KINDS[request.resource], request.name, options, namespace=request.namespace)

    def collect_garbage(self) -> bool:
        """What the controller does every ten minutes; whether there was anything."""
        found = self.snapshot()
        uids = [one["metadata"]["uid"] for one in found[COMPUTE_DOMAINS]]
        resources = (RESOURCE_CLAIM_TEMPLATES, DAEMON_SETS, CLIQUES)
        requests = plan_garbage(uids, [(one, body) for one in resources for body in found[one]], found[NODES])
        self.send(requests)
        return bool(requests)

    def settle(self) -> None:
        """Run all controllers until nothing changes any more; fails if that takes forever."""
        for _ in range(60):
            version = self.api.store.version
            for uid in self.uids():
                self.send(self.plan(uid))
            self.run_daemon_sets()
            if self.api.store.version == version and not self.collect_garbage():
                return
        raise AssertionError(f"it does not come to rest: {self.requests[-5:]}")

    # What one sees

    def list(self, resource: Resource) -> Sequence[JsonObject]:
        """All objects of a kind."""
        return self.api.list(_KINDS[resource]).items

    def uids(self) -> Sequence[str]:
        """Of all domains."""
        return [one["metadata"]["uid"] for one in self.list(COMPUTE_DOMAINS)]

    def domain(self, name: str) -> JsonObject:
        """One domain of `default`."""
        return self.api.get(_KINDS[COMPUTE_DOMAINS], name, namespace="default")

    def condition(self, name: str, kind: str = "Ready") -> tuple[str, str]:
        """Reason and message of a domain's condition."""
        conditions = self.domain(name)["status"]["conditions"]
        found = next(one for one in conditions if one["type"] == kind)
        return found["reason"], found["message"]

    def labels(self) -> Mapping[str, str]:
        """The domain in the label of each node that has one."""
        return {node["metadata"]["name"]: label for node in self.list(NODES) if (label := get_label(node)) is not None}

    def indexes(self) -> Iterator[tuple[str, str, int]]:
        """The name of each clique, with node and index of each entry."""
        for clique in self.list(CLIQUES):
            for entry in clique["daemons"]:
                yield clique["metadata"]["name"], entry["nodeName"], entry["index"]
