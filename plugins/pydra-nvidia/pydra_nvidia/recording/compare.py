"""How two readings differ, in words: what a recording could not keep. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from pydra_nvidia.hardware import Reading


def find_differences(recorded: Reading, back: Reading) -> tuple[str, ...]:
    """`gpus[3].links.up: 18, reads back as 0`, for each field."""
    return tuple(_compare("", msgspec.to_builtins(recorded), msgspec.to_builtins(back)))


def _compare(path: str, one: Any, other: Any) -> Iterator[str]:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in {**one, **other}:
            yield from _compare(f"{path}.{key}" if path else key, one.get(key, "nothing"), other.get(key, "nothing"))
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        for number, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            yield from _compare(f"{path}[{number}]", mine, theirs)
    elif one != other:
        yield f"{path}: {_short(one)}, reads back as {_short(other)}"


def _short(value: Any) -> str:
    return f"{len(value)} of them" if isinstance(value, list | tuple | Mapping) else str(value)
