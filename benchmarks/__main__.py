"""Runs the measurements and prints them, times as multiples of the machine's floor.

`make bench` runs all; `make bench ARGS="--quick"` takes fewer rounds, `--part claims` only what is called so (it may be
given again). `--json FILE` keeps the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable
from pathlib import Path

from benchmarks.claims import measure_claims
from benchmarks.floor import measure_floor
from benchmarks.nvidia_agent import measure_nvidia_agent, measure_nvidia_rest
from benchmarks.nvidia_calls import measure_nvidia_calls
from benchmarks.publishing import measure_idle, measure_publishing, measure_start
from benchmarks.report import Report
from benchmarks.world import open_world

PARTS = ("start", "claims", "publishing", "at rest", "nvidia calls", "nvidia agent", "nvidia at rest")


def main() -> None:
    """Measure, print, and keep."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, rougher figures")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--part", action="append", choices=PARTS, help="measure only this part")
    arguments = parser.parse_args()
    quick = arguments.quick
    rounds = 60 if quick else 200

    with open_world() as world:
        claim = world.create_claims([0])[0]
        path = f"/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{claim.name}"
        floor = measure_floor(world.url + path, world.root)
    report = Report(floor, f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.release()}")
    parts: dict[str, Callable[[], None]] = {
        "start": lambda: measure_start(report, rounds=3 if quick else 7),
        "claims": lambda: measure_claims(report, rounds=rounds, soak=1000 if quick else 10_000),
        "publishing": lambda: measure_publishing(report),
        "at rest": lambda: measure_idle(report, seconds=20 if quick else 60),
        "nvidia calls": lambda: measure_nvidia_calls(report, rounds=rounds),
        "nvidia agent": lambda: measure_nvidia_agent(report, rounds=rounds),
        "nvidia at rest": lambda: measure_nvidia_rest(report, seconds=30),
    }
    for name in arguments.part or parts:
        report.section(name)
        parts[name]()
    if arguments.json:
        arguments.json.write_text(json.dumps(report.figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
