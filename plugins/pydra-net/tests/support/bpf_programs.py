"""eBPF programs on the interfaces of a test's namespaces, as others leave them there."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pydra_net.netlink import bpf_syscall

_LOAD, _ATTACH, _MAKE_LINK = 5, 8, 28
_TC, _XDP, _ON_XDP = 3, 6, 37


def attach_programs(index: int) -> list[int]:
    """One of tcx, one of tcx and one of XDP by bpf links, in the thread's namespace; these end with the result."""
    with _load(_TC, b"handle_ingress") as program:
        _call(_ATTACH, "IIIIIIQ", index, program, bpf_syscall.TCX_INGRESS, 0, 0, 0, 0)
    with _load(_TC, b"by_link") as program:
        by_link = _call(_MAKE_LINK, "IIIIIIQ", program, index, bpf_syscall.TCX_EGRESS, 0, 0, 0, 0)
    with _load(_XDP, b"xdp") as program:
        return [by_link, _call(_MAKE_LINK, "IIII", program, index, _ON_XDP, 0)]


@contextmanager
def _load(kind: int, name: bytes) -> Iterator[int]:
    """A program that returns 2 (pass)."""
    code = ctypes.create_string_buffer(struct.pack("=BBhiBBhi", 0xB7, 0, 0, 2, 0x95, 0, 0, 0), 16)
    licence = ctypes.create_string_buffer(b"GPL")
    place = ctypes.addressof
    loaded = _call(_LOAD, "IIQQIIQII16sII", kind, 2, place(code), place(licence), 0, 0, 0, 0, 0, name, 0, 0)
    try:
        yield loaded
    finally:
        os.close(loaded)


def _call(command: int, form: str, *values: Any) -> int:
    return bpf_syscall.call(command, struct.pack(f"={form}", *values))[1]
