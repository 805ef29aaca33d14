"""How two readings differ, in words: what a recording could not keep. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from pydra_nvidia.hardware import Reading


def find_differences(recorded: Reading, back: Reading) -> tuple[str, ...]:
    """`gpus[3].links.up: 18, reads back as 0`, for each field.

    Of a GPU that does not answer the error counts, not in which of NVML's calls it came: it is recorded for the first.
    """
    return tuple(_compare("", _comparable(recorded), _comparable(back)))


def _comparable(reading: Reading) -> Any:
    lost = tuple(replace(one, message="") for one in reading.lost)
    return msgspec.to_builtins(replace(reading, lost=lost))


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
