"""What decisions ask of the API server, as values. Each is idempotent, or conditional on what was seen."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from pydra.controllers import JsonObject, Resource, object_key


class Create(msgspec.Struct, frozen=True):
    """Create the object; one of this name is looked at again."""

    resource: Resource
    body: JsonObject


class Replace(msgspec.Struct, frozen=True):
    """Replace the object, if it still has the resource version of the body."""

    resource: Resource
    body: JsonObject


class Patch(msgspec.Struct, frozen=True, kw_only=True):
    """Apply a merge patch to an object, or to its status."""

    resource: Resource
    namespace: str
    name: str
    body: JsonObject
    subresource: str = ""
    comes_first: bool = False
    """Nothing else is sent without it."""


class Delete(msgspec.Struct, frozen=True, kw_only=True):
    """Delete the object with this uid, and no other of its name."""

    resource: Resource
    namespace: str
    name: str
    uid: str


class LabelNode(msgspec.Struct, frozen=True, kw_only=True):
    """Give a node, which has no domain, this one. No cache has nodes without a label: `uid` is from its slice."""

    node: str
    uid: str
    domain: str


class UnlabelNode(msgspec.Struct, frozen=True, kw_only=True):
    """Take the label away, if the node is still as it was seen."""

    node: str
    version: str


Request: TypeAlias = Create | Replace | Patch | Delete | LabelNode | UnlabelNode


def is_status(request: Request) -> bool:
    """Whether it writes a status, which says what the other requests have done."""
    return isinstance(request, Patch) and request.subresource == "status"


def patch_finalizers(
    resource: Resource, found: JsonObject, finalizers: list[str], *, comes_first: bool = False
) -> Patch:
    """Replace an object's finalizers, if it is still as it was seen."""
    metadata = {"finalizers": finalizers, "resourceVersion": found["metadata"]["resourceVersion"]}
    namespace, name = object_key(found)
    body = {"metadata": metadata}
    return Patch(resource=resource, namespace=namespace, name=name, body=body, comes_first=comes_first)
