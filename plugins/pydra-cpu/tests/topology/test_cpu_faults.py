"""What the kernel's counters say of CPUs."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest

from cpu_machines import build
from pydra import HealthStatus
from pydra_cpu.hardware_faults import FaultMonitor, Faults, parse_machine_checks
from pydra_cpu.inventory import build_inventory
from pydra_cpu.samples import CpuTime, find_busy_share, parse_cpu_times
from pydra_cpu.settings import Settings, Signal
from pydra_cpu.simulation.machine import Machine
from pydra_pci import Reaction, Roots, Tree

CHECKED = Faults(machine_checks=frozenset({1}))
BOTH = Faults(machine_checks=frozenset({1}), throttled=frozenset({1}))


def test_a_cpu_counts_as_throttled_for_five_minutes_after_its_counter_has_grown(tmp_path: Path) -> None:
    now = 0.0
    counter = tmp_path / "devices/system/cpu/cpu1/thermal_throttle/package_throttle_count"
    counter.parent.mkdir(parents=True)
    counter.write_text("40\n")
    monitor = FaultMonitor(Tree(Roots(sys=str(tmp_path), proc=str(tmp_path))), clock=lambda: now)
    assert monitor.read([0, 1]).throttled == frozenset(), "it may have been throttled long ago"
    counter.write_text("41\n")
    assert monitor.read([0, 1]).throttled == {1}
    now = 299.0
    assert monitor.read([0, 1]).throttled == {1}
    now = 301.0
    assert monitor.read([0, 1]).throttled == frozenset()


def test_uncorrected_errors_since_the_start_are_found_in_the_database_of_rasdaemon(tmp_path: Path) -> None:
    tree = Tree(Roots(host=str(tmp_path), sys=str(tmp_path), proc=str(tmp_path)))
    monitor = FaultMonitor(tree)
    (tmp_path / "stat").write_text("cpu0 1 1 1 1\nbtime 1000\n")
    assert monitor.read(range(8)) == Faults()
    path = tmp_path / "var/lib/rasdaemon/ras-mc_event.db"
    path.parent.mkdir(parents=True)
    uncorrected, corrected = 0xBE00000000800400 - (1 << 64), 0x9C00000000800400 - (1 << 64)
    rows = [
        (2, uncorrected, 1001, 77),
        (2, uncorrected, 1002, 88),
        (3, uncorrected, 999, 77),
        (4, corrected, 1001, 77),
        (5, uncorrected, 1001, 0),
        (9, uncorrected, 1001, 77),
    ]
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE mce_record (cpu INTEGER, status INTEGER, walltime INTEGER, tsc INTEGER)")
        database.executemany("INSERT INTO mce_record VALUES (?, ?, ?, ?)", rows)
        database.commit()
    assert monitor.read(range(8)).machine_checks == {2}
    path.write_bytes(b"damaged")
    assert monitor.read(range(8)).machine_checks == {2}, "what was read before stays"


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("", {}),
        ("  CPU0 CPU1\n  8: 5 5 timer\n", {}),
        ("  CPU0 CPU2\n MCE: 0 3 Machine check exceptions\n MCP: 9 9 Machine check polls\n", {0: 0, 2: 3}),
        ("  CPU0 CPU2\n MCE: 4 Machine check exceptions\n", {0: 4}),
    ],
    ids=["unreadable", "not-on-this-platform", "with-an-off-line-cpu", "cut"],
)
def test_machine_checks_are_counted_by_cpu(text: str, counts: Mapping[int, int]) -> None:
    assert parse_machine_checks(text) == counts


@pytest.mark.parametrize(
    ("faults", "signals", "problem", "status", "reason", "taints"),
    [
        (CHECKED, {}, "", HealthStatus.UNHEALTHY, "dra.cpu/machine-check", []),
        (BOTH, {}, "", HealthStatus.UNHEALTHY, "dra.cpu/machine-check", [("dra.cpu/throttling", "None")]),
        (CHECKED, {}, "no runtime", HealthStatus.UNHEALTHY, "unhealthy", [("dra.cpu/machine-check", "NoSchedule")]),
        (CHECKED, {Signal.MACHINE_CHECK: Reaction.IGNORE}, "", HealthStatus.HEALTHY, "unhealthy", []),
        (
            BOTH,
            {Signal.MACHINE_CHECK: Reaction.NONE, Signal.THROTTLING: Reaction.NO_EXECUTE},
            "",
            HealthStatus.UNHEALTHY,
            "dra.cpu/throttling",
            [("dra.cpu/machine-check", "None")],
        ),
    ],
    ids=["one", "both", "beside-a-worse-one", "ignored", "other-reactions"],
)
def test_the_worst_fault_is_the_health_of_a_device_and_others_are_taints(
    faults: Faults,
    signals: Mapping[Signal, Reaction],
    problem: str,
    status: HealthStatus,
    reason: str,
    taints: list[tuple[str, str]],
    tmp_path: Path,
) -> None:
    topology = build(Machine(nodes=2), tmp_path)
    sick, well = build_inventory(topology, Settings(signals=signals), problem=problem, faults=faults).devices
    assert (sick.health.status, sick.health.taint) == (status, reason)
    assert [(one.key, one.effect.value) for one in sick.taints] == taints
    assert well.taints == (), "it has other CPUs"


def test_times_of_cpus_leave_out_what_cannot_be_read() -> None:
    text = "cpu  9 9 9 9 9\ncpu0 10 1 2 80 5 1 1 0 10 0\ncpu1 1 2\ncpuX 1 1 1 1 1\nintr 5 5\ncpu12 0 0 0 7 0\n"
    assert parse_cpu_times(text) == {0: CpuTime(15, 100), 12: CpuTime(0, 7)}


@pytest.mark.parametrize(
    ("before", "after", "share"),
    [
        ({}, {0: CpuTime(5, 10)}, None),
        ({0: CpuTime(5, 10)}, {0: CpuTime(5, 10)}, None),
        ({0: CpuTime(5, 10), 1: CpuTime(0, 10)}, {0: CpuTime(15, 20), 1: CpuTime(0, 20)}, 0.5),
        ({0: CpuTime(5, 10), 1: CpuTime(5, 10)}, {0: CpuTime(15, 20)}, 1.0),
        ({0: CpuTime(5, 10)}, {0: CpuTime(4, 20)}, 0.0),
    ],
    ids=["first-reading", "no-time-has-passed", "two", "one-went-off-line", "a-counter-went-back"],
)
def test_the_busy_share_is_of_the_time_between_two_readings(
    before: Mapping[int, CpuTime], after: Mapping[int, CpuTime], share: float | None
) -> None:
    assert find_busy_share(before, after, [0, 1]) == share
