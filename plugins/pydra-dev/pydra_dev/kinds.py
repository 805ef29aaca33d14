"""The kinds that the embedded API server serves, and what a request's path means. Pure.

Source: Kubernetes API reference 1.36; which field selectors a kind knows is each registry's
`SelectableFields`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec

COLLECTION_VERBS = ("create", "deletecollection", "list", "watch")
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
    status: bool = False
    generation: bool = False
    returns_deleted: bool = False
    selectable: tuple[str, ...] = ()
    short: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    stores: str = ""

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

RESOURCE_SLICES = Kind(
    group=_DRA,
    version="v1",
    plural="resourceslices",
    kind="ResourceSlice",
    namespaced=False,
    singular="resourceslice",
    generation=True,
    returns_deleted=True,
    selectable=("spec.nodeName", "spec.driver"),
)
RESOURCE_CLAIMS = Kind(
    group=_DRA,
    version="v1",
    plural="resourceclaims",
    kind="ResourceClaim",
    namespaced=True,
    singular="resourceclaim",
    status=True,
    returns_deleted=True,
    subresources=("status",),
)
RESOURCE_CLAIM_TEMPLATES = Kind(
    group=_DRA,
    version="v1",
    plural="resourceclaimtemplates",
    kind="ResourceClaimTemplate",
    namespaced=True,
    singular="resourceclaimtemplate",
    returns_deleted=True,
)
DEVICE_CLASSES = Kind(
    group=_DRA,
    version="v1",
    plural="deviceclasses",
    kind="DeviceClass",
    namespaced=False,
    singular="deviceclass",
    generation=True,
    returns_deleted=True,
)
DEVICE_TAINT_RULES = Kind(
    group=_DRA,
    version="v1beta2",
    plural="devicetaintrules",
    kind="DeviceTaintRule",
    namespaced=False,
    singular="devicetaintrule",
    status=True,
    generation=True,
    returns_deleted=True,
    subresources=("status",),
)
"""Served without its feature gate, which is off by default in 1.36: nothing here depends on its absence."""

NODES = Kind(
    group="",
    version="v1",
    plural="nodes",
    kind="Node",
    namespaced=False,
    singular="node",
    status=True,
    selectable=("spec.unschedulable",),
    short=("no",),
    subresources=("status",),
)
PODS = Kind(
    group="",
    version="v1",
    plural="pods",
    kind="Pod",
    namespaced=True,
    singular="pod",
    status=True,
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
NAMESPACES = Kind(
    group="",
    version="v1",
    plural="namespaces",
    kind="Namespace",
    namespaced=False,
    singular="namespace",
    status=True,
    selectable=("status.phase", "name"),
    short=("ns",),
    subresources=("status",),
)
SERVICE_ACCOUNTS = Kind(
    group="",
    version="v1",
    plural="serviceaccounts",
    kind="ServiceAccount",
    namespaced=True,
    singular="serviceaccount",
    short=("sa",),
)
EVENTS = Kind(
    group="",
    version="v1",
    plural="events",
    kind="Event",
    namespaced=True,
    singular="event",
    selectable=_EVENT_FIELDS,
    short=("ev",),
)
NEW_EVENTS = Kind(
    group="events.k8s.io",
    version="v1",
    plural="events",
    kind="Event",
    namespaced=True,
    singular="event",
    selectable=tuple(field.replace("involvedObject", "regarding") for field in _EVENT_FIELDS),
    short=("ev",),
    stores="events",
)

DAEMON_SETS = Kind(
    group="apps",
    version="v1",
    plural="daemonsets",
    kind="DaemonSet",
    namespaced=True,
    singular="daemonset",
    status=True,
    generation=True,
    short=("ds",),
    categories=("all",),
    subresources=("status",),
)
LEASES = Kind(
    group="coordination.k8s.io",
    version="v1",
    plural="leases",
    kind="Lease",
    namespaced=True,
    singular="lease",
)

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

ByPath: TypeAlias = Mapping[tuple[str, str, str], Kind]


def index_paths(kinds: Iterable[Kind]) -> ByPath:
    """The kinds by group, version and plural, as they stand in paths."""
    return {(kind.group, kind.version, kind.plural): kind for kind in kinds}


BY_PATH = index_paths(KINDS)


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What a path points at; `name` empty: the whole collection; `namespace` empty: all of them."""

    kind: Kind
    namespace: str = ""
    name: str = ""
    subresource: str = ""


def parse_path(path: str, kinds: ByPath = BY_PATH) -> Target | None:
    """`/api/v1/namespaces/ns/pods/p/status` and its like to a target; None when nothing is served there."""
    parts = path.strip("/").split("/")
    if parts[0] == "api" and len(parts) > 2:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and (group, version, rest[2]) in kinds:
        namespace, rest = rest[1], rest[2:]
    kind = kinds.get((group, version, rest[0]))
    if kind is None or bool(namespace) > kind.namespaced or "" in rest or len(rest) > 3:
        return None
    name, subresource = (*rest[1:], "", "")[:2]
    if subresource and subresource not in kind.subresources:
        return None
    if name and kind.namespaced and not namespace:
        return None
    return Target(kind=kind, namespace=namespace, name=name, subresource=subresource)
