"""Gives up the agent's rights, and then becomes a backend's process.

    python -I -S become_user.py USER GROUP GROUPS COMMAND...

USER and GROUP are numbers, GROUPS are numbers with commas between them. A program of its own, because the agent has
threads, so that Python code between fork and exec could hang, and because only Python's own library may run before the
rights are gone.
"""

from __future__ import annotations

import ctypes
import os
import sys

_PR_SET_NO_NEW_PRIVS = 38
_NEEDED = {"KILL": 5, "SETGID": 6, "SETUID": 7}
"""Capabilities by their bits: two to become another user, and one for the agent to end a process of another user."""


def main(arguments: list[str]) -> None:
    """Become the user and replace this program; ends it with a message if the agent may not do that."""
    user, group, groups, *command = arguments
    if lacking := _find_lacking():
        sys.exit(f"runAsUser: {user} is not possible: the agent lacks the capabilities {', '.join(lacking)}")
    os.setgroups([int(one) for one in groups.split(",") if one])
    os.setresgid(int(group), int(group), int(group))
    os.setresuid(int(user), int(user), int(user))  # the kernel takes all capabilities away
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):  # nor do setuid programs give any back
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS)")
    os.execv(command[0], command)  # noqa: S606 - no shell is wanted


def _find_lacking() -> list[str]:
    with open("/proc/self/status", encoding="utf-8", errors="replace") as status:
        effective = next(int(line.split()[1], 16) for line in status if line.startswith("CapEff:"))
    return [name for name, bit in _NEEDED.items() if not effective >> bit & 1]


if __name__ == "__main__":
    main(sys.argv[1:])
