"""Faults strike the calls that they are meant for, as often as they say, and do what NVML does to a process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydra_nvidia.nvml.errors import Code
from pydra_nvidia.simulation.call_faults import Fault

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


@given(seed=st.integers(), p=st.floats(0.05, 0.95), code=st.sampled_from([code.name for code in Code]))
def test_chance_is_repeated_with_its_seed(seed: int, p: float, code: str) -> None:
    fault = Fault(op="nvml*", do="raise", p=p, seed=seed, code=code)
    struck = [fault.strikes(earlier) for earlier in range(400)]
    assert struck == [fault.strikes(earlier) for earlier in range(400)]
    assert 0 < sum(struck) < 400


def test_an_xid_strikes_beside_the_call(simulate: Simulate) -> None:
    rig = simulate(two({"op": GET_MINOR, "do": "xid", "xid": 94, "gi": 2, "ci": 0}))
    nvml, gpu = rig.opened()
    event_set = nvml.nvmlEventSetCreate()
    nvml.nvmlDeviceRegisterEvents(gpu, 0x8, event_set)
    assert nvml.nvmlDeviceGetMinorNumber(gpu) == 1
    event = nvml.nvmlEventSetWait_v2(event_set, 0)
    assert (event.eventData, event.gpuInstanceId, event.computeInstanceId) == (94, 2, 0)


def test_a_call_that_holds_the_gil_stops_every_thread(simulate: Simulate) -> None:
    rig = simulate(two({"op": GET_MINOR, "do": "gil-hang", "seconds": 1}))
    done = rig.elsewhere(
        "import threading, time\n"
        "ticks, over = [time.monotonic()], threading.Event()\n"
        "def tick():\n"
        "    while not over.wait(0.01): ticks.append(time.monotonic())\n"
        "thread = threading.Thread(target=tick)\n"
        "thread.start()\n"
        f"nvml.{GET_MINOR}(h)\n"
        "over.set()\n"
        "thread.join()\n"
        "ticks.append(time.monotonic())\n"
        "print(max(after - before for before, after in zip(ticks, ticks[1:])) > 0.9)\n"
    )
    assert done.stdout.strip() == "True", done.stderr
