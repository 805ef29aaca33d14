"""What the claims in the README are given by the scheduler, on a node whose claims choose modes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from amd_values import gpu_of, reading_of
from pydra.devices import Pool
from pydra.slices.build import build_wanted
from pydra_amd import DEVICE_CLASSES, DRIVER
from pydra_amd.inventory.build import build_inventory
from pydra_amd.settings import Partitioning
from pydra_dev.api import schema
from pydra_dev.scheduler.allocator import AllocationError, InUse, NamedClaim, allocate
from pydra_dev.scheduler.pools import NamedSlice

README = Path(__file__).parents[2] / "README.md"


def read_claim(name: str) -> dict[str, Any]:
    """The spec of a claim of the README, or of what its template makes."""
    blocks = re.findall(r"^```yaml\n(.*?)^```", README.read_text(), flags=re.DOTALL | re.MULTILINE)
    (found,) = (one for block in blocks for one in yaml.safe_load_all(block) if one.get("metadata") == {"name": name})
    spec: dict[str, Any] = found["spec"].get("spec", found["spec"])
    return spec


def give(spec: dict[str, Any]) -> list[str]:
    """The devices that the scheduler gives, on a node with two MI300X."""
    inventory = build_inventory(reading_of(gpu_of(), gpu_of(index=1)), Partitioning.COMPUTE)
    wanted = build_wanted(
        Pool(name="node", devices=inventory.devices, counter_sets=inventory.counter_sets), driver=DRIVER, node="node"
    )
    place = {"driver": DRIVER, "pool": {"name": "node", "generation": 1, "resourceSliceCount": len(wanted.slices)}}
    spec["devices"]["requests"][0]["exactly"].setdefault("count", 1)  # as the API server does
    (allocation,) = allocate(
        [NamedClaim("claim", schema.parse_fields("ResourceClaim", schema.ClaimSpec, spec))],
        node={"metadata": {"name": "node"}},
        slices=[
            NamedSlice(
                f"slice-{number}",
                schema.parse_fields("ResourceSlice", schema.SliceSpec, {**place, "nodeName": wanted.node, **one}),
            )
            for number, one in enumerate(wanted.slices)
        ],
        classes={
            name: schema.parse_fields("DeviceClass", schema.ClassSpec, dict(one))
            for name, one in DEVICE_CLASSES.items()
        },
        in_use=InUse(whole=frozenset(), shared={}),
        build_uid=lambda: "uid",
    )
    return [one.device for one in allocation.devices.results]


def test_the_claims_of_the_readme_get_as_many_partitions_of_one_gpu_as_they_say() -> None:
    assert give(read_claim("one-eighth")) == ["gpu-0-128-cpx-nps1-0"]
    assert give(read_claim("two-eighths")) == ["gpu-0-128-cpx-nps1-0", "gpu-0-128-cpx-nps1-1"]


def test_a_claim_for_one_partition_of_amds_autopartition_is_met_and_one_for_two_is_not() -> None:
    spec = read_claim("one-eighth")
    exactly = spec["devices"]["requests"][0]["exactly"]
    exactly["capacity"] = {"requests": {"partitions": "1"}}
    assert give(spec) == ["gpu-0-128-cpx-nps1-0"]
    exactly["capacity"] = {"requests": {"partitions": "2"}}
    with pytest.raises(AllocationError):
        give(spec)
