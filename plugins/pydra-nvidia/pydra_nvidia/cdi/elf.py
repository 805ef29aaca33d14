"""The one thing that is asked of a shared library: its SONAME, the name under which programs look for it.

Source: the ELF specification, program header and dynamic section.
"""

from __future__ import annotations

import struct
from typing import BinaryIO

import msgspec

_IDENT = struct.Struct("<4sBB")
_HEADER = struct.Struct("<32xQ14xHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_DYNAMIC = struct.Struct("<qQ")
_WIDE, _LITTLE = 2, 1
_LOAD, _DYNAMIC_SEGMENT = 1, 2
_NULL, _STRTAB, _SONAME = 0, 5, 14
_MOST_SEGMENTS = 256
_MOST_DYNAMIC = 64 * 1024
_LONGEST_NAME = 255


class Elf(msgspec.Struct, frozen=True, kw_only=True):
    """A shared library: whether it is a 64-bit one, and its SONAME, empty when it has none or is not 64-bit."""

    wide: bool
    soname: str = ""


def read_elf(file: BinaryIO) -> Elf | None:
    """What the file says of itself; None when it is not an ELF file, or is damaged. Raises OSError."""
    start = file.read(64)
    if len(start) < _IDENT.size or not start.startswith(b"\x7fELF"):
        return None
    _, width, order = _IDENT.unpack_from(start)
    if width != _WIDE or order != _LITTLE:
        return Elf(wide=False)
    try:
        return Elf(wide=True, soname=_read_soname(file, start))
    except (struct.error, UnicodeDecodeError, OverflowError):
        return None


def _read_soname(file: BinaryIO, start: bytes) -> str:
    offset, size, count = _HEADER.unpack_from(start)
    count = min(count, _MOST_SEGMENTS)
    file.seek(offset)
    table = file.read(size * count)
    segments = [_SEGMENT.unpack_from(table, index * size) for index in range(count)]
    dynamic = next((one for one in segments if one[0] == _DYNAMIC_SEGMENT), None)
    if dynamic is None:
        return ""
    file.seek(dynamic[2])
    content = file.read(min(dynamic[5], _MOST_DYNAMIC))
    tags: dict[int, int] = {}
    for tag, value in _DYNAMIC.iter_unpack(content[: len(content) // _DYNAMIC.size * _DYNAMIC.size]):
        if tag == _NULL:
            break
        tags.setdefault(tag, value)
    if _SONAME not in tags or _STRTAB not in tags:
        return ""
    for kind, _, position, address, _, length, _, _ in segments:
        if kind == _LOAD and address <= tags[_STRTAB] < address + length:
            file.seek(position + tags[_STRTAB] - address + tags[_SONAME])
            name, end, _ = file.read(_LONGEST_NAME + 1).partition(b"\0")
            return name.decode() if end and b"/" not in name else ""
    return ""
