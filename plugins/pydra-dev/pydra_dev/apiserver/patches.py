"""The ways to patch an object other than server-side apply: JSON merge patch and simple strategic merge. Pure.

Sources: RFC 7386, Kubernetes API conventions. Strategic merge joins the lists below by
their key; `$patch: delete`, `$patch: replace` and `$deleteFromPrimitiveList` are honoured, the
order hints are not. JSON patches (RFC 6902) are missing. Inputs are never changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydra_dev.api.errors import JsonObject, StatusError, bad_request

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
SUPPORTED = (MERGE, STRATEGIC)

MERGE_KEYS = {
    "conditions": "type",
    "containers": "name",
    "containerStatuses": "name",
    "env": "name",
    "ephemeralContainers": "name",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "initContainerStatuses": "name",
    "ownerReferences": "uid",
    "addresses": "type",
    "resourceClaims": "name",
    "resourceClaimStatuses": "name",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
"""Lists whose items have a key."""
_UNION_LISTS = frozenset({"finalizers"})


def apply_patch(content_type: str, obj: JsonObject, patch: Any) -> JsonObject:
    """The patched object; raises a 400 or 422 StatusError for a patch that cannot be applied."""
    if not isinstance(patch, dict):
        raise bad_request("a merge patch is an object")
    if content_type == MERGE:
        merged: JsonObject = merge_patch(obj, patch)
        return merged
    return _merge_strategic(obj, patch)


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386: null removes, objects merge, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def _merge_strategic(target: JsonObject, patch: JsonObject) -> JsonObject:
    if patch.get("$patch") == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    merged = dict(target)
    for key, value in patch.items():
        if key == "$retainKeys" or key.startswith("$setElementOrder/"):
            continue
        if key.startswith("$deleteFromPrimitiveList/"):
            name = key.partition("/")[2]
            merged[name] = [item for item in merged.get(name) or () if item not in value]
        elif value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            own = merged.get(key)
            merged[key] = _merge_strategic(own if isinstance(own, dict) else {}, value)
        elif isinstance(value, list):
            merged[key] = _merge_lists(key, merged.get(key) or [], value)
        else:
            merged[key] = value
    return merged


def _merge_lists(name: str, own: Sequence[Any], patch: Sequence[Any]) -> list[Any]:
    if name in _UNION_LISTS:
        return [*own, *(item for item in patch if item not in own)]
    key = MERGE_KEYS.get(name)
    if key is None:
        return list(patch)
    merged = list(own)
    for item in patch:
        if key not in item:
            raise StatusError(422, "Invalid", f"map: {item} does not contain declared merge key: {key}")
        index = next((i for i, present in enumerate(merged) if present.get(key) == item[key]), None)
        if item.get("$patch") == "delete":
            if index is not None:
                del merged[index]
        elif index is None:
            merged.append(item)
        else:
            merged[index] = _merge_strategic(merged[index], item)
    return merged
