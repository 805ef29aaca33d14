"""The bpf system call, as far as programs of interfaces need it. Source: bpf(2), linux/bpf.h."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterator
from contextlib import contextmanager

_NUMBERS = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "ppc64le": 361, "s390x": 351}
_DETACH, _PROGRAM_BY_ID, _INFO, _QUERY = 9, 13, 15, 16
_LINK_BY_ID, _NEXT_LINK, _DETACH_LINK = 30, 31, 34
_XDP_LINK = 6
_MOST = 64
"""Programs at one place of an interface: the kernel allows no more."""

TCX_INGRESS, TCX_EGRESS = 46, 47

_libc = ctypes.CDLL(None, use_errno=True)


def query(index: int, place: int) -> list[tuple[int, int]]:
    """The ids of the programs of tcx at a place of a link, each with that of its bpf link, or 0. Raises OSError."""
    programs, links = (ctypes.c_uint32 * _MOST)(), (ctypes.c_uint32 * _MOST)()
    request = struct.pack(
        "=IIIIQI4xQQQQ", index, place, 0, 0, ctypes.addressof(programs), _MOST, 0, ctypes.addressof(links), 0, 0
    )
    answer, _ = call(_QUERY, request)
    (count,) = struct.unpack_from("=I", answer, 24)
    return list(zip(programs[:count], links[:count], strict=True))


def read_name(program: int) -> str:
    """The name of a program; the kernel keeps 15 characters. Raises OSError."""
    with _opening(_PROGRAM_BY_ID, program) as fd:
        return _read_info(fd)[64:80].split(b"\0")[0].decode(errors="replace")


def detach(index: int, place: int, program: int, link: int) -> None:
    """Detach a program of tcx, or its link. Raises OSError."""
    if link:
        _detach_link(link)
        return
    with _opening(_PROGRAM_BY_ID, program) as fd:
        call(_DETACH, struct.pack("=IIIIIIQ", index, fd, place, 0, 0, 0, 0))


def detach_xdp_link(index: int, program: int) -> bool:
    """Detach the XDP program of an interface that a bpf link holds; False if there is not exactly one such link.

    The kernel does not say of which namespace the index is that a link has. Raises OSError.
    """
    found = []
    for link in _list_links():
        try:
            with _opening(_LINK_BY_ID, link) as fd:
                kind, _, of, _, its_index = struct.unpack_from("=IIIII", _read_info(fd))
        except FileNotFoundError:
            continue
        if (kind, of, its_index) == (_XDP_LINK, program, index):
            found.append(link)
    if len(found) == 1:
        _detach_link(found[0])
    return len(found) == 1


def _detach_link(link: int) -> None:
    with _opening(_LINK_BY_ID, link) as fd:
        call(_DETACH_LINK, struct.pack("=I", fd))


def _list_links() -> Iterator[int]:
    after = 0
    while True:
        try:
            answer, _ = call(_NEXT_LINK, struct.pack("=III", after, 0, 0))
        except FileNotFoundError:
            return
        (after,) = struct.unpack_from("=I", answer, 4)
        yield after


def _read_info(fd: int) -> bytes:
    info = ctypes.create_string_buffer(256)
    call(_INFO, struct.pack("=IIQ", fd, len(info), ctypes.addressof(info)))
    return info.raw


@contextmanager
def _opening(command: int, number: int) -> Iterator[int]:
    _, fd = call(command, struct.pack("=III", number, 0, 0))
    try:
        yield fd
    finally:
        os.close(fd)


def call(command: int, request: bytes) -> tuple[bytes, int]:
    """Make the call. Returns the request as the kernel left it, and what it returned. Raises OSError."""
    number = _NUMBERS.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    buffer = ctypes.create_string_buffer(request, max(len(request), 64))
    result = _libc.syscall(number, command, buffer, len(buffer))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return buffer.raw, result
