"""The kinds that the embedded API server serves. Pure.

Source: Kubernetes API reference 1.36; which field selectors a kind knows is each registry's
`SelectableFields`.
"""

from __future__ import annotations

from typing import Any

import msgspec

COLLECTION_VERBS = ("create", "list", "watch")
OBJECT_VERBS = ("delete", "get", "patch", "update")


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """One kind under one group and version.

    `selectable` are the dotted paths that a field selector may name beside `metadata.name` and
    `metadata.namespace`. `stores` names the kind whose objects these are, where two versions show
    the same ones. `generation`: whether a change of the spec is counted.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    singular: str
    generation: bool = False
    returns_deleted: bool = False
    selectable: tuple[str, ...] = ()
    short: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    stores: str = ""

    @property
    def status(self) -> bool:
        """Whether the status is written by itself."""
        return "status" in self.subresources

    @property
    def resource(self) -> str:
        """As messages name it: `pods`, `resourceslices.resource.k8s.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def api_version(self) -> str:
        """As objects name it: `v1`, `resource.k8s.io/v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def storage(self) -> str:
        """The key of the store's collection."""
        return self.stores or self.resource


_EVENT_FIELDS = (
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "source",
    "type",
)

_DRA = "resource.k8s.io"


def _build_kind(kind: str, group: str = "", *, plural: str = "", **more: Any) -> Kind:
    """A kind of Kubernetes, whose names in paths and for commands follow from its own."""
    name = kind.lower()
    known = {"version": "v1", "namespaced": True, "singular": name, "plural": plural or f"{name}s"}
    return Kind(kind=kind, group=group, **{**known, **more})


RESOURCE_SLICES = _build_kind(
    "ResourceSlice",
    _DRA,
    namespaced=False,
    generation=True,
    returns_deleted=True,
    selectable=("spec.nodeName", "spec.driver"),
)
RESOURCE_CLAIMS = _build_kind("ResourceClaim", _DRA, returns_deleted=True, subresources=("status",))
RESOURCE_CLAIM_TEMPLATES = _build_kind("ResourceClaimTemplate", _DRA, returns_deleted=True)
DEVICE_CLASSES = _build_kind(
    "DeviceClass", _DRA, plural="deviceclasses", namespaced=False, generation=True, returns_deleted=True
)
DEVICE_TAINT_RULES = _build_kind(
    "DeviceTaintRule",
    _DRA,
    version="v1beta2",
    namespaced=False,
    generation=True,
    returns_deleted=True,
    subresources=("status",),
)
"""Served without its feature gate, which is off by default in 1.36: nothing here depends on its absence."""

NODES = _build_kind(
    "Node", namespaced=False, selectable=("spec.unschedulable",), short=("no",), subresources=("status",)
)
PODS = _build_kind(
    "Pod",
    generation=True,
    returns_deleted=True,
    selectable=(
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "status.phase",
        "status.podIP",
        "status.nominatedNodeName",
    ),
    short=("po",),
    categories=("all",),
    subresources=("binding", "status"),
)
NAMESPACES = _build_kind(
    "Namespace", namespaced=False, selectable=("status.phase", "name"), short=("ns",), subresources=("status",)
)
SERVICE_ACCOUNTS = _build_kind("ServiceAccount", short=("sa",))
EVENTS = _build_kind("Event", selectable=_EVENT_FIELDS, short=("ev",))
NEW_EVENTS = _build_kind(
    "Event",
    "events.k8s.io",
    selectable=tuple(field.replace("involvedObject", "regarding") for field in _EVENT_FIELDS),
    short=("ev",),
    stores="events",
)
DAEMON_SETS = _build_kind(
    "DaemonSet", "apps", generation=True, short=("ds",), categories=("all",), subresources=("status",)
)
LEASES = _build_kind("Lease", "coordination.k8s.io")

KINDS = (
    RESOURCE_SLICES,
    RESOURCE_CLAIMS,
    RESOURCE_CLAIM_TEMPLATES,
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    NODES,
    PODS,
    NAMESPACES,
    SERVICE_ACCOUNTS,
    EVENTS,
    NEW_EVENTS,
    DAEMON_SETS,
    LEASES,
)
