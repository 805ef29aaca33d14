"""What a JSON document has and a value read from it does not: found, kept, and put back. Pure.

A field that a newer version wrote must outlive a rewrite by this one. Fields are named by JSON
pointers (RFC 6901); the fields of a mapping are data, never unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec


def find_unknown(document: Any, value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Pointer and content of everything in `document` that the Struct read from it has no field for."""
    if isinstance(value, msgspec.Struct) and isinstance(document, dict):
        known = {field.encode_name: getattr(value, field.name) for field in msgspec.structs.fields(value)}
        for key, content in document.items():
            where = f"{path}/{_escape(key)}"
            if key in known:
                yield from find_unknown(content, known[key], where)
            else:
                yield where, content
    elif isinstance(value, tuple) and isinstance(document, list):
        for index, (content, item) in enumerate(zip(document, value, strict=False)):
            yield from find_unknown(content, item, f"{path}/{index}")


def restore_unknown(document: dict[str, Any], unknown: Mapping[str, Any]) -> None:
    """Put them back where they were. One whose object is gone meanwhile goes with it."""
    for pointer, content in unknown.items():
        *way, last = (_unescape(part) for part in pointer.removeprefix("/").split("/"))
        place = _follow(document, way)
        if isinstance(place, dict):
            place.setdefault(last, content)


def _follow(place: Any, way: list[str]) -> Any:
    for part in way:
        if isinstance(place, dict) and part in place:
            place = place[part]
        elif isinstance(place, list | tuple) and part.isdecimal() and int(part) < len(place):
            place = place[int(part)]
        else:
            return None
    return place


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _unescape(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~")
