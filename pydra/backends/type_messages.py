"""Describes types and values in error messages."""

from __future__ import annotations

import datetime
import decimal
import uuid
from typing import Any

from msgspec import inspect as mi

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
            return f"a {type(value).__name__}"
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
            return _object(wanted)
        case mi.CollectionType():
            return "a list" + _length(wanted)
        case mi.TupleType(item_types=items):
            return f"a list of exactly {len(items)}"
        case mi.UnionType(types=types):
            return " or ".join(dict.fromkeys(describe(one) for one in types))
        case _:
            return f"a {LEAVES[type(wanted)].__name__.lower()}" if type(wanted) in LEAVES else "another value"


def _object(wanted: mi.Type) -> str:
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
