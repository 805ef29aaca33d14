"""Finds what JSON cannot hold in a value: one rule for records, for messages between processes and for the API."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

MAX_DEPTH = 64


def find_json_problems(value: Any, path: str, depth: int = 0) -> Iterator[str]:
    """Yield the parts of the value that JSON cannot represent exactly."""
    match value:
        case list() | tuple() | Mapping() if depth > MAX_DEPTH:
            yield f"{path} is nested more than {MAX_DEPTH} deep"
        case list() | tuple():
            for index, item in enumerate(value):
                yield from find_json_problems(item, f"{path}[{index}]", depth + 1)
        case Mapping():
            for key, item in value.items():
                if not isinstance(key, str) or not _is_unicode(key):
                    yield f"{path} has the key {key!r}; keys of JSON objects are strings"
                yield from find_json_problems(item, f"{path}.{key}", depth + 1)
        case _ if problem := _scalar_problem(value):
            yield f"{path} {problem}"


def _scalar_problem(value: Any) -> str:
    match value:
        case None | bool():
            return ""
        case str():
            return "" if _is_unicode(value) else "has an unpaired surrogate, which is not valid Unicode"
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
