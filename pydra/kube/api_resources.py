"""API resource definitions, and list and watch types.

Every layer may import this module. Objects themselves stay plain JSON, so no field that a newer cluster
knows is lost between a read and a write.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from functools import cached_property
from typing import Any, TypeAlias
from urllib.parse import quote

import msgspec

JsonObject: TypeAlias = dict[str, Any]

_VERSION_DIGITS = 19
"""Of 64 bits, as etcd counts. Python refuses to read numbers of thousands of digits."""


class Resource(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One kind of object in the API; `group` is empty for the core group."""

    group: str = ""
    version: str
    plural: str
    kind: str
    namespaced: bool = False

    @property
    def api_version(self) -> str:
        """The value of an object's `apiVersion`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @cached_property
    def full_name(self) -> str:
        """The plural with its group, as `kubectl` accepts it: `resourceclaims.resource.k8s.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def __str__(self) -> str:
        return self.full_name


class ObjectList(msgspec.Struct, frozen=True, kw_only=True):
    """All objects of a list, of all pages; a watch from `resource_version` misses nothing."""

    items: tuple[JsonObject, ...]
    resource_version: str


class WatchEventType(Enum):
    """What happened to an object. The client raises ERROR events; it never returns them."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"
    ERROR = "ERROR"


class WatchEvent(msgspec.Struct, frozen=True):
    """One line of a watch; the object of a bookmark has only its `metadata.resourceVersion`."""

    type: WatchEventType
    object: JsonObject


def object_key(body: Mapping[str, Any]) -> tuple[str, str]:
    """Namespace (empty for cluster-scoped objects) and name."""
    metadata = body.get("metadata") or {}
    return metadata.get("namespace") or "", metadata.get("name") or ""


def parse_resource_version(version: object) -> int:
    """Return a resource version as a number that grows with every write; 0 when it is not a number.

    Kubernetes 1.35 promises the order (KEP-5504); all versions from 1.34 on keep it for built-in kinds.
    """
    if not isinstance(version, str) or len(version) > _VERSION_DIGITS:  # that of a bookmark was not checked
        return 0
    return int(version) if version.isascii() and version.isdigit() else 0


_PLAIN = re.compile(r"[A-Za-z0-9_~-][A-Za-z0-9._~-]*").fullmatch


def build_path(resource: Resource, *, namespace: str = "", name: str = "", subresource: str = "") -> str:
    """Return the URL path of a collection or an object, every part percent-encoded.

    Raises ValueError for a name or namespace that cannot be a path segment: it would address another object.
    """
    path = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
    if namespace and resource.namespaced:
        path += f"/namespaces/{namespace if _PLAIN(namespace) else _quote(resource, namespace)}"
    path += f"/{resource.plural}"
    if name:
        path += f"/{name if _PLAIN(name) else _quote(resource, name)}"
    return f"{path}/{subresource}" if subresource else path


def _quote(resource: Resource, part: str) -> str:
    if part in (".", "..") or "/" in part:
        raise ValueError(f"{part!r} cannot be the name or namespace of one of the {resource}")
    return quote(part, safe="", errors="replace")


RESOURCE_GROUP = "resource.k8s.io"

RESOURCE_CLAIMS = Resource(
    group=RESOURCE_GROUP, version="v1", plural="resourceclaims", kind="ResourceClaim", namespaced=True
)
RESOURCE_CLAIM_TEMPLATES = Resource(
    group=RESOURCE_GROUP, version="v1", plural="resourceclaimtemplates", kind="ResourceClaimTemplate", namespaced=True
)
RESOURCE_SLICES = Resource(group=RESOURCE_GROUP, version="v1", plural="resourceslices", kind="ResourceSlice")
DEVICE_CLASSES = Resource(group=RESOURCE_GROUP, version="v1", plural="deviceclasses", kind="DeviceClass")
DEVICE_TAINT_RULES = tuple(
    Resource(group=RESOURCE_GROUP, version=version, plural="devicetaintrules", kind="DeviceTaintRule")
    for version in ("v1", "v1beta2", "v1alpha3")
)
"""Newest first: Kubernetes 1.37, 1.36, 1.33; the last two are switched off by default."""
NODES = Resource(version="v1", plural="nodes", kind="Node")
PODS = Resource(version="v1", plural="pods", kind="Pod", namespaced=True)
NAMESPACES = Resource(version="v1", plural="namespaces", kind="Namespace")
EVENTS = Resource(group="events.k8s.io", version="v1", plural="events", kind="Event", namespaced=True)
ACCESS_REVIEWS = Resource(
    group="authorization.k8s.io", version="v1", plural="selfsubjectaccessreviews", kind="SelfSubjectAccessReview"
)
