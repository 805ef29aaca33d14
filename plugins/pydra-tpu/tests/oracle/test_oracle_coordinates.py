"""Our coordinates against JAX's: recorded in topologies.json, and asked now where JAX can be installed."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pydra_tpu.generations import GENERATIONS
from pydra_tpu.geometry import divide_bounds, locate, parse_topology
from pydra_tpu.inventory import build_inventory
from tpu_values import host_of

RECORDED = json.loads((Path(__file__).parent / "topologies.json").read_text())
BY_JAX_NAME = {one.jax: one for one in GENERATIONS}
SLICES = {
    f"{one['generation']}:{one['topology']}/{one['host_chips']}": one
    for one in RECORDED["slices"]
    # A host does not have more chips than its slice, though JAX shrinks it.
    if divide_bounds(parse_topology(one["topology"]), BY_JAX_NAME[one["generation"]].host_bounds(one["host_chips"]))
}


def find_misplaced(recorded: Mapping[str, Any]) -> list[str]:
    """The workers of a slice whose chips JAX has at other places than our hosts say."""
    generation = BY_JAX_NAME[recorded["generation"]]
    topology, count = parse_topology(recorded["topology"]), recorded["host_chips"]
    by_worker: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for _, worker, *place, core in recorded["devices"]:
        if core == 0:
            by_worker[worker].append(tuple(place))
    wrong = []
    for worker, places in by_worker.items():
        host = host_of(generation.name, count, topology, worker_id=worker)
        whole = build_inventory(host).devices[0].attributes
        origin = [int(str(whole[axis])) for axis in "xyz"]
        chips = [locate(index, host.bounds) for index in range(count)]
        ours = [tuple(start + offset for start, offset in zip(origin, chip, strict=True)) for chip in chips]
        if ours != places:
            wrong.append(f"{recorded['generation']}:{recorded['topology']}, worker {worker}: {ours}, not {places}")
    return wrong


def ask_jax() -> list[Mapping[str, Any]]:
    """What JAX says now; skips the test where JAX or libtpu, which is for x86-64 only, is not installed."""
    if missing := [name for name in ("jax", "libtpu") if importlib.util.find_spec(name) is None]:
        pytest.skip(f"{' and '.join(missing)} is not installed: pip install 'pydra-tpu[jax]'")
    script = Path(__file__).parents[1] / "support" / "record_topologies.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    slices: list[Mapping[str, Any]] = json.loads(done.stdout)["slices"]
    return slices


def test_chips_are_where_jax_has_them() -> None:
    assert {name: found for name, one in SLICES.items() if (found := find_misplaced(one))} == {}


def test_every_generation_and_size_of_host_is_recorded() -> None:
    known = {(one.jax, chips) for one in GENERATIONS for chips in one.host_chips}
    assert {(one["generation"], one["host_chips"]) for one in SLICES.values()} == known


def test_jax_still_says_what_was_recorded() -> None:
    assert ask_jax() == RECORDED["slices"]
