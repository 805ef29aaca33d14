"""The TPU backend behind the real agent, beside the simulated accelerators': a claim of a 2x2, and what rest costs."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks import objects
from benchmarks.report import Report
from benchmarks.stats import Timing, cpu_seconds, memory_of
from benchmarks.tpu_calls import DEVICES, SCENARIO
from benchmarks.world import open_world

DRIVER = "tpu.google.com"
SETTLED = 13
"""Seconds after which a start is over for the agent."""


def measure_tpu_agent(report: Report, *, rounds: int, seconds: float) -> None:
    """Prepare and unprepare through the agent, in turn with claims of the simulated backend; then nothing."""
    with open_world() as world, open_world() as other:
        other.start_agent(8)
        other.wait_slices(8)
        world.driver = DRIVER
        world.start_agent_of("tpu", {"PYDRA_TPU_SCENARIO": SCENARIO, "PYDRA_TPU_STATE": f"{world.volatile}/hardware"})
        world.wait_slices(DEVICES)
        claim = world.create_claim(
            objects.plain_claim("square", DRIVER, 1), objects.plain_allocation("square", DRIVER, ["2x2-4"])
        )
        times: dict[str, list[float]] = {"a simulated accelerator": [], "a 2x2": []}
        with world.kubelet() as tpu, other.kubelet() as sim:
            kinds = {"a simulated accelerator": (sim, other.create_claims([0])), "a 2x2": (tpu, [claim])}
            for _ in range(rounds):
                for name, (calls, claims) in kinds.items():
                    begin = time.perf_counter()
                    calls.prepare(claims)
                    times[name].append(time.perf_counter() - begin)
                    calls.unprepare(claims)
        for name, measured in times.items():
            report.multiple(Timing(name=f"prepare, {name}", seconds=measured))
        medians = {name: Timing(name=name, seconds=measured).p50 for name, measured in times.items()}
        beyond = medians["a 2x2"] - medians["a simulated accelerator"]
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
