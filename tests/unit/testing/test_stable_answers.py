"""Each difference between two answers of `discover` that would be written to the API server is found."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from pydra.devices import CounterConsumption, CounterSet, Device, Health, Inventory, NodeAllocatable, Taint
from pydra.testing.compare_answers import find_changes

BEFORE = Inventory(devices=(Device(name="a", attributes={"port": 1}),))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("attributes", {"port": True}),
        ("capacity", {"memory": 1}),
        ("consumes_counters", (CounterConsumption(counter_set="all", counters={"slots": 1}),)),
        ("allow_multiple_allocations", True),
        ("taints", (Taint(key="a.example.com/update", time_added="2026-01-02T03:04:05Z"),)),
        ("binds_to_node", True),
        ("binding_conditions", ("Attached",)),
        ("binding_failure_conditions", ("Failed",)),
        ("node_allocatable", {"cpu": NodeAllocatable(multiplier=1)}),
    ],
)
def test_what_changes_of_a_device_is_named(field: str, value: Any) -> None:
    (change,) = find_changes(BEFORE, replace(BEFORE, devices=(replace(BEFORE.devices[0], **{field: value}),)))
    assert change.startswith(f"device a: {field}")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("counter_sets", (CounterSet(name="all", counters={"slots": 1}),)),
        ("partition_type", "profile"),
        ("unreadable", ("board 3: no answer",)),
    ],
)
def test_what_changes_beside_the_devices_is_named(field: str, value: Any) -> None:
    (change,) = find_changes(BEFORE, replace(BEFORE, **{field: value}))
    assert change.startswith(f"{field} changed from")


def test_health_may_change_at_any_time() -> None:
    hot = Device(name="a", attributes={"port": 1}, health=Health(message="61 °C"))
    assert find_changes(BEFORE, Inventory(devices=(hot,))) == []
