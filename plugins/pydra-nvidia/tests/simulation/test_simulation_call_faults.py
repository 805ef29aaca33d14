"""Faults strike the calls that they are meant for, as often as they say, and do what NVML does to a process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pydra_nvidia.nvml.errors import Code

Simulate = Callable[..., Any]
GET_MINOR = "nvmlDeviceGetMinorNumber"


def two(*faults: dict[str, Any]) -> dict[str, Any]:
    return {"gpus": [{"model": "h100-80gb", "count": 2, "minors": [1, 0], "mig": True}], "faults": list(faults)}


@pytest.mark.parametrize(
    ("fault", "struck"),
    [({"count": 2}, [True, True, False, False]), ({"after": 1, "count": 1}, [False, True, False, False])],
    ids=["counted", "once, late"],
)
def test_a_fault_strikes_as_often_as_it_says(fault: dict[str, int], struck: list[bool], simulate: Simulate) -> None:
    rig = simulate(two({"op": GET_MINOR, "do": "raise", "code": "TIMEOUT", **fault}))
    nvml, gpu = rig.opened()
    assert [rig.code(nvml.nvmlDeviceGetMinorNumber, gpu) == Code.TIMEOUT for _ in range(4)] == struck


def test_an_xid_strikes_beside_the_call(simulate: Simulate) -> None:
    rig = simulate(two({"op": GET_MINOR, "do": "xid", "xid": 94}))
    nvml, gpu = rig.opened()
    event_set = nvml.nvmlEventSetCreate()
    nvml.nvmlDeviceRegisterEvents(gpu, 0x8, event_set)
    assert nvml.nvmlDeviceGetMinorNumber(gpu) == 1
    assert nvml.nvmlEventSetWait_v2(event_set, 0).eventData == 94
