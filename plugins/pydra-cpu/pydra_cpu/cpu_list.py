"""Sets of CPUs in the kernel's list format, such as `0-3,8,10-11`; also of NUMA nodes.

Source: Linux, Documentation/admin-guide/cputopology.rst and cpuset(7), "List format".
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_RANGE = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")
_MOST = 1 << 16


def parse_cpu_list(text: str) -> frozenset[int]:
    """Return the CPUs of a list; none for an empty one.

    Raises:
        ValueError: the text is not a list in the kernel's format, or has more CPUs than any machine.
    """
    found: set[int] = set()
    left = _MOST
    for part in text.split(",") if text else ():
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f"{text[:64]!r} is not a list of CPUs, such as 0-3,8")
        first, last = int(match[1]), int(match[2] or match[1])
        left -= last - first + 1
        if last < first or last >= _MOST or left < 0:
            raise ValueError(f"{part} is not a range of CPUs, or the list names more than {_MOST}")
        found.update(range(first, last + 1))
    return frozenset(found)


def parse_kernel_list(text: str) -> frozenset[int]:
    """Return the CPUs of a file of the kernel; none if it has something else."""
    try:
        return parse_cpu_list(text)
    except ValueError:
        return frozenset()


def format_cpu_list(cpus: Iterable[int]) -> str:
    """Return the list of these CPUs, in ascending order."""
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ranges)
