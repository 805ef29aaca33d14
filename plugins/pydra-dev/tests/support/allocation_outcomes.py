"""What the embedded allocator makes of a world, and what was recorded of the real one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from allocation_families import FAMILIES
from allocation_worlds import build_world
from pydra_dev.api import schema
from pydra_dev.apiserver import claim_rules
from pydra_dev.scheduler.allocator import NamedClaim, allocate, read_in_use
from pydra_dev.scheduler.pools import NamedSlice

JsonObject = dict[str, Any]
DATA = Path(__file__).parents[1] / "data" / "allocations.json"
SHARE = "00000000-0000-4000-8000-000000000000"
"""In place of share ids, which are random."""


def load_outcomes() -> Mapping[str, JsonObject]:
    """What the real scheduler did, by the name of the world."""
    outcomes: Mapping[str, JsonObject] = json.loads(DATA.read_text())["outcomes"]
    return outcomes


def load_worlds(names: Mapping[str, object]) -> Mapping[str, JsonObject]:
    """The worlds of these names: hand-written ones, and `world-N` for generated ones."""
    return {
        name: FAMILIES[name] if name in FAMILIES else build_world(int(name.removeprefix("world-"))) for name in names
    }


def fingerprint(world: JsonObject) -> str:
    """What changes when a world does."""
    return hashlib.sha256(json.dumps(world, sort_keys=True).encode()).hexdigest()[:12]


def allocate_world(world: JsonObject) -> list[JsonObject]:
    """The allocations of a world's claims by the embedded allocator; raises AllocationError."""
    allocations = allocate(
        [NamedClaim(f"default/{one['metadata']['name']}", parse_claim(one)) for one in world["claims"]],
        node=world["node"],
        slices=[
            NamedSlice(one["metadata"]["name"], schema.parse_fields("ResourceSlice", schema.SliceSpec, one["spec"]))
            for one in world["slices"]
        ],
        classes={
            name: schema.parse_fields("DeviceClass", schema.ClassSpec, spec) for name, spec in world["classes"].items()
        },
        in_use=read_in_use(
            schema.parse_fields("ResourceClaim", schema.ClaimStatus, status) for status in world["held"]
        ),
        build_uid=lambda: SHARE,
    )
    return [normalize(schema.build_fields(allocation)) for allocation in allocations]


def parse_claim(claim: JsonObject) -> schema.ClaimSpec:
    """A claim's spec with the API server's defaults."""
    return claim_rules.default_claim(schema.parse_fields("ResourceClaim", schema.ClaimSpec, claim["spec"]))


def normalize(allocation: JsonObject) -> JsonObject:
    """An allocation without what differs from one run to the next, or in how nothing is written."""
    parsed = schema.parse_fields("ResourceClaim", schema.Allocation, {**allocation, "allocationTimestamp": None})
    built = schema.build_fields(parsed)
    for result in built["devices"].get("results") or ():
        if "shareID" in result:
            result["shareID"] = SHARE
    return built
