"""Each DeviceClass selects what its name says, on hosts of every generation and size."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pydra.devices import Pool
from pydra.slices.build import build_wanted
from pydra_dev.api import schema
from pydra_dev.cel.environment import build_variables, compile_selector
from pydra_tpu import DEVICE_CLASSES, DRIVER, SHAPES
from pydra_tpu.generations import GENERATIONS
from pydra_tpu.hardware_types import Host
from pydra_tpu.inventory import build_inventory
from tpu_values import host_of

SELECTORS = {name: compile_selector(spec["selectors"][0]["cel"]["expression"]) for name, spec in DEVICE_CLASSES.items()}
HOSTS = [host_of(generation.name, count) for generation in GENERATIONS for count in generation.host_chips]


def select(host: Host) -> Mapping[str, list[str]]:
    """By class, the devices of the host that it selects; a selector that fails for one would fail the claim."""
    inventory = build_inventory(host)
    pool = Pool(name="node", devices=inventory.devices, counter_sets=inventory.counter_sets)
    wanted = build_wanted(pool, driver=DRIVER, node="node")
    place = {"driver": DRIVER, "pool": {"name": "node", "generation": 1, "resourceSliceCount": len(wanted.slices)}}
    slices = [
        schema.parse_fields("ResourceSlice", schema.SliceSpec, {**place, "nodeName": wanted.node, **one})
        for one in wanted.slices
    ]
    devices = {one.name: build_variables(DRIVER, one) for part in slices for one in part.devices}
    return {
        name: [device for device, variables in devices.items() if selector.matches(variables)]
        for name, selector in SELECTORS.items()
    }


@pytest.mark.parametrize("host", HOSTS, ids=lambda host: f"{host.chips[0].generation.name}-{len(host.chips)}")
def test_each_device_is_a_chip_or_in_the_class_of_its_shape_and_one_is_the_host(host: Host) -> None:
    found = select(host)
    assert found[DRIVER] == [f"chip-{index}" for index in range(len(host.chips))]
    devices = [one.name for one in build_inventory(host).devices]
    assert found[f"host.{DRIVER}"] == devices[:1]
    by_shape = [name for shape in SHAPES for name in found[f"{shape}.{DRIVER}"]]
    assert sorted(by_shape + found[DRIVER]) == sorted(devices)
    assert all(name.startswith(f"{shape}-") for shape in SHAPES for name in found[f"{shape}.{DRIVER}"])


def test_no_class_is_for_a_shape_that_no_host_has() -> None:
    found = [select(host) for host in HOSTS]
    assert [name for name in SELECTORS if not any(one[name] for one in found)] == []
