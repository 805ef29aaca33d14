"""Validates a JSON value against a msgspec type and lists all errors with their paths.

msgspec's own decoding stops at the first error and ignores unknown fields unless the type forbids them. An author wants
all errors at once, and a misspelt field must never be ignored. Quantities (`pydra.devices.Quantity`) are checked last,
in values that decode: a backend that parses them itself reports more detailed errors before.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect as mi

from pydra.backends.type_messages import EXAMPLES, LEAVES, describe, is_quantity_type, show
from pydra.errors import suggest
from pydra.quantity import is_quantity


def find_mismatches(value: Any, wanted: type | mi.Type) -> tuple[str, ...]:
    """Return all mismatches as `$.path: found what, what is allowed`; empty if msgspec decodes it strictly."""
    return tuple(_walk(value, wanted if isinstance(wanted, mi.Type) else read_type(wanted), "$"))


def read_type(wanted: type) -> mi.Type:
    """Return msgspec's description of a type."""
    return _read_type(wanted)


@cache
def _read_type(wanted: type) -> mi.Type:
    """Cache the type info: compiling the annotations takes longer than the rest of a call."""
    return mi.type_info(wanted)


def _walk(value: Any, wanted: mi.Type, path: str) -> Iterator[str]:
    for kind, walk in _WALKS:
        if isinstance(wanted, kind):
            yield from walk(value, wanted, path)
            return
    yield from _leaf(value, wanted, path)


def _found(value: Any, wanted: mi.Type, path: str) -> str:
    return f"{path}: found {show(value)}, allowed: {describe(wanted)}"


def _fits_length(size: int, wanted: mi.StrType | mi.CollectionType | mi.DictType) -> bool:
    return (wanted.min_length is None or size >= wanted.min_length) and (
        wanted.max_length is None or size <= wanted.max_length
    )


def _metadata(value: Any, wanted: mi.Metadata, path: str) -> Iterator[str]:
    if is_quantity_type(wanted) and (isinstance(value, bool) or not isinstance(value, int | str)):
        yield _found(value, wanted, path)
    else:
        yield from _walk(value, wanted.type, path)


def _anything(value: Any, wanted: mi.Type, path: str) -> Iterator[str]:
    yield from ()


def _scalar(value: Any, wanted: mi.Type, path: str) -> Iterator[str]:
    if not _fits_scalar(value, wanted):
        yield _found(value, wanted, path)


def _fits_scalar(value: Any, wanted: mi.Type) -> bool:  # noqa: PLR0911 - one line a type
    match wanted:
        case mi.NoneType():
            return value is None
        case mi.BoolType():
            return isinstance(value, bool)
        case mi.IntType():
            return _is_number(value, whole=True) and _fits_range(value, wanted)
        case mi.FloatType():
            return _is_number(value, whole=False) and _fits_range(value, wanted)
        case mi.StrType():
            if not isinstance(value, str) or not _fits_length(len(value), wanted):
                return False
            return wanted.pattern is None or re.search(wanted.pattern, value) is not None
        case mi.EnumType(cls=cls):
            return any(type(value) is type(member.value) and value == member.value for member in cls)
        case mi.LiteralType(values=values):
            return any(type(value) is type(one) and value == one for one in values)
    return False


def _is_number(value: Any, *, whole: bool) -> bool:
    return isinstance(value, int if whole else int | float) and not isinstance(value, bool)


def _fits_range(value: float, wanted: mi.IntType | mi.FloatType) -> bool:
    step = wanted.multiple_of
    return (
        (wanted.gt is None or value > wanted.gt)
        and (wanted.ge is None or value >= wanted.ge)
        and (wanted.lt is None or value < wanted.lt)
        and (wanted.le is None or value <= wanted.le)
        and (step is None or math.isclose(math.remainder(value, step), 0, abs_tol=1e-12))
    )


def _list(value: Any, wanted: mi.CollectionType, path: str) -> Iterator[str]:
    if not isinstance(value, list | tuple) or not _fits_length(len(value), wanted):
        yield _found(value, wanted, path)
        return
    for index, item in enumerate(value):
        yield from _walk(item, wanted.item_type, f"{path}[{index}]")


