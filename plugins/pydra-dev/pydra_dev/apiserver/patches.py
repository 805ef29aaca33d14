"""The ways to patch an object other than server-side apply: JSON merge patch, JSON patch, simple strategic merge. Pure.

Sources: RFC 7386, RFC 6902, Kubernetes API conventions. Strategic merge joins the lists below by
their key; `$patch: delete`, `$patch: replace` and `$deleteFromPrimitiveList` are honoured, the
order hints are not. Inputs are never changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydra_dev.api.errors import JsonObject, StatusError, bad_request

MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
SUPPORTED = (JSON_PATCH, MERGE, STRATEGIC)

_MERGE_KEYS = {
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
_UNION_LISTS = frozenset({"finalizers"})


def apply_patch(content_type: str, obj: JsonObject, patch: Any) -> JsonObject:
    """The patched object; raises a 400, 415 or 422 StatusError for a patch that cannot be applied."""
    if content_type == JSON_PATCH:
        if not isinstance(patch, list):
            raise bad_request("a JSON patch is a list of operations")
        return apply_json_patch(obj, patch)
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
    key = _MERGE_KEYS.get(name)
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


def apply_json_patch(obj: JsonObject, operations: Sequence[JsonObject]) -> JsonObject:
    """RFC 6902: add, remove, replace, move, copy, test; all of them or none."""
    document: Any = obj
    for operation in operations:
        try:
            document = _apply_operation(document, operation)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise StatusError(
                422, "Invalid", f"the server rejected our request due to an error in our request: {operation}: {error}"
            ) from error
    if not isinstance(document, dict):
        raise bad_request("the patch leaves no object")
    return document


def _apply_operation(document: Any, operation: JsonObject) -> Any:
    name, path = operation["op"], _parse_pointer(operation["path"])
    if name == "test":
        if _read(document, path) != operation["value"]:
            raise ValueError(f"testing value {operation['path']} failed")
        return document
    if name == "remove":
        return _write(document, path, "remove", None)
    if name in {"add", "replace"}:
        return _write(document, path, name, operation["value"])
    if name in {"copy", "move"}:
        source = _parse_pointer(operation["from"])
        value = _read(document, source)
        if name == "move":
            document = _write(document, source, "remove", None)
        return _write(document, path, "add", value)
    raise ValueError(f"unexpected kind: {name}")


def _parse_pointer(pointer: str) -> list[str]:
    if pointer and not pointer.startswith("/"):
        raise ValueError(f"{pointer!r} is not a JSON pointer")
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]


def _read(document: Any, path: Sequence[str]) -> Any:
    for part in path:
        document = document[int(part)] if isinstance(document, list) else document[part]
    return document


def _write(document: Any, path: Sequence[str], action: str, value: Any) -> Any:
    if not path:
        return value
    part, rest = path[0], path[1:]
    if isinstance(document, list):
        items = list(document)
        index = len(items) if part == "-" else int(part)
        if rest:
            items[index] = _write(items[index], rest, action, value)
        elif action == "add":
            if not 0 <= index <= len(items):
                raise IndexError(f"index {part} is out of range")
            items.insert(index, value)
        elif action == "replace":
            items[index] = value
        else:
            del items[index]
        return items
    members = dict(document)
    if rest:
        members[part] = _write(members[part], rest, action, value)
    elif action == "remove":
        del members[part]
    elif action == "replace" and part not in members:
        raise KeyError(part)
    else:
        members[part] = value
    return members
