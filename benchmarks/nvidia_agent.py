"""The NVIDIA backend behind the real agent, beside the simulated accelerators': claims, memory, CPU at rest."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from benchmarks import objects
from benchmarks.nvidia_calls import BESIDE, DEVICES, EIGHT, SCENARIO, SMALL
from benchmarks.report import Report
from benchmarks.stats import Timing, cpu_seconds, memory_of
from benchmarks.world import Calls, World, open_world
from pydra.kubelet.pb.dra_v1 import Claim

DRIVER = "gpu.nvidia.com"
SETTLED = 13
"""Seconds after which a start is over for the agent, and what was found of the driver's files is kept."""

_IMPORT = """
import time
import pydra.backends.child.main
begin = time.perf_counter()
import pydra_nvidia.composition, pynvml
print((time.perf_counter() - begin) * 1000)
"""


def measure_nvidia_agent(report: Report, *, rounds: int) -> None:
    """Prepare and unprepare through the agent, in turn with claims of the simulated backend; the child's memory."""
    with open_world() as world, open_world() as other:
        other.start_agent(8)
        other.wait_slices(8)
        start_nvidia(world)
        report.figure("child RSS after start", memory_of(world.child).rss, "MiB", "40")
        time.sleep(SETTLED)
        with world.kubelet() as nvidia, other.kubelet() as sim:
            small = create_claim(world, "small", [SMALL])
            kinds = {
                "a simulated accelerator": (sim, other.create_claims([0])),
                "1g": (nvidia, small),
                "1 GPU": (nvidia, create_claim(world, "one", ["gpu-1"])),
                "8 GPUs": (nvidia, create_claim(world, "eight", EIGHT)),
            }
            _measure(report, kinds, rounds)
            held = create_claim(world, "beside", [BESIDE])
            nvidia.prepare(held)
            _measure(report, {"1g beside another": (nvidia, small)}, rounds)
            nvidia.unprepare(held)
        memory = memory_of(world.child)
        report.figure(f"child RSS after {5 * rounds} claims", memory.rss, "MiB", "40")
        report.figure("anonymous memory of it", memory.anonymous, "MiB")


def measure_nvidia_rest(report: Report, *, seconds: float) -> None:
    """Import time, and CPU of the child when nothing happens, with and without the thread that waits for events."""
    report.figure("import of the backend and pynvml, best of 5", min(_import() for _ in range(5)), "ms")
    for health in ("true", "false"):
        with open_world() as world:
            start_nvidia(world, PYDRA_NVIDIA_HEALTH=health)
            time.sleep(SETTLED)
            spent = cpu_seconds(world.child)
            time.sleep(seconds)
            spent = (cpu_seconds(world.child) - spent) / seconds * 1000
            report.figure(f"CPU of the child at rest, health {health}", spent, "ms per s", "a few")


def start_nvidia(world: World, **settings: str) -> None:
    """Start the agent over a simulated HGX H100 and wait for its slices."""
    world.driver = DRIVER
    variables = {
        "PYDRA_NVIDIA_SCENARIO": SCENARIO,
        "PYDRA_NVIDIA_STATE": f"{world.volatile}/hardware",
        "PYDRA_NVIDIA_DYNAMIC_MIG": "true",
    }
    world.start_agent_of("nvidia", variables | settings)
    world.wait_slices(DEVICES)


def create_claim(world: World, name: str, devices: Sequence[str]) -> list[Claim]:
    """One claim, as a list for the kubelet's calls."""
    claim = objects.plain_claim(name, DRIVER, len(devices))
    return [world.create_claim(claim, objects.plain_allocation(name, DRIVER, devices))]


def _measure(report: Report, kinds: Mapping[str, tuple[Calls, list[Claim]]], rounds: int) -> None:
    prepare: dict[str, list[float]] = {name: [] for name in kinds}
    unprepare: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(rounds):
        for name, (calls, claims) in kinds.items():
            begin = time.perf_counter()
            calls.prepare(claims)
            middle = time.perf_counter()
            calls.unprepare(claims)
            prepare[name].append(middle - begin)
            unprepare[name].append(time.perf_counter() - middle)
    for name in kinds:
        report.multiple(Timing(name=f"prepare, {name}", seconds=prepare[name]))
        report.multiple(Timing(name=f"unprepare, {name}", seconds=unprepare[name]))


def _import() -> float:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run([sys.executable, "-c", _IMPORT], capture_output=True, check=True, env=environ)
    return float(done.stdout)
