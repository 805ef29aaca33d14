"""Which of an object's fields the API does not know: what `fieldValidation` warns of or refuses. Pure.

Only for the kinds whose fields `schema` describes; of the others every field passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from pydra_dev import schema
from pydra_dev.kinds import DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, RESOURCE_SLICES, Kind
from pydra_dev.status import JsonObject

_PARTS: Mapping[Kind, Mapping[str, type]] = {
    RESOURCE_SLICES: {"spec": schema.SliceSpec},
    RESOURCE_CLAIMS: {"spec": schema.ClaimSpec, "status": schema.ClaimStatus},
    RESOURCE_CLAIM_TEMPLATES: {"spec": schema.TemplateSpec},
    DEVICE_CLASSES: {"spec": schema.ClassSpec},
}
_HEAD = frozenset({"apiVersion", "kind", "metadata"})


def find_unknown_fields(kind: Kind, obj: JsonObject) -> tuple[str, ...]:
    """The paths of the fields that will be dropped, sorted."""
    parts = _PARTS.get(kind)
    if parts is None:
        return ()
    found = [key for key in obj if key not in _HEAD and key not in parts]
    for name, type_ in parts.items():
        found += _walk(msgspec.inspect.type_info(type_), obj.get(name), name)
    return tuple(sorted(found))


def _walk(type_: msgspec.inspect.Type, value: Any, path: str) -> Iterator[str]:
    if isinstance(type_, msgspec.inspect.UnionType):
        for member in type_.types:
            yield from _walk(member, value, path)
    elif isinstance(type_, msgspec.inspect.StructType) and isinstance(value, dict):
        known = {field.encode_name: field.type for field in type_.fields}
        for key, member_value in value.items():
            if key in known:
                yield from _walk(known[key], member_value, f"{path}.{key}")
            else:
                yield f"{path}.{key}"
    elif isinstance(type_, msgspec.inspect.VarTupleType) and isinstance(value, list):
        for index, item in enumerate(value):
            yield from _walk(type_.item_type, item, f"{path}[{index}]")
    elif isinstance(type_, msgspec.inspect.DictType) and isinstance(value, dict):
        for key, item in value.items():
            yield from _walk(type_.value_type, item, f"{path}.{key}")
