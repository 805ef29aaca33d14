"""What a setting may be, in words: for errors about it, and for docs/settings.md. Pure."""

from __future__ import annotations

from typing import Any

from msgspec.inspect import (
    BoolType,
    DictType,
    EnumType,
    FloatType,
    IntType,
    StrType,
    Type,
    UnionType,
    VarTupleType,
    type_info,
)


def describe_allowed(kind: Any) -> str:
    """`adopt, remove`; raises ValueError for a type that no setting has had so far."""
    return _describe(type_info(kind))


def _describe(kind: Type) -> str:
    words = ""
    match kind:
        case BoolType():
            words = "true, false"
        case StrType(pattern="^/"):
            words = "an absolute path"
        case StrType(pattern="^(/|$)"):
            words = "an absolute path, or empty"
        case EnumType():
            words = ", ".join(one.value for one in kind.cls)
        case IntType(ge=int(least), le=int(most)):
            words = f"a number from {least} to {most}"
        case FloatType(gt=0):
            words = "seconds above 0"
        case UnionType():
            words = ", ".join(sorted((_describe(one) for one in kind.types), key=lambda text: text.startswith("a ")))
        case VarTupleType(item_type=IntType()):
            words = "numbers, with commas"
        case DictType(key_type=EnumType() as keys, value_type=EnumType() as values):
            words = f"NAME=VALUE, with commas; names: {_describe(keys)}; values: {_describe(values)}"
    if not words:
        raise ValueError(f"no words for settings of the type {kind!r}")
    return words
