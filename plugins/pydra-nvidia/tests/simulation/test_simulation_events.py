"""Events of the simulated NVML: who waits learns of them, whatever process they come from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pydra_nvidia.nvml.errors import Code
from pydra_nvidia.simulation.call_faults import NO_INSTANCE

Simulate = Callable[..., Any]
TWO = {"gpus": [{"model": "h100-80gb", "count": 2, "minors": [1, 0]}]}
XID, DOUBLE_BIT = 0x8, 0x2


def register(nvml: Any, *handles: Any, types: int = XID | DOUBLE_BIT) -> Any:
    event_set = nvml.nvmlEventSetCreate()
    for handle in handles:
        nvml.nvmlDeviceRegisterEvents(handle, types, event_set)
    return event_set


def test_events_come_in_their_order_each_once_with_their_gpu_and_instance(simulate: Simulate) -> None:
    rig = simulate(TWO)
    nvml, first = rig.opened()
    second = nvml.nvmlDeviceGetHandleByIndex(1)
    rig.inject.xid(1, 31)  # before anybody listened
    event_set = register(nvml, first, second)
    rig.inject.xid(0, 48)
    rig.inject.event(1, DOUBLE_BIT)
    rig.inject.xid(1, 94, gi=3, ci=0)
    found = [nvml.nvmlEventSetWait_v2(event_set, 0) for _ in range(3)]
    assert [(nvml.nvmlDeviceGetMinorNumber(one.device), one.eventType, one.eventData) for one in found] == [
        (0, XID, 48),
        (1, DOUBLE_BIT, 0),
        (1, XID, 94),
    ]
    assert (found[0].gpuInstanceId, found[0].computeInstanceId) == (NO_INSTANCE, NO_INSTANCE)
    assert (found[2].gpuInstanceId, found[2].computeInstanceId) == (3, 0)
    assert rig.code(nvml.nvmlEventSetWait_v2, event_set, 0) == Code.TIMEOUT


@pytest.mark.parametrize(
    ("events", "types", "code"),
    [(0, XID, Code.NOT_SUPPORTED), (XID, XID | DOUBLE_BIT, Code.INVALID_ARGUMENT), (XID, 0, Code.INVALID_ARGUMENT)],
)
def test_types_that_the_gpu_does_not_have_are_refused(simulate: Simulate, events: int, types: int, code: Code) -> None:
    model = {"name": "X", "architecture": 3, "compute": [3, 5], "memoryMiB": 1, "pci": {"device": "0x1234"}}
    rig = simulate({"models": {"x": model | {"events": events}}, "gpus": [{"model": "x"}]})
    nvml, gpu = rig.opened()
    assert nvml.nvmlDeviceGetSupportedEventTypes(gpu) == events
    assert rig.code(nvml.nvmlDeviceRegisterEvents, gpu, types, nvml.nvmlEventSetCreate()) == code


def test_a_change_of_the_mig_mode_silences_what_was_registered_before(simulate: Simulate) -> None:
    rig = simulate(TWO)
    nvml, gpu = rig.opened()
    event_set = register(nvml, gpu)
    nvml.nvmlDeviceSetMigMode(gpu, 1)
    rig.inject.xid(1, 48)
    assert rig.code(nvml.nvmlEventSetWait_v2, event_set, 0) == Code.TIMEOUT
    nvml.nvmlDeviceRegisterEvents(nvml.nvmlDeviceGetHandleByIndex(0), XID, event_set)
    rig.inject.xid(1, 79)
    assert nvml.nvmlEventSetWait_v2(event_set, 0).eventData == 79
