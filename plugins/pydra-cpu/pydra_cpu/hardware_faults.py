"""What the kernel counts of the faults of each CPU, and rasdaemon records: errors, and slowing down because of heat.

Source: Linux, Documentation/arch/x86/x86_64/machinecheck.rst, the row MCE of /proc/interrupts, and
Documentation/ABI/testing/sysfs-devices-system-cpu, thermal_throttle; Intel, Software Developer's Manual 3B, 16.3.2.2,
IA32_MCi_STATUS; rasdaemon, ras-record, the table mce_record. Other platforms count neither.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from urllib.parse import quote

import msgspec

from pydra_pci import Tree

_log = logging.getLogger(__name__)
_QUIET_SECONDS = 300.0
"""How long throttling is reported after it was last counted: it comes and goes with the load."""

_RASDAEMON = "/var/lib/rasdaemon/ras-mc_event.db"
_STARTED = re.compile(r"^btime (\d+)$", re.MULTILINE)
_UNCORRECTED = 1 << 61
_QUERY = "SELECT DISTINCT cpu FROM mce_record WHERE walltime >= ? AND status & ? AND tsc"
"""Without a time stamp counter are errors of before the node's start, which the kernel finds at the start."""

_CPU = re.compile(r"CPU(\d{1,5})")
_THROTTLES = ("core_throttle_count", "package_throttle_count")


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """CPUs with faults."""

    machine_checks: frozenset[int] = frozenset()
    """Those that have had a machine check since the node's start: an error that was not corrected."""
    throttled: frozenset[int] = frozenset()
    """Those that were slowed down because of heat within the last five minutes."""


class FaultMonitor:
    """Remembers when counters have grown."""

    def __init__(self, tree: Tree, clock: Callable[[], float] = time.monotonic) -> None:
        self._tree = tree
        self._clock = clock
        self._counts: dict[int, int] = {}
        self._throttled: dict[int, float] = {}
        self._database = tree.here(_RASDAEMON)
        self._signature: tuple[int, int] | None = None
        self._recorded: frozenset[int] = frozenset()

    def read(self, cpus: Iterable[int]) -> Faults:
        """The faults of these CPUs. Blocks."""
        own, now = frozenset(cpus), self._clock()
        for cpu in own:
            count = _read_throttles(self._tree, cpu)
            if count > self._counts.get(cpu, count):
                self._throttled[cpu] = now
            self._counts[cpu] = count
        counted = parse_machine_checks(self._tree.read(self._tree.proc("interrupts")))
        checked = {cpu for cpu, count in counted.items() if count} | self._read_recorded()
        return Faults(
            machine_checks=own.intersection(checked),
            throttled=frozenset(cpu for cpu, since in self._throttled.items() if now - since < _QUIET_SECONDS) & own,
        )

    def _read_recorded(self) -> frozenset[int]:
        """Those with uncorrected errors in rasdaemon's database; those of before if it cannot be read."""
        started = _STARTED.search(self._tree.read(self._tree.proc("stat")))
        try:
            found = os.stat(self._database)
        except OSError:
            return self._recorded
        signature = found.st_mtime_ns, found.st_size
        if started is not None and signature != self._signature:
            # Imported here: most nodes have no such database, and some builds of Python no such module.
            import sqlite3  # noqa: PLC0415

            place = f"file:{quote(self._database)}?mode=ro"
            try:
                with closing(sqlite3.connect(place, uri=True, timeout=0.5)) as database:
                    rows = database.execute(_QUERY, (int(started[1]), _UNCORRECTED)).fetchall()
                self._recorded = frozenset(cpu for (cpu,) in rows if isinstance(cpu, int))
                self._signature = signature
            except sqlite3.Error as error:
                _log.debug("%s cannot be read: %s", self._database, error)
        return self._recorded


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
