"""Files that only NVIDIA's installation has: shared libraries with nothing in them but their SONAME."""

from __future__ import annotations

import struct

from pydra_pci.simulation.files import Contents


def library(soname: str, machine: int) -> str:
    """A shared library with nothing in it but its SONAME; `machine` as the ELF header numbers processors."""
    return f"e{machine} {soname}"


X86_64, AARCH64 = 62, 183

_SHARED_OBJECT = 3
_LOAD, _DYNAMIC, _STACK = 1, 2, 0x6474E551
_READ, _WRITE = 4, 2
_HASH, _STRTAB, _SYMTAB, _STRSZ, _SYMENT, _SONAME = 4, 5, 6, 10, 11, 14
_PAGE = 0x10000
_HEADER_SIZE, _SEGMENT_SIZE, _SYMBOL_SIZE = 64, 56, 24


def build_library(soname: str, machine: int = X86_64) -> bytes:
    """The file; `machine` is the ELF header's number of the processor."""
    strings = b"\0" + soname.encode() + b"\0"
    strings += bytes(-len(strings) % 8)
    symbols = bytes(_SYMBOL_SIZE)  # the one that every table begins with
    hashes = struct.pack("<4I", 1, 1, 0, 0)  # one bucket, one chain, both empty
    at_strings = _HEADER_SIZE + 4 * _SEGMENT_SIZE
    at_symbols = at_strings + len(strings)
    at_hashes = at_symbols + len(symbols)
    end = at_hashes + len(hashes)
    dynamic = b"".join(
        struct.pack("<qQ", tag, value)
        for tag, value in (
            (_SONAME, 1),
            (_HASH, at_hashes),
            (_STRTAB, at_strings),
            (_SYMTAB, at_symbols),
            (_STRSZ, len(strings)),
            (_SYMENT, _SYMBOL_SIZE),
            (0, 0),
        )
    )
    address = end + _PAGE  # what the loader writes to is on a page of its own
    segments = (
        (_LOAD, _READ, 0, 0, 0, end, end, _PAGE),
        (_LOAD, _READ | _WRITE, end, address, address, len(dynamic), len(dynamic), _PAGE),
        (_DYNAMIC, _READ | _WRITE, end, address, address, len(dynamic), len(dynamic), 8),
        (_STACK, _READ | _WRITE, 0, 0, 0, 0, 0, 16),
    )
    identity = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    header = identity + struct.pack(
        "<HHIQQQIHHHHHH", _SHARED_OBJECT, machine, 1, 0, _HEADER_SIZE, 0, 0, _HEADER_SIZE, _SEGMENT_SIZE, 4, 0, 0, 0
    )
    table = b"".join(struct.pack("<IIQQQQQQ", *segment) for segment in segments)
    return header + table + strings + symbols + hashes + dynamic


def _build(content: str) -> bytes:
    machine, _, soname = content.partition(" ")
    return build_library(soname, int(machine))


CONTENTS: Contents = {"e": _build}
"""The kind of file that this simulator adds to those of every one."""
