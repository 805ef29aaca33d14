"""A file system below which every look-up hangs in the kernel, as in a driver or on a network file system that is gone.

FUSE without a library: only the first message is answered. A thread that the kernel has handed over waits where no
signal reaches it (state D), until the file system is taken away.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_LIBC = ctypes.CDLL(None, use_errno=True)
_HEADER = struct.Struct("<IIQQIIII")  # struct fuse_in_header
_INIT = 26
_INIT_ANSWER = struct.Struct("<IiQIIIIHHI40x")  # struct fuse_out_header, struct fuse_init_out of 7.x
_MNT_FORCE, _MNT_DETACH = 1, 2


@contextmanager
def stuck_mount(path: Path) -> Iterator[None]:
    """Mount it at `path` until the end of the block; skips the test where that may not be done."""
    try:
        descriptor = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        pytest.skip(f"no FUSE here, for a process that cannot be killed: {error}")
    try:
        options = f"fd={descriptor},rootmode=40000,user_id=0,group_id=0".encode()
        if _LIBC.mount(b"stuck", os.fsencode(path), b"fuse", 0, options):
            why = os.strerror(ctypes.get_errno())
            pytest.skip(f"only root may mount the file system in which a process hangs: {why}")
        reader = threading.Thread(target=_take_all, args=(descriptor,), daemon=True)
        reader.start()
        try:
            yield
        finally:
            for flag in (_MNT_FORCE, _MNT_DETACH):  # the first ends the waits, the second works while they end
                _LIBC.umount2(os.fsencode(path), flag)
            reader.join(10)
    finally:
        os.close(descriptor)


def _take_all(descriptor: int) -> None:
    while True:
        try:
            request = os.read(descriptor, 1 << 17)
        except OSError:
            return
        _, opcode, unique, *_ = _HEADER.unpack_from(request)
        if opcode == _INIT:
            os.write(descriptor, _INIT_ANSWER.pack(80, 0, unique, 7, 31, 0, 0, 1, 1, 4096))
