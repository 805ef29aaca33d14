"""Computes the minimal writes that bring ResourceSlices to the wanted state.

Kubernetes' rules for pools (KEP-4381, resourceslice controller): consumers use the highest generation only, and a
pool is whole when there are `resourceSliceCount` slices of it. One write alone keeps the generation: the pool is
whole before and after. More than one write needs a new generation, which changes every slice, so nobody
allocates from a mixture. Obsolete slices go first, then updates, then creations, in the order of their index.

What is wanted is in the form in which the API server stores it (`pydra.slices.build`: canonical quantities, times in
whole seconds), so two specs are the same if they are equal, except that null, absent and empty mean the same, and that
a taint without `timeAdded` equals one with any: the server fills it in. The order of devices, taints and lists counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from pydra.kube.api_resources import RESOURCE_SLICES, JsonObject
from pydra.slices.build import WantedPool, build_generate_name, parse_index

CONTENT = ("devices", "sharedCounters", "partitionTypeAttribute", "skipNodeOperations")
"""The fields of a spec that may change, besides `pool`; the rest (driver, and which nodes have the devices) may not."""
_NOTHING: tuple[Any, ...] = (None, "", [], {})


class Delete(msgspec.Struct, frozen=True, kw_only=True):
    """Delete the slice, if it is still the observed one."""

    name: str
    uid: str
    resource_version: str


class Update(msgspec.Struct, frozen=True, kw_only=True):
    """Replace the slice at `index`; the body has the observed resourceVersion."""

    index: int
    name: str
    body: JsonObject


class Create(msgspec.Struct, frozen=True, kw_only=True):
    """Create the slice at `index`."""

    index: int
    body: JsonObject


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Writes in their order; empty if the API has what is wanted."""

    deletes: tuple[Delete, ...] = ()
    updates: tuple[Update, ...] = ()
    creates: tuple[Create, ...] = ()

    @property
    def writes(self) -> tuple[Update | Create, ...]:
        """The updates and creates, which follow the deletes."""
        return (*self.updates, *self.creates)

    def __len__(self) -> int:
        return len(self.deletes) + len(self.updates) + len(self.creates)


def plan_slices(wanted: WantedPool, observed: Iterable[JsonObject], *, node_uid: str = "") -> Plan:
    """Plan the writes; `observed` are all slices of this driver and node, of any pool.

    With `node_uid`, new slices are owned by the Node, for garbage collection.
    """
    slices = sorted(observed, key=lambda body: str(body["metadata"]["name"]))
    others = [body for body in slices if _pool(body).get("name") != wanted.name]
    ours = [body for body in slices if _pool(body).get("name") == wanted.name]
    published = max((_generation(body) for body in ours), default=0)
    matched, obsolete = _match(ours, published, len(wanted.slices))
    changed = [index for index, body in matched.items() if not _is_as_wanted(wanted, index, body)]
    missing = [index for index in range(len(wanted.slices)) if index not in matched]
    generation = published if not missing and len(changed) <= 1 else published + 1
    known = [device for body in ours for device in body["spec"].get("devices") or ()]
    touched = matched if generation != published else changed
    return Plan(
        deletes=tuple(map(_build_delete, [*others, *obsolete])),
        updates=tuple(_build_update(wanted, index, generation, matched[index], known) for index in sorted(touched)),
        creates=tuple(_build_create(wanted, index, generation, known, node_uid) for index in missing),
    )


def share_devices(wanted: WantedPool, observed: Iterable[JsonObject]) -> None:
    """Let observed slices refer to the wanted devices if they are equal, so they are in memory only once.

    Saves 3 KiB for each device.
    """
    for body in observed:
        index = parse_index(body["metadata"]["name"], len(wanted.slices))
        if index is not None and index < len(wanted.slices):
            devices = wanted.slices[index].get("devices")
            if devices is not None and body["spec"].get("devices") == devices:
                body["spec"]["devices"] = devices


def _match(slices: Sequence[JsonObject], published: int, count: int) -> tuple[dict[int, JsonObject], list[JsonObject]]:
    """Return the slices by the index in their name, and the obsolete ones."""
    matched: dict[int, JsonObject] = {}
    obsolete: list[JsonObject] = []
    for body in slices:
        index = parse_index(body["metadata"]["name"], count)
        if _generation(body) < published or index is None or index >= count or index in matched:
            obsolete.append(body)
        else:
            matched[index] = body
    return matched, obsolete


