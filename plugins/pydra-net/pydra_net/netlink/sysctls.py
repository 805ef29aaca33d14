"""Sysctls of the thread's network namespace: reads what was changed of a link, and sets them.

They are set also where `/proc/sys` is read-only, as in containers: a mount of proc that is not attached anywhere needs
CAP_SYS_ADMIN, which entering namespaces needs anyway, and nobody else sees it. Source: Linux, fs/fsopen.c; proc(5);
Documentation/networking/ip-sysctl.rst.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import suppress

from pydra_net.link_parameters import FOR_TOKENS, IPV4

_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
_CREATE = 6
_CLOSE_ON_EXEC = 1

_FOLDERS = ("ipv6/conf", "ipv4/conf", "ipv6/neigh", "ipv4/neigh")
_LEFT_OUT = {("ipv4/conf", name) for name in (*IPV4, "mc_forwarding")} | {
    ("ipv6/conf", name) for name in ("mc_forwarding", "mtu")
}
"""What `link_parameters` has, what nobody can write, and what the kernel sets whenever the link goes up."""

_libc = ctypes.CDLL(None, use_errno=True)


def read_changed_sysctls(link: str) -> dict[str, int | str]:
    """The sysctls of a link that are not as those of the namespace's default, by names such as `ipv6/conf/accept_ra`.

    Those that are changed to set a token are always among them; those that messages report
    (`link_parameters.IPV4`) are left out.
    """
    return {
        f"{kind}/{name}": value
        for kind in _FOLDERS
        for name, value in _read_all(f"/proc/sys/net/{kind}/{link}")
        if (kind, name) not in _LEFT_OUT
        and (f"{kind}/{name}" in FOR_TOKENS or value != _read(f"/proc/sys/net/{kind}/default/{name}"))
    }


def _read_all(folder: str) -> Iterator[tuple[str, int | str]]:
    with suppress(OSError):
        for name in sorted(os.listdir(folder), key=lambda one: (one != "stable_secret", one)):
            if (value := _read(f"{folder}/{name}")) is not None:
                yield name, value


def _read(path: str) -> int | str | None:
    try:
        with open(path) as file:
            text = file.read().strip()
    except OSError:  # a secret that is not set, or the link is gone
        return None
    return int(text) if text.lstrip("-").isdecimal() else text


def set_sysctl(name: str, value: int | str) -> None:
    """Set `net/ipv4/ip_forward`. Raises OSError."""
    with suppress(OSError):
        _write(os.open(f"/proc/sys/{name}", os.O_WRONLY | os.O_CLOEXEC), value)
        return
    proc = _mount_proc()
    try:
        _write(os.open(f"sys/{name}", os.O_WRONLY | os.O_CLOEXEC, dir_fd=proc), value)
    finally:
        os.close(proc)


def _write(file: int, value: int | str) -> None:
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
