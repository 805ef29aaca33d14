#!/usr/bin/env python3
"""Records what JAX's ahead-of-time topologies say of coordinates; needs no TPU.

    pip install 'pydra-tpu[jax]'    # 1.1 GB
    python tests/support/record_topologies.py > tests/oracle/topologies.json

Each record has the devices of one slice as `[id, process, x, y, z, core]`.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
from typing import Any

FLAT, DEEP = "1x1 2x2 2x4 4x4 4x8 8x8", "2x2x1 2x2x2 2x2x4 2x4x4 4x4x4"
HOSTS = {1: (1, 1, 1), 2: (2, 1, 1), 4: (2, 2, 1), 8: (2, 4, 1)}
SLICES = (
    ("v2", "2x2", (4,)),
    ("v3", "2x2 4x4", (4,)),
    ("v4", DEEP, (4,)),
    ("v5e", FLAT, (1, 4, 8)),
    ("v5p", "1x1x1", (1,)),
    ("v5p", "2x1x1", (2,)),
    ("v5p", DEEP, (4,)),
    ("v6e", FLAT, (1, 4, 8)),
    ("tpu7x", "1x1x1", (1,)),
    ("tpu7x", DEEP, (4,)),
)
"""JAX's name of a generation, its topologies, and the sizes of its hosts in chips."""


def ask_jax(generation: str, topology: str, chips: int) -> dict[str, Any]:
    """One slice of hosts with so many chips. Raises what JAX raises for one that cannot be."""
    os.environ.update(TPU_SKIP_MDS_QUERY="1", JAX_PLATFORMS="cpu")
    from jax.experimental import topologies  # noqa: PLC0415 - takes seconds, and reads the environment

    found = topologies.get_topology_desc(
        platform="tpu", topology_name=f"{generation}:{topology}", chips_per_host_bounds=HOSTS[chips]
    )
    devices = sorted([one.id, one.process_index, *one.coords, one.core_on_chip] for one in found.devices)
    return {"generation": generation, "topology": topology, "host_chips": chips, "devices": devices}


def record() -> dict[str, Any]:
    """All slices that JAX knows, and its version."""
    slices = []
    for generation, names, sizes in SLICES:
        for topology in names.split():
            for chips in sizes:
                try:
                    slices.append(ask_jax(generation, topology, chips))
                except Exception as error:  # noqa: BLE001 - XLA's, a shape that hosts of this size do not fill
                    print(f"{generation}:{topology} with {chips} chips: {error}", file=sys.stderr)  # noqa: T201
    versions = {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "libtpu")}
    return {"versions": versions, "slices": slices}


if __name__ == "__main__":
    recorded = record()
    lines = ",\n".join(json.dumps(one, separators=(",", ":")) for one in recorded["slices"])
    sys.stdout.write(f'{{"versions": {json.dumps(recorded["versions"])},\n"slices": [\n{lines}\n]}}\n')