def _is_as_wanted(wanted: WantedPool, index: int, body: JsonObject) -> bool:
    count = _pool(body).get("resourceSliceCount")
    return count == len(wanted.slices) and same_content(wanted.slices[index], body["spec"])


def _build_spec(wanted: WantedPool, index: int, generation: int, known: Sequence[JsonObject]) -> JsonObject:
    content = dict(wanted.slices[index])
    if content.get("devices"):
        content["devices"] = keep_times(content["devices"], known)
    pool = {"name": wanted.name, "generation": generation, "resourceSliceCount": len(wanted.slices)}
    return {"driver": wanted.driver, "pool": pool, "nodeName": wanted.node, **content}


def _build_update(
    wanted: WantedPool, index: int, generation: int, body: JsonObject, known: Sequence[JsonObject]
) -> Update:
    replaced = {**body, "spec": _build_spec(wanted, index, generation, known)}
    return Update(index=index, name=body["metadata"]["name"], body=replaced)


def _build_create(
    wanted: WantedPool, index: int, generation: int, known: Sequence[JsonObject], node_uid: str
) -> Create:
    name = build_generate_name(index, len(wanted.slices), wanted.driver, wanted.node)
    metadata: JsonObject = {"generateName": name}
    if node_uid:
        metadata["ownerReferences"] = [
            {"apiVersion": "v1", "kind": "Node", "name": wanted.node, "uid": node_uid, "controller": True}
        ]
    body: JsonObject = {
        "apiVersion": RESOURCE_SLICES.api_version,
        "kind": RESOURCE_SLICES.kind,
        "metadata": metadata,
        "spec": _build_spec(wanted, index, generation, known),
    }
    return Create(index=index, body=body)


def _build_delete(body: JsonObject) -> Delete:
    metadata = body["metadata"]
    uid, version = metadata.get("uid", ""), metadata.get("resourceVersion", "")
    return Delete(name=metadata["name"], uid=uid, resource_version=version)


def _pool(body: JsonObject) -> JsonObject:
    return body["spec"].get("pool") or {}


def _generation(body: JsonObject) -> int:
    return int(_pool(body).get("generation") or 0)


# Comparison


def same_content(wanted: Mapping[str, Any], stored: Mapping[str, Any]) -> bool:
    """Return whether the stored spec has the content of the wanted one."""
    if wanted.get("devices"):
        wanted = {**wanted, "devices": keep_times(wanted["devices"], stored.get("devices") or ())}
    return all(_same(wanted.get(field), stored.get(field)) for field in CONTENT)


def _same(a: Any, b: Any) -> bool:
    """Compare two values; false and zero are values, since an attribute may have them."""
    if isinstance(a, dict) and isinstance(b, dict):
        return all(_same(a.get(key), b.get(key)) for key in a.keys() | b.keys())
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    return bool(a == b) or (a in _NOTHING and b in _NOTHING)


def keep_times(wanted: Sequence[JsonObject], stored: Sequence[JsonObject]) -> list[JsonObject]:
    """Return the wanted devices with `timeAdded` from the same taint of the stored device of that name.

    Without it, rewriting the slice would restart the timer of every eviction.
    """
    taints = {device.get("name"): device.get("taints") or () for device in stored}
    kept = []
    for device in wanted:
        theirs = taints.get(device["name"], ())
        ours = [_with_time(taint, theirs) for taint in device.get("taints") or ()]
        kept.append({**device, "taints": ours} if ours else device)
    return kept


def _with_time(taint: JsonObject, stored: Sequence[JsonObject]) -> JsonObject:
    if taint.get("timeAdded"):
        return taint
    for other in stored:
        if other.get("timeAdded") and _taint_identity(other) == _taint_identity(taint):
            return {**taint, "timeAdded": other["timeAdded"]}
    return taint


def _taint_identity(taint: JsonObject) -> tuple[Any, ...]:
    return taint.get("key"), taint.get("value") or "", taint.get("effect")