def _fixed_list(value: Any, wanted: mi.TupleType, path: str) -> Iterator[str]:
    if not isinstance(value, list | tuple) or len(value) != len(wanted.item_types):
        yield _found(value, wanted, path)
        return
    for index, (item, item_type) in enumerate(zip(value, wanted.item_types, strict=True)):
        yield from _walk(item, item_type, f"{path}[{index}]")


def _mapping(value: Any, wanted: mi.DictType, path: str) -> Iterator[str]:
    if not isinstance(value, Mapping) or not _fits_length(len(value), wanted):
        yield _found(value, wanted, path)
        return
    for key, item in value.items():
        yield from _walk(key, wanted.key_type, f"{path} key {show(key)}")
        yield from _walk(item, wanted.value_type, member_path(path, key))


def member_path(path: str, key: Any) -> str:
    """Return the path to a member: `$.key`, or `$["odd key"]`."""
    return f"{path}.{key}" if re.fullmatch(r"[A-Za-z_]\w*", str(key)) else f"{path}[{show(key)}]"


_Object = mi.StructType | mi.TypedDictType | mi.DataclassType


def _object(value: Any, wanted: _Object, path: str) -> Iterator[str]:
    if isinstance(wanted, mi.StructType) and wanted.array_like:
        return  # a list on the wire; msgspec's own decoding checks it
    if not isinstance(value, Mapping):
        yield _found(value, wanted, path)
        return
    fields = {field.encode_name: field for field in wanted.fields}
    tag_field = wanted.tag_field if isinstance(wanted, mi.StructType) else None
    if isinstance(wanted, mi.StructType) and tag_field is not None:
        tag = value.get(tag_field)
        if tag is not None and tag != wanted.tag:
            yield f"{member_path(path, tag_field)}: found {show(tag)}, allowed: {show(wanted.tag)}"
    allowed = [*fields, *([tag_field] if tag_field else [])]
    for key in value:
        if key not in allowed:
            names = ", ".join(sorted(allowed)) or "no fields"
            yield f"{member_path(path, key)}: unknown field{suggest(str(key), allowed)}, allowed: {names}"
    for name, field in fields.items():
        if name in value:
            yield from _walk(value[name], field.type, member_path(path, name))
        elif field.required:
            yield f"{member_path(path, name)}: missing, allowed: {describe(field.type)}"


def _union(value: Any, wanted: mi.UnionType, path: str) -> Iterator[str]:
    """Check a union: the members of the value's JSON kind decide; with tagged objects, the tag does."""
    objects = [one for one in wanted.types if isinstance(one, _Object)]
    if isinstance(value, Mapping) and objects:
        yield from _tagged(value, objects, path)
        return
    members = [*_flatten(wanted)]
    attempts = [list(_walk(value, one, path)) for one in members]
    if not all(attempts):
        return
    same_kind = [found for found, one in zip(attempts, members, strict=True) if _same_kind(value, one)]
    yield from same_kind[0] if len(same_kind) == 1 else [_found(value, wanted, path)]


def _flatten(wanted: mi.UnionType) -> Iterator[mi.Type]:
    """Yield the members, including those of annotated unions, such as an optional Quantity."""
    for one in wanted.types:
        inner = one.type if isinstance(one, mi.Metadata) else None
        yield from _flatten(inner) if isinstance(inner, mi.UnionType) else (one,)


def _tagged(value: Mapping[Any, Any], objects: list[_Object], path: str) -> Iterator[str]:
    tagged = {one.tag: one for one in objects if isinstance(one, mi.StructType)}
    tag_field = objects[0].tag_field if isinstance(objects[0], mi.StructType) else None
    if len(objects) == 1 or tag_field is None:  # msgspec allows one object in a union, or tagged ones
        yield from _object(value, objects[0], path)
        return
    tag = value.get(tag_field)
    chosen = tagged.get(tag) if isinstance(tag, str | int) else None
    if chosen is not None:
        yield from _object(value, chosen, path)
        return
    names = ", ".join(sorted(map(show, tagged)))
    if tag_field not in value:
        yield f"{member_path(path, tag_field)}: missing, allowed: {names}"
    else:
        hint = suggest(str(tag), map(str, tagged))
        yield f"{member_path(path, tag_field)}: found {show(tag)}{hint}, allowed: {names}"


