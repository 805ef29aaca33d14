"""Validates a JSON value against a msgspec type and lists all errors with their paths; describes types and values.

msgspec's own decoding stops at the first error and ignores unknown fields unless the type forbids them. An author wants
all errors at once, and a misspelt field must never be ignored. So lists and objects are taken apart here; whether a
single value is allowed is msgspec's decision, except for quantities (`pydra.devices.Quantity`).
"""

from __future__ import annotations

import datetime
import decimal
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import islice
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from msgspec import inspect as mi

from pydra.message_text import suggest
from pydra.quantity import is_quantity

_Object = mi.StructType | mi.TypedDictType | mi.DataclassType

_KINDS: tuple[tuple[Any, Any], ...] = (
    (mi.NoneType, None),
    (mi.BoolType, bool),
    (mi.IntType, int),
    (mi.FloatType, float),
    (mi.StrType | mi.EnumType, str),
    (mi.LiteralType, str | int),
    (mi.CollectionType | mi.TupleType, list),
    (mi.DictType | _Object, dict),
)
"""Descriptions of types, and the Python type of the values that JSON has for them."""

_PATTERN_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^]\\])*\]|\$", re.DOTALL)
_SIMPLE = (mi.IntType, mi.FloatType, mi.StrType, mi.BoolType, mi.EnumType, mi.LiteralType)

MOST_MISMATCHES = 1000
"""More are not looked for: a value from elsewhere may have millions."""

_LIMITS = ("gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length", "tz")


def find_mismatches(value: Any, wanted: type | mi.Type) -> tuple[str, ...]:
    """Return the mismatches as `$.path: found what, what is allowed`; empty if msgspec decodes it strictly."""
    found = _walk(value, wanted if isinstance(wanted, mi.Type) else read_type(wanted), "$")
    return tuple(islice(found, MOST_MISMATCHES))


@cache  # compiling the annotations takes longer than the rest of a call
def read_type(wanted: type) -> mi.Type:
    """Return msgspec's description of a type."""
    return mi.type_info(wanted)


def _walk(value: Any, wanted: mi.Type, path: str) -> Iterator[str]:
    match wanted:
        case mi.AnyType() | mi.RawType() | mi.StructType(array_like=True):
            return  # the last is a list on the wire; msgspec's own decoding checks it
        case mi.Metadata(type=inner) if not is_quantity_type(wanted):
            yield from _walk(value, inner, path)
        case mi.UnionType():
            yield from _union(value, wanted, path)
        case _ if not _fits(value, wanted):
            yield _found(value, wanted, path)
        case mi.CollectionType(item_type=item_type) if not _all_fit(value, item_type):
            for index, item in enumerate(value):
                yield from _walk(item, item_type, f"{path}[{index}]")
        case mi.TupleType(item_types=item_types):
            for index, (item, item_type) in enumerate(zip(value, item_types, strict=True)):
                yield from _walk(item, item_type, f"{path}[{index}]")
        case mi.DictType() if not (_all_fit(value, wanted.key_type) and _all_fit(value.values(), wanted.value_type)):
            for key, item in value.items():
                yield from _walk(key, wanted.key_type, f"{path} key {show(key)}")
                yield from _walk(item, wanted.value_type, member_path(path, key))
        case mi.StructType() | mi.TypedDictType() | mi.DataclassType():
            yield from _object(value, wanted, path)


def _found(value: Any, wanted: mi.Type, path: str) -> str:
    return f"{path}: found {show(value)}, allowed: {describe(wanted)}"


def _fits(value: Any, wanted: mi.Type) -> bool:
    """Return whether the value, apart from what is in it, is one of the type."""
    if is_quantity_type(wanted):
        return is_quantity(value)
    return _converts(value, _build_type(wanted))


def _all_fit(values: Iterable[Any], wanted: mi.Type) -> bool:
    """Return whether these are values of a simple type, of which there may be thousands: msgspec checks all at once."""
    return isinstance(wanted, _SIMPLE) and _converts(list(values), list[_build_type(wanted)])  # type: ignore[misc]


def _converts(value: Any, wanted: Any) -> bool:
    try:
        msgspec.convert(value, wanted)
    except msgspec.ValidationError:
        return False
    return True


def _build_type(wanted: mi.Type) -> Any:
    """Return the type with the limits of its description; of a list or an object without what is in it."""
    match wanted:
        case mi.EnumType(cls=cls):
            return cls
        case mi.LiteralType(values=values):
            return Literal[values]
        case mi.TupleType(item_types=items):
            return Annotated[list, Meta(min_length=len(items), max_length=len(items))]
    kind = LEAVES.get(type(wanted)) or _find_kind(wanted)
    limits = {name: limit for name in _LIMITS if (limit := getattr(wanted, name, None)) is not None}
    if "pattern" in limits:  # `$` is the end, as in JSON Schema and CEL; in Python also before a newline at the end
        limits["pattern"] = _PATTERN_TOKEN.sub(lambda part: r"\Z" if part[0] == "$" else part[0], limits["pattern"])
    return Annotated[kind, Meta(**limits)] if limits else kind


