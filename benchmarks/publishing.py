"""How long an agent takes to come up and to publish, how many writes that is, and what it costs at rest."""

from __future__ import annotations

import time
from statistics import median

from benchmarks.report import Report
from benchmarks.stats import cpu_seconds, memory_of
from benchmarks.world import SETTLED, open_world


def measure_start(report: Report, *, rounds: int) -> None:
    """Seconds from the start of the process to its registration socket, and to its first slice."""
    registered, published = [], []
    with open_world() as world:
        for number in range(rounds + 1):
            world.start_agent(8)
            times = world.wait_registered(), world.wait_slices(8)
            if number:  # the first may have compiled the sources
                registered.append(times[0])
                published.append(times[1])
            world.stop_agent()
            for item in world.slices():
                world.request("DELETE", f"/apis/resource.k8s.io/v1/resourceslices/{item['metadata']['name']}")
    report.figure("process start to registered", median(registered), "s")
    report.figure("process start to first slice", median(published), "s", "0.7 s")


def measure_publishing(report: Report) -> None:
    """Seconds and writes for pools of 128, 1000 and 5000 devices."""
    for devices in (128, 1000, 5000):
        with open_world() as world:
            world.start_agent(devices)
            seconds = world.wait_slices(devices)
            report.figure(f"process start to {devices} devices published", seconds, "s")
            report.figure(f"writes for {devices} devices", len(world.slices()), "")
            assert world.agent is not None
            report.figure(f"agent RSS with {devices} devices", memory_of(world.agent.pid).rss, "MiB")


def measure_idle(report: Report, *, seconds: float) -> None:
    """CPU of agent and child when nothing happens, and the requests that the API server saw meanwhile."""
    with open_world() as world:
        world.start_agent(8)
        world.wait_slices(8)
        time.sleep(SETTLED)
        assert world.agent is not None
        requests, spent = world.count_requests(), cpu_seconds(world.agent.pid, world.child)
        time.sleep(seconds)
        permille = (cpu_seconds(world.agent.pid, world.child) - spent) / seconds * 1000
        report.figure(f"CPU at rest over {seconds:g} s", permille, "permille of a core", "1")
        report.figure("API requests at rest", world.count_requests() - requests, "", "0")
