"""Sets sysctls of the thread's network namespace, also where `/proc/sys` is read-only, as in containers.

A mount of proc that is not attached anywhere needs CAP_SYS_ADMIN, which entering namespaces needs anyway, and nobody
else sees it. Source: Linux, fs/fsopen.c; proc(5).
"""

from __future__ import annotations

import ctypes
import errno
import os
from contextlib import suppress

_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
_CREATE = 6
_CLOSE_ON_EXEC = 1

_libc = ctypes.CDLL(None, use_errno=True)


def set_sysctl(name: str, value: int) -> None:
    """Set `net/ipv4/ip_forward`. Raises OSError."""
    with suppress(OSError):
        _write(os.open(f"/proc/sys/{name}", os.O_WRONLY | os.O_CLOEXEC), value)
        return
    proc = _mount_proc()
    try:
        _write(os.open(f"sys/{name}", os.O_WRONLY | os.O_CLOEXEC, dir_fd=proc), value)
    finally:
        os.close(proc)


def _write(file: int, value: int) -> None:
    try:
        os.write(file, str(value).encode())
    finally:
        os.close(file)


def _mount_proc() -> int:
    opened = _call(_FSOPEN, b"proc", _CLOSE_ON_EXEC)
    try:
        _call(_FSCONFIG, opened, _CREATE, None, None, 0)
        return _call(_FSMOUNT, opened, _CLOSE_ON_EXEC, 0)
    finally:
        os.close(opened)


def _call(number: int, *arguments: object) -> int:
    result: int = _libc.syscall(number, *arguments)
    if result < 0:
        code = ctypes.get_errno() or errno.EIO
        raise OSError(code, os.strerror(code))
    return result
