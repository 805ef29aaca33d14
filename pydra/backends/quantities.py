"""Whether the quantities of a config are quantities, where its type says so (`pydra.devices.Quantity`). Pure.

Looked at last, of values that decode: a backend whose own rules read them has said more by then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import inspect as mi

from pydra.backends.mismatches import member_path, read_type
from pydra.backends.wording import show
from pydra.quantity import is_quantity

EXAMPLES = "a quantity such as 2, 80Gi, 1500m or 1e3"


def is_quantity_type(wanted: mi.Type) -> bool:
    """Whether the type says that its strings are quantities."""
    return isinstance(wanted, mi.Metadata) and (wanted.extra_json_schema or {}).get("format") == "quantity"


def find_bad_quantities(value: Any, wanted: type) -> tuple[str, ...]:
    """Every string that should be a quantity and is none, with its path. The value is one that decodes."""
    return tuple(_walk(value, read_type(wanted), "$"))


def _walk(value: Any, wanted: mi.Type, path: str) -> Iterator[str]:
    if isinstance(wanted, mi.Metadata):
        if isinstance(value, str) and is_quantity_type(wanted) and not is_quantity(value):
            yield f"{path}: found {show(value)}, allowed: {EXAMPLES}"
        yield from _walk(value, wanted.type, path)
    elif isinstance(wanted, mi.UnionType):
        for one in wanted.types:
            yield from _walk(value, one, path)
    elif isinstance(wanted, mi.DictType) and isinstance(value, Mapping):
        for key, item in value.items():
            yield from _walk(item, wanted.value_type, member_path(path, key))
    elif isinstance(wanted, mi.CollectionType) and isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _walk(item, wanted.item_type, f"{path}[{index}]")
    elif isinstance(wanted, mi.TupleType) and isinstance(value, list | tuple):
        for index, (item, item_type) in enumerate(zip(value, wanted.item_types, strict=False)):
            yield from _walk(item, item_type, f"{path}[{index}]")
    elif isinstance(wanted, mi.StructType | mi.TypedDictType | mi.DataclassType) and isinstance(value, Mapping):
        yield from _members(value, wanted, path)


def _members(
    value: Mapping[str, Any], wanted: mi.StructType | mi.TypedDictType | mi.DataclassType, path: str
) -> Iterator[str]:
    tag_field = wanted.tag_field if isinstance(wanted, mi.StructType) else None
    if tag_field is not None and value.get(tag_field, wanted.tag) != wanted.tag:  # type: ignore[union-attr]
        return  # another member of a union
    for field in wanted.fields:
        if field.encode_name in value:
            yield from _walk(value[field.encode_name], field.type, member_path(path, field.encode_name))
