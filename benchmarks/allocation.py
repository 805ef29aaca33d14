"""How long the embedded scheduler takes for one claim on a node with many devices."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.report import Report
from benchmarks.stats import Timing
from pydra_dev.api import schema
from pydra_dev.cel.environment import compile_selector
from pydra_dev.scheduler.allocator import InUse, NamedClaim, allocate
from pydra_dev.scheduler.pools import NamedSlice

DRIVER, NODE = "gpu.example.com", "node"
PER_SLICE = 64
OWN = f'device.attributes["{DRIVER}"]'
SELECTOR = (
    f'{OWN}.model.startsWith("H") && {OWN}.version.isGreaterThan(semver("1.9.0")) && {OWN}.index >= %d && '
    f'device.capacity["{DRIVER}"].memory.compareTo(quantity("40Gi")) >= 0'
)


def measure_allocation(report: Report, *, rounds: int) -> None:
    """A claim for eight devices, for which a selector is evaluated on all of 1000, with a constraint and without."""
    slices = _build_slices(1000)
    for name, constraints in (
        ("8 of 1000 devices by a selector", []),
        ("the same, of one board", [{"matchAttribute": f"{DRIVER}/board"}]),
    ):
        claim = _build_claim(SELECTOR % 992, count=8, constraints=constraints)
        seconds = []
        for _ in range(rounds):
            compile_selector.cache_clear()
            began = time.perf_counter()
            (allocation,) = allocate(
                [NamedClaim("default/claim", claim)],
                node={"metadata": {"name": NODE}},
                slices=slices,
                classes={"any": schema.ClassSpec()},
                in_use=InUse(whole=frozenset(), shared={}),
                build_uid=str,
            )
            seconds.append(time.perf_counter() - began)
            assert [one.device for one in allocation.devices.results] == [f"d{index}" for index in range(992, 1000)]
        report.parts(name, [Timing(name="allocation", seconds=seconds)], "the selector is compiled each time", "200 ms")


def _build_slices(devices: int) -> list[NamedSlice]:
    firsts = range(0, devices, PER_SLICE)
    pool = {"name": NODE, "generation": 1, "resourceSliceCount": len(firsts)}
    return [
        NamedSlice(
            f"slice-{first:05}",
            schema.parse_fields(
                "ResourceSlice",
                schema.SliceSpec,
                {
                    "driver": DRIVER,
                    "pool": pool,
                    "nodeName": NODE,
                    "devices": [_build_device(index) for index in range(first, min(devices, first + PER_SLICE))],
                },
            ),
        )
        for first in firsts
    ]


def _build_device(index: int) -> dict[str, Any]:
    return {
        "name": f"d{index}",
        "attributes": {
            "model": {"string": "H100"},
            "version": {"version": "1.10.0"},
            "index": {"int": index},
            "board": {"int": index // 8},
            "resource.kubernetes.io/pcieRoot": {"string": f"pci0000:{index % 8:02}"},
            "resource.kubernetes.io/numaNode": {"int": index % 2},
        },
        "capacity": {"memory": {"value": "80Gi"}},
    }


def _build_claim(expression: str, *, count: int, constraints: list[dict[str, Any]]) -> schema.ClaimSpec:
    exactly = {
        "deviceClassName": "any",
        "allocationMode": "ExactCount",
        "count": count,
        "selectors": [{"cel": {"expression": expression}}],
    }
    devices = {"requests": [{"name": "r", "exactly": exactly}], "constraints": constraints}
    return schema.parse_fields("ResourceClaim", schema.ClaimSpec, {"devices": devices})
