"""Finds what JSON cannot hold in a value: one rule for records, for messages between processes and for the API."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

MAX_DEPTH = 64
MAX_VALUES = 128 * 1024
"""Items of lists and objects: a few tenths of a second.

Anything that a record or the API takes has fewer; the largest is a state of 256 KiB of JSON.
"""


def find_json_problems(value: Any, path: str) -> Iterator[str]:
    """Yield the parts of the value that JSON cannot represent exactly; of too many values, the first."""
    found: list[tuple[Any, str, int]] = [(value, path, 0)]
    left = MAX_VALUES
    while found:
        value, path, depth = found.pop()
        if not isinstance(value, (list, tuple)) and not isinstance(value, Mapping):
            if problem := _scalar_problem(value):
                yield f"{path} {problem}"
            continue
        left -= len(value)
        if left < 0:
            yield f"{path} and what is before it have more than {MAX_VALUES:,} values"
            return
        if depth > MAX_DEPTH:
            yield f"{path} is nested more than {MAX_DEPTH} deep"
            continue
        items: Iterable[tuple[object, Any]] = enumerate(value)
        if isinstance(value, Mapping):
            for key in value:
                if not isinstance(key, str) or not _is_unicode(key):
                    yield f"{path} has the key {key!r}; keys of JSON objects are strings"
            items = value.items()
        spell = "{}.{}" if isinstance(value, Mapping) else "{}[{}]"
        inner = [(item, spell.format(path, key), depth + 1) for key, item in items if _scalar_problem(item)]
        found += reversed(inner)


def _scalar_problem(value: Any) -> str:
    """Return why it is not a scalar that JSON can hold; a list or an object is not. Empty for nearly all values."""
    match value:
        case None | bool():
            return ""
        case str():
            is_valid = value.isascii() or _is_unicode(value)
            return "" if is_valid else "has an unpaired surrogate, which is not valid Unicode"
        case int():
            return "" if -(2**63) <= value < 2**64 else "is an integer of more than 64 bits"
        case float():
            return "" if math.isfinite(value) else f"is {value}, which JSON does not have"
        case _:
            return f"is of type {type(value).__name__}, which is not JSON"


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
