"""The NVIDIA backend behind the real agent, beside the simulated accelerators': claims, memory, CPU at rest."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from benchmarks.claims import measure_in_turn
from benchmarks.nvidia_calls import BESIDE, DEVICES, EIGHT, SCENARIO, SMALL
from benchmarks.report import Report
from benchmarks.stats import cpu_seconds, memory_of
from benchmarks.world import SETTLED, World, open_world

DRIVER = "gpu.nvidia.com"

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
            small = world.create_claim("small", [SMALL])
            kinds = {
                "a simulated accelerator": (sim, other.create_claims([0])),
                "1g": (nvidia, small),
                "1 GPU": (nvidia, world.create_claim("one", ["gpu-1"])),
                "8 GPUs": (nvidia, world.create_claim("eight", EIGHT)),
            }
            measure_in_turn(report, kinds, rounds)
            held = world.create_claim("beside", [BESIDE])
            nvidia.prepare(held)
            measure_in_turn(report, {"1g beside another": (nvidia, small)}, rounds)
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


def _import() -> float:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run([sys.executable, "-c", _IMPORT], capture_output=True, check=True, env=environ)
    return float(done.stdout)
