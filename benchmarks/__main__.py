"""Runs the measurements and prints them, times as multiples of the machine's floor.

`make bench` runs all; `make bench ARGS="--quick"` takes fewer rounds. `--json FILE` keeps the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from pathlib import Path

from benchmarks.claims import measure_claims
from benchmarks.floor import measure_floor
from benchmarks.publishing import measure_idle, measure_publishing, measure_start
from benchmarks.report import Report
from benchmarks.world import open_world


def main() -> None:
    """Measure, print, and keep."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, rougher figures")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    rounds = 60 if arguments.quick else 200

    with open_world() as world:
        claim = world.create_claims([0])[0]
        path = f"/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{claim.name}"
        floor = measure_floor(world.url + path, world.root)
    report = Report(floor, f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.release()}")
    report.section("start")
    measure_start(report, rounds=3 if arguments.quick else 7)
    report.section("claims")
    measure_claims(report, rounds=rounds, soak=1000 if arguments.quick else 10_000)
    report.section("publishing")
    measure_publishing(report)
    report.section("at rest")
    measure_idle(report, seconds=20 if arguments.quick else 60)
    if arguments.json:
        arguments.json.write_text(json.dumps(report.figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
