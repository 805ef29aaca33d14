"""What the page for application developers asks for can be given: all its claims at once, on one simulated machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pydra_sim
from pydra.devices import Inventory, Pool
from pydra.slices.build import build_wanted
from pydra_dev.api import schema
from pydra_dev.scheduler.allocator import InUse, NamedClaim, allocate
from pydra_dev.scheduler.pools import NamedSlice
from tests.house.pages import find_yaml

PAGE = "docs/claims.md"
NODE = {"metadata": {"name": "node-1"}}
MACHINE = {
    "groups": [
        {"name": "accel", "count": 12, "numaNodes": 2},
        {"name": "cut", "count": 1, "slices": 4, "partitions": [1, 2]},
        {"name": "pool", "count": 1, "shared": True},
    ]
}


async def discover(root: Path) -> Inventory:
    (root / "machine.yaml").write_text(json.dumps(MACHINE))
    async with pydra_sim.connect(pydra_sim.Settings(scenario=f"{root}/machine.yaml", state=f"{root}/state")) as sim:
        found: Inventory = await sim.discover()
        return found


def build_slices(inventory: Inventory) -> list[NamedSlice]:
    pool = Pool(name="node-1", devices=inventory.devices, counter_sets=inventory.counter_sets)
    wanted = build_wanted(pool, driver=pydra_sim.DRIVER, node="node-1")
    common = {
        "driver": pydra_sim.DRIVER,
        "pool": {"name": "node-1", "generation": 1, "resourceSliceCount": len(wanted.slices)},
        "nodeName": "node-1",
    }
    return [
        NamedSlice(f"slice-{index}", schema.parse_fields("ResourceSlice", schema.SliceSpec, {**common, **content}))
        for index, content in enumerate(wanted.slices)
    ]


def read_claims() -> dict[str, Any]:
    """The specs of the page's claims, and of those that its templates make, by name."""
    found = {}
    for one in find_yaml(PAGE):
        if one["kind"] in ("ResourceClaim", "ResourceClaimTemplate"):
            found[one["metadata"]["name"]] = spec = one["spec"].get("spec", one["spec"])
            for request in spec["devices"]["requests"]:
                for wish in request.get("firstAvailable") or [request["exactly"]]:
                    wish.setdefault("count", 1)  # as the API server does
    return found


async def test_every_claim_of_the_page_can_be_allocated_beside_the_others(tmp_path: Path) -> None:
    claims = read_claims()
    assert len(claims) >= 7
    allocations = allocate(
        [
            NamedClaim(name, schema.parse_fields("ResourceClaim", schema.ClaimSpec, spec))
            for name, spec in claims.items()
        ],
        node=NODE,
        slices=build_slices(await discover(tmp_path)),
        classes={
            name: schema.parse_fields("DeviceClass", schema.ClassSpec, spec)
            for name, spec in pydra_sim.DEVICE_CLASSES.items()
        },
        in_use=InUse(whole=frozenset(), shared={}),
        build_uid=lambda: str(uuid4()),
    )
    results = dict(zip(claims, (one.devices.results for one in allocations), strict=True))
    assert len(results["two-near-each-other"]) == 2
    assert [one.request for one in results["two-or-else-one"]] == ["accel/two", "accel/two"]
    assert results["a-share"][0].consumed_capacity == {"cores": "8", "memory": "16Gi"}
    assert "2of4" in results["a-partition"][0].device
    assert {device.driver for devices in results.values() for device in devices} == {pydra_sim.DRIVER}