def _same_kind(value: Any, wanted: mi.Type) -> bool:
    while isinstance(wanted, mi.Metadata):
        wanted = wanted.type
    for kinds, json_types in _JSON_KINDS:
        if isinstance(wanted, kinds):
            return isinstance(value, json_types) and (json_types is bool or not isinstance(value, bool))
    return True


_JSON_KINDS: tuple[tuple[Any, Any], ...] = (
    (mi.BoolType, bool),
    (mi.IntType, int),
    (mi.FloatType, int | float),
    (mi.StrType | mi.EnumType, str),
    (mi.LiteralType, str | int),
    (mi.CollectionType | mi.TupleType, list | tuple),
    (mi.DictType | _Object, Mapping),
    (mi.NoneType, type(None)),
)


def _leaf(value: Any, wanted: mi.Type, path: str) -> Iterator[str]:
    target = LEAVES.get(type(wanted))
    if target is None:
        return  # left to msgspec's own decoding, which runs in any case
    try:
        msgspec.convert(value, target)
    except msgspec.ValidationError:
        yield _found(value, wanted, path)


_WALKS: tuple[tuple[Any, Callable[[Any, Any, str], Iterator[str]]], ...] = (
    (mi.Metadata, _metadata),
    (mi.AnyType | mi.RawType, _anything),
    (mi.NoneType | mi.BoolType | mi.IntType | mi.FloatType | mi.StrType | mi.EnumType | mi.LiteralType, _scalar),
    (mi.CollectionType, _list),
    (mi.TupleType, _fixed_list),
    (mi.DictType, _mapping),
    (_Object, _object),
    (mi.UnionType, _union),
)


def find_bad_quantities(value: Any, wanted: type) -> tuple[str, ...]:
    """Return every invalid quantity with its path. The value must be one that decodes."""
    return tuple(_walk_quantities(value, read_type(wanted), "$"))


def _walk_quantities(value: Any, wanted: mi.Type, path: str) -> Iterator[str]:
    if isinstance(wanted, mi.Metadata):
        if isinstance(value, str) and is_quantity_type(wanted) and not is_quantity(value):
            yield f"{path}: found {show(value)}, allowed: {EXAMPLES}"
        yield from _walk_quantities(value, wanted.type, path)
    elif isinstance(wanted, mi.UnionType):
        for one in wanted.types:
            yield from _walk_quantities(value, one, path)
    elif isinstance(wanted, mi.DictType) and isinstance(value, Mapping):
        for key, item in value.items():
            yield from _walk_quantities(item, wanted.value_type, member_path(path, key))
    elif isinstance(wanted, mi.CollectionType) and isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _walk_quantities(item, wanted.item_type, f"{path}[{index}]")
    elif isinstance(wanted, mi.TupleType) and isinstance(value, list | tuple):
        for index, (item, item_type) in enumerate(zip(value, wanted.item_types, strict=False)):
            yield from _walk_quantities(item, item_type, f"{path}[{index}]")
    elif isinstance(wanted, mi.StructType | mi.TypedDictType | mi.DataclassType) and isinstance(value, Mapping):
        yield from _quantities_of_members(value, wanted, path)


def _quantities_of_members(
    value: Mapping[str, Any], wanted: mi.StructType | mi.TypedDictType | mi.DataclassType, path: str
) -> Iterator[str]:
    tag_field = wanted.tag_field if isinstance(wanted, mi.StructType) else None
    if tag_field is not None and value.get(tag_field, wanted.tag) != wanted.tag:  # type: ignore[union-attr]
        return  # another member of a union
    for field in wanted.fields:
        if field.encode_name in value:
            yield from _walk_quantities(value[field.encode_name], field.type, member_path(path, field.encode_name))
