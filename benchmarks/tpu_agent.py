"""The TPU backend behind the real agent, beside the simulated accelerators': a claim of a 2x2, and what rest costs."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.claims import measure_in_turn
from benchmarks.report import Report
from benchmarks.stats import cpu_seconds, memory_of
from benchmarks.tpu_calls import DEVICES, SCENARIO
from benchmarks.world import SETTLED, open_world

DRIVER = "tpu.google.com"


def measure_tpu_agent(report: Report, *, rounds: int, seconds: float) -> None:
    """Prepare and unprepare through the agent, in turn with claims of the simulated backend; then nothing."""
    with open_world() as world, open_world() as other:
        other.start_agent(8)
        other.wait_slices(8)
        world.driver = DRIVER
        world.start_agent_of("tpu", {"PYDRA_TPU_SCENARIO": SCENARIO, "PYDRA_TPU_STATE": f"{world.volatile}/hardware"})
        world.wait_slices(DEVICES)
        with world.kubelet() as tpu, other.kubelet() as sim:
            kinds = {
                "a simulated accelerator": (sim, other.create_claims([0])),
                "a 2x2": (tpu, world.create_claim("square", ["2x2-4"])),
            }
            timings = measure_in_turn(report, kinds, rounds)
        beyond = timings["a 2x2"].p50 - timings["a simulated accelerator"].p50
        report.figure("prepare of a 2x2 beyond that of a simulated accelerator", beyond * 1000, "ms", "2")
        report.figure("child RSS", memory_of(world.child).rss, "MiB")
        time.sleep(SETTLED)
        spent, turns = cpu_seconds(world.child), _count_wakeups(world.child)
        time.sleep(seconds)
        report.figure("CPU of the child at rest", (cpu_seconds(world.child) - spent) / seconds * 1000, "ms per s")
        report.figure("wakeups of the child at rest", (_count_wakeups(world.child) - turns) / seconds, "per s")


def _count_wakeups(pid: int) -> int:
    """How often the threads of a process have waited so far."""
    lines = [line for status in Path(f"/proc/{pid}/task").glob("*/status") for line in status.read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))
