"""Reads ld.so.cache, where the driver's libraries may be listed. Source: glibc, elf/cache.c."""

from __future__ import annotations

import struct

from pydra_nvidia.host.rooted_paths import below, resolve

LINKER_CACHE = "/etc/ld.so.cache"
NEW = b"glibc-ld.so.cache1.1"
_HEADER = struct.Struct("<20sII5I")
_ENTRY = struct.Struct("<iIIIQ")
_BITS = 0xFF00
_WIDE = frozenset({0x0300, 0x0A00})
"""Flags of 64-bit libraries: x86-64 and AArch64."""


def read_linker_cache(root: str) -> bytes:
    """What `find_cached` looks into, of the system in this root; empty without one."""
    inside = resolve(root, LINKER_CACHE)
    if inside is None:
        return b""
    try:
        with open(below(root, inside), "rb") as file:
            return file.read()
    except OSError:
        return b""


def find_cached(data: bytes, name: str) -> tuple[str, ...]:
    """Where the cache has 64-bit libraries of this name, as absolute paths; empty for a file that is not a cache."""
    start = data.find(NEW)
    if start < 0 or len(data) < start + _HEADER.size:
        return ()
    _, count, *_ = _HEADER.unpack_from(data, start)
    table = start + _HEADER.size
    if len(data) < table + count * _ENTRY.size:
        return ()
    wanted = name.encode()
    found = []
    for flags, key, value, _, _ in _ENTRY.iter_unpack(data[table : table + count * _ENTRY.size]):
        path = _text(data, start + value)
        if flags & _BITS in _WIDE and _text(data, start + key) == wanted and path:
            found.append(path.decode(errors="surrogateescape"))
    return tuple(found)


def _text(data: bytes, start: int) -> bytes:
    end = data.find(b"\0", start)
    return data[start:end] if end >= 0 else b""