def _find_kind(wanted: mi.Type) -> Any:
    """Return the Python type of the JSON values for a type; Any for one that msgspec's own decoding checks."""
    return next((kind for kinds, kind in _KINDS if isinstance(wanted, kinds)), Any)


def member_path(path: str, key: Any) -> str:
    """Return the path to a member: `$.key`, or `$["odd key"]`."""
    return f"{path}.{key}" if re.fullmatch(r"[A-Za-z_]\w*", str(key)) else f"{path}[{show(key)}]"


def _object(value: Mapping[Any, Any], wanted: _Object, path: str) -> Iterator[str]:
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
    attempts = [list(_walk(value, one, path)) for one in wanted.types]
    if not all(attempts):
        return
    same_kind = [found for found, one in zip(attempts, wanted.types, strict=True) if _is_same_kind(value, one)]
    yield from same_kind[0] if len(same_kind) == 1 else [_found(value, wanted, path)]


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


def _is_same_kind(value: Any, wanted: mi.Type) -> bool:
    while isinstance(wanted, mi.Metadata):
        wanted = wanted.type
    return _converts(value, _find_kind(wanted))


MAX_SHOWN = 60

EXAMPLES = "a quantity such as 2, 80Gi, 1500m or 1e3"

LEAVES: dict[type[mi.Type], Any] = {
    mi.DateTimeType: datetime.datetime,
    mi.DateType: datetime.date,
    mi.TimeType: datetime.time,
    mi.TimeDeltaType: datetime.timedelta,
    mi.UUIDType: uuid.UUID,
    mi.DecimalType: decimal.Decimal,
    mi.BytesType: bytes,
    mi.ByteArrayType: bytearray,
}
"""Types that JSON lacks: strings in a format that msgspec knows."""


def show(value: Any) -> str:
    """Format a value as in JSON, shortened."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            text = '"' + value.replace("\n", "\\n") + '"'
        case dict():
            return "an object"
        case list() | tuple():
            return f"a list of {len(value)}"
        case int() | float():
            text = str(value)
        case _:
            return f"a value of type {type(value).__name__}"
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "..."


def describe(wanted: mi.Type) -> str:  # noqa: PLR0911 - one line a type
    """Describe what a type allows, in JSON's terms."""
    match wanted:
        case mi.Metadata(type=inner):
            return EXAMPLES if is_quantity_type(wanted) else describe(inner)
        case mi.NoneType():
            return "null"
        case mi.BoolType():
            return "true or false"
        case mi.IntType() | mi.FloatType():
            return ("an integer" if isinstance(wanted, mi.IntType) else "a number") + _range(wanted)
        case mi.StrType():
            return "a string" + _length(wanted) + (f" that matches {wanted.pattern}" if wanted.pattern else "")
        case mi.EnumType(cls=cls):
            return ", ".join(show(member.value) for member in cls)
        case mi.LiteralType(values=values):
            return ", ".join(map(show, values))
        case mi.StructType() | mi.DictType() | mi.TypedDictType() | mi.DataclassType():
            return _describe_object(wanted)
        case mi.CollectionType():
            return "a list" + _length(wanted)
        case mi.TupleType(item_types=items):
            return f"a list of exactly {len(items)}"
        case mi.UnionType(types=types):
            return " or ".join(dict.fromkeys(describe(one) for one in types))
        case _:
            return f"a {LEAVES[type(wanted)].__name__.lower()}" if type(wanted) in LEAVES else "another value"


def _describe_object(wanted: mi.Type) -> str:
    """Name a class of the contract, which a backend answers with; configuration has other ones."""
    cls = wanted.cls if isinstance(wanted, mi.StructType) else dict
    return f"a pydra.{cls.__name__}" if cls.__module__.startswith("pydra.") else "an object"


def is_quantity_type(wanted: mi.Type) -> bool:
    """Return whether the type's strings are quantities."""
    return isinstance(wanted, mi.Metadata) and (wanted.extra_json_schema or {}).get("format") == "quantity"


def _range(wanted: mi.IntType | mi.FloatType) -> str:
    bounds = [
        f"{sign} {bound:g}" if isinstance(bound, float) else f"{sign} {bound}"
        for sign, bound in ((">", wanted.gt), (">=", wanted.ge), ("<", wanted.lt), ("<=", wanted.le))
        if bound is not None
    ]
    if wanted.multiple_of is not None:
        bounds.append(f"a multiple of {wanted.multiple_of}")
    return " " + " and ".join(bounds) if bounds else ""


def _length(wanted: mi.StrType | mi.CollectionType | mi.DictType) -> str:
    low, high = wanted.min_length, wanted.max_length
    unit = "characters" if isinstance(wanted, mi.StrType) else "entries"
    if low is not None and high is not None:
        return f" of {low} to {high} {unit}"
    if low is not None:
        return f" of at least {low} {unit}"
    return f" of at most {high} {unit}" if high is not None else ""
