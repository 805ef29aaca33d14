"""Our coordinates against JAX's: recorded in topologies.json, and live where JAX is installed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from pydra_tpu.generations import GENERATIONS
from pydra_tpu.geometry import HOST_BOUNDS, divide_bounds, parse_topology
from pydra_tpu.inventory import build_inventory
from tpu_values import host_of

RECORDED = json.loads((Path(__file__).parent / "topologies.json").read_text())
SLICES = {
    f"{one['generation']}:{one['topology']}/{one['host_chips']}": one
    for one in RECORDED["slices"]
    # A host does not have more chips than its slice, though JAX shrinks it.
    if divide_bounds(parse_topology(one["topology"]), HOST_BOUNDS[one["host_chips"]])
}


@pytest.mark.parametrize("name", SLICES)
def test_chips_are_where_jax_has_them(name: str) -> None:
    recorded = SLICES[name]
    generation = next(one for one in GENERATIONS if one.jax == recorded["generation"])
    topology = parse_topology(recorded["topology"])
    by_worker: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for _, worker, *place, core in recorded["devices"]:
        if core == 0:
            by_worker[worker].append(tuple(place))
    for worker, places in by_worker.items():
        host = host_of(generation.name, recorded["host_chips"], topology, worker_id=worker)
        devices = {one.name: one.attributes for one in build_inventory(host).devices}
        ours = [tuple(devices[f"chip-{index}"][axis] for axis in "xyz") for index in range(recorded["host_chips"])]
        assert ours == places, f"worker {worker}"


def test_every_generation_and_size_of_host_is_recorded() -> None:
    known = {(one.jax, chips) for one in GENERATIONS for chips in one.host_chips}
    assert {(one["generation"], one["host_chips"]) for one in SLICES.values()} == known


def test_jax_still_says_what_was_recorded() -> None:
    python = os.environ.get("JAX_PYTHON", sys.executable)
    if python == sys.executable and not all(map(importlib.util.find_spec, ("jax", "libtpu"))):
        pytest.skip("jax and libtpu are not installed here, and JAX_PYTHON names no Python that has them")
    script = Path(__file__).parents[1] / "support" / "record_topologies.py"
    done = subprocess.run([python, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["slices"] == RECORDED["slices"]
