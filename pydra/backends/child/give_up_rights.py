"""Gives up rights of the agent, and then becomes a backend's process.

    python -I -S give_up_rights.py RIGHTS COMMAND...

RIGHTS is JSON: `cgroup`, the directory of a cgroup to move to; `user`, `group` and `groups`, numbers; `filter`, a
seccomp filter as the kernel takes it, in base64. Each but `groups` may be null. A program of its own, because the agent
has threads, so that Python code between fork and exec could hang, and because only Python's own library may run before
the rights are gone.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import sys
from collections.abc import Sequence

_PR_SET_SECCOMP = 22
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2
_BYTES_PER_INSTRUCTION = 8
_NEEDED = {"KILL": 5, "SETGID": 6, "SETUID": 7}
"""Capabilities by their bits: two to become another user, and one for the agent to end a process of another user."""


class _Program(ctypes.Structure):
    """`struct sock_fprog` of linux/filter.h."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def main(arguments: Sequence[str]) -> None:
    """Give up the rights and replace this program; ends it with a message if that is not possible."""
    rights, *command = arguments
    given = json.loads(rights)
    # First what needs rights, last what could forbid the calls before it.
    if given["cgroup"] is not None:
        try:
            with open(f"{given['cgroup']}/cgroup.procs", "w", encoding="utf-8") as processes:
                processes.write("0")  # this process
        except OSError as error:
            sys.exit(f"the process cannot move to its cgroup {given['cgroup']}: {error.strerror}")
    if given["user"] is not None:
        _become_user(given["user"], given["group"], given["groups"])
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)  # nor do setuid programs give any back
    if given["filter"] is not None:
        instructions = base64.b64decode(given["filter"])
        program = _Program(len(instructions) // _BYTES_PER_INSTRUCTION, instructions)
        _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program))
    try:
        os.execv(command[0], command)  # noqa: S606 - no shell is wanted
    except OSError as error:
        # Files are there and were executed a moment ago: what changed since are the rights.
        sys.exit(f"{command[0]} cannot be executed with these rights: {error.strerror}")


def _become_user(user: int, group: int, groups: Sequence[int]) -> None:
    if lacking := _find_lacking():
        sys.exit(f"runAsUser: {user} is not possible: the agent lacks the capabilities {', '.join(lacking)}")
    os.setgroups(groups)
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)  # the kernel takes all capabilities away


def _find_lacking() -> list[str]:
    with open("/proc/self/status", encoding="utf-8", errors="replace") as status:
        effective = next(int(line.split()[1], 16) for line in status if line.startswith("CapEff:"))
    return [name for name, bit in _NEEDED.items() if not effective >> bit & 1]


def _prctl(option: int, first: int, second: object = 0) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, first, second, 0, 0):
        code = ctypes.get_errno()
        sys.exit(f"prctl({option}) failed: {os.strerror(code)}")


if __name__ == "__main__":
    main(sys.argv[1:])
