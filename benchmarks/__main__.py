"""Runs the measurements and prints them, times as multiples of the machine's floor.

`make bench` runs all parts, `make bench ARGS="claims path"` these two. `--quick` takes fewer rounds, `--json FILE`
keeps the figures, and `--strict` ends with 1 when a path is longer than its limit.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.claims import measure_claims
from benchmarks.cpu_calls import measure_cpu_calls
from benchmarks.floor import measure_floor
from benchmarks.net_attach import measure_net_attach
from benchmarks.nvidia_agent import measure_nvidia_agent, measure_nvidia_rest
from benchmarks.nvidia_calls import measure_nvidia_calls
from benchmarks.path import measure_path
from benchmarks.publishing import measure_idle, measure_publishing, measure_start
from benchmarks.report import Report
from benchmarks.tpu_agent import measure_tpu_agent
from benchmarks.tpu_calls import measure_tpu_calls
from benchmarks.world import open_world

PARTS: Mapping[str, Callable[[Report, int, bool], bool | None]] = {
    "start": lambda report, _, quick: measure_start(report, rounds=3 if quick else 7),
    "claims": lambda report, rounds, quick: measure_claims(report, rounds=rounds, soak=1000 if quick else 10_000),
    "path": lambda report, *_: measure_path(report),
    "publishing": lambda report, *_: measure_publishing(report),
    "rest": lambda report, _, quick: measure_idle(report, seconds=20 if quick else 60),
    "nvidia-calls": lambda report, rounds, _: measure_nvidia_calls(report, rounds=rounds),
    "nvidia-agent": lambda report, rounds, _: measure_nvidia_agent(report, rounds=rounds),
    "nvidia-rest": lambda report, *_: measure_nvidia_rest(report, seconds=30),
    "tpu-calls": lambda report, rounds, _: measure_tpu_calls(report, rounds=rounds),
    "tpu-agent": lambda report, rounds, quick: measure_tpu_agent(report, rounds=rounds, seconds=20 if quick else 60),
    "cpu-calls": lambda report, rounds, _: measure_cpu_calls(report, rounds=rounds),
    "net-attach": lambda report, rounds, _: measure_net_attach(report, rounds=rounds),
}
"""Each with the rounds of a call, and whether fewer of the rest are enough."""


def main() -> None:
    """Measure, print, and keep."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, rougher figures")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--strict", action="store_true", help="fail when a path is longer than its limit")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"measure only this: {', '.join(PARTS)}")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts).difference(PARTS):
        parser.error(f"{', '.join(sorted(unknown))} is not a part; the parts are {', '.join(PARTS)}")
    with open_world() as world:
        claim = world.create_claims([0])[0]
        path = f"/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{claim.name}"
        floor = measure_floor(world.url + path, world.root)
    report = Report(floor, f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.release()}")
    within = True
    for name in arguments.parts or PARTS:
        report.section(name)
        within &= PARTS[name](report, 60 if arguments.quick else 200, arguments.quick) is not False
    if arguments.json:
        arguments.json.write_text(json.dumps(report.figures, indent=2) + "\n")
    if arguments.strict and not within:
        sys.exit(1)


if __name__ == "__main__":
    main()
