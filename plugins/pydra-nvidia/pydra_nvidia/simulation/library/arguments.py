"""What pynvml hands to a C function, read and written as C would. Pure; knows ctypes and nothing of pynvml."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from pydra_nvidia.nvml.errors import Code


class Refusal(Exception):
    """The call answers this code."""

    def __init__(self, code: Code) -> None:
        super().__init__(code.name)
        self.code = code


def pointed(reference: Any) -> Any:
    """What `byref(x)`, `pointer(x)` or an array leads to."""
    try:
        return reference._obj  # noqa: SLF001 - of ctypes: the only way back from byref
    except AttributeError:
        return getattr(reference, "contents", reference)


def put(reference: Any, value: float | bytes) -> None:
    """`*reference = value`."""
    pointed(reference).value = value


def fill(struct: Any, version: int | None = None, **fields: Any) -> None:
    """The fields of a struct; raises Refusal when it is not of the version that is known here."""
    struct = pointed(struct)
    if version is not None and struct.version != version:
        raise Refusal(Code.ARGUMENT_VERSION_MISMATCH)
    for name, value in fields.items():
        setattr(struct, name, value)


def number(argument: Any) -> int:
    """An integer, given as such or in a ctypes value."""
    return int(getattr(argument, "value", argument))


def text(argument: Any) -> str:
    """A C string."""
    value = getattr(argument, "value", argument)
    return value.decode() if isinstance(value, bytes) else str(value)


def handle(argument: Any) -> int:
    """The address in a handle, 0 for NULL."""
    return ctypes.c_void_p.from_buffer(argument).value or 0


def put_handle(target: Any, value: int, offset: int = 0) -> None:
    """`value` into a handle, an array of handles, or a struct, at `offset` bytes."""
    ctypes.c_void_p.from_buffer(pointed(target), offset).value = value


def put_handles(array: Any, count: Any, values: Sequence[int]) -> None:
    """The handles and how many; without an array only the latter."""
    if array is not None:
        place = pointed(array)
        for position, value in enumerate(values[: ctypes.sizeof(place) // ctypes.sizeof(ctypes.c_void_p)]):
            put_handle(place, value, position * ctypes.sizeof(ctypes.c_void_p))
    put(count, len(values))
