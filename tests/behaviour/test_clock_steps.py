"""The time of day jumps, as when a node starts without a battery and then hears of NTP: no period depends on it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.behaviour.node import DEVICES, Node
from tests.behaviour.waiting import wait_for

DAY = 86_400.0


@pytest.mark.parametrize("ahead", [DAY, -DAY], ids=["back", "forward"])
def test_a_step_of_a_day_costs_no_claim_and_delays_no_change_of_devices(node: Node, ahead: float) -> None:
    node.set_time_of_day(ahead)
    agent = node.serve("--sweep-period", "0.1")
    claim = node.api.create_claim("d0")
    answered = node.kubelet.prepare_one(claim)
    wait_for(node.api.devices, "the devices are published")
    (published,) = node.api.slices()
    started = datetime.fromisoformat(published["metadata"]["annotations"]["pydra-agent/started"])
    assert abs((started - datetime.now(UTC)).total_seconds() - ahead) < DAY / 2, "the agent goes by that time of day"
    node.set_time_of_day(0.0)
    node.board.set_devices(*(name for name in DEVICES if name != "d1"))
    wait_for(lambda: "d1" not in node.api.devices(), "the device that is gone is not published any more")
    node.wait_lookups_of(claim, 3)
    assert node.board.steps(claim) == ["prepare", "prepared"]
    node.restart(agent)  # which, going by the clock, has started before the last one
    node.board.restore_devices()
    wait_for(lambda: "d1" in node.api.devices(), "the device that came is published")
    assert node.kubelet.prepare_one(claim) == answered
    node.kubelet.release(claim)
    assert node.is_clean(claim)
