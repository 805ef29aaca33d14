"""What the kernel counts of the faults of each CPU: uncorrectable errors, and slowing down because of heat.

Source: Linux, Documentation/arch/x86/x86_64/machinecheck.rst, the row MCE of /proc/interrupts, and
Documentation/ABI/testing/sysfs-devices-system-cpu, thermal_throttle. Other platforms count neither.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping

import msgspec

from pydra_pci import Tree

_QUIET_SECONDS = 300.0
"""How long throttling is reported after it was last counted: it comes and goes with the load."""

_CPU = re.compile(r"CPU(\d{1,5})")
_THROTTLES = ("core_throttle_count", "package_throttle_count")


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """CPUs with faults."""

    machine_checks: frozenset[int] = frozenset()
    """Those that have had a machine check exception since the node's start: an error that was not corrected."""
    throttled: frozenset[int] = frozenset()
    """Those that were slowed down because of heat within the last five minutes."""


class FaultMonitor:
    """Remembers when counters have grown."""

    def __init__(self, tree: Tree, clock: Callable[[], float] = time.monotonic) -> None:
        self._tree = tree
        self._clock = clock
        self._counts: dict[int, int] = {}
        self._throttled: dict[int, float] = {}

    def read(self, cpus: Iterable[int]) -> Faults:
        """The faults of these CPUs. Blocks."""
        own, now = frozenset(cpus), self._clock()
        for cpu in own:
            count = _read_throttles(self._tree, cpu)
            if count > self._counts.get(cpu, count):
                self._throttled[cpu] = now
            self._counts[cpu] = count
        counted = parse_machine_checks(self._tree.read(self._tree.proc("interrupts")))
        return Faults(
            machine_checks=frozenset(cpu for cpu, count in counted.items() if count) & own,
            throttled=frozenset(cpu for cpu, since in self._throttled.items() if now - since < _QUIET_SECONDS) & own,
        )


def parse_machine_checks(interrupts: str) -> Mapping[int, int]:
    """How many machine check exceptions each CPU that is online has had, as /proc/interrupts has it."""
    head, *rows = interrupts.splitlines() or [""]
    cpus = [int(found[1]) for found in map(_CPU.fullmatch, head.split()) if found]
    row = next((row.split()[1:] for row in rows if row.lstrip().startswith("MCE:")), [])
    return {cpu: int(count) for cpu, count in zip(cpus, row, strict=False) if count.isdecimal()}


def _read_throttles(tree: Tree, cpu: int) -> int:
    path = f"devices/system/cpu/cpu{cpu}/thermal_throttle"
    counts = (tree.read(tree.sys(f"{path}/{name}")) for name in _THROTTLES)
    return sum(int(count) for count in counts if count.isdecimal())
