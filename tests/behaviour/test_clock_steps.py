"""The time of day jumps, as when a node starts without a battery and then hears of NTP: no period depends on it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tests.behaviour.node import DEVICES, run_node
from tests.behaviour.waiting import wait_for

DAY = 86_400.0


def test_steps_of_a_day_cost_no_claim_and_delay_no_change_of_devices() -> None:
    with run_node(has_clocks=True) as node:
        node.set_time_of_day(DAY)
        agent = node.serve("--sweep-period", "0.1")
        claim = node.api.create_claim("d0")
        answered = node.kubelet.prepare_one(claim)
        wait_for(node.api.devices, "the devices are published")
        (published,) = node.api.slices()
        started = datetime.fromisoformat(published["metadata"]["annotations"]["pydra-agent/started"])
        assert started > datetime.now(UTC) + timedelta(seconds=DAY / 2), "the agent goes by that time of day"
        node.set_time_of_day(0.0)
        node.board.set_devices(*(name for name in DEVICES if name != "d1"))
        wait_for(lambda: "d1" not in node.api.devices(), "the device that is gone is not published any more")
        node.wait_lookups_of(claim, 3)
        node.restart(agent)  # which, going by the clock, has started before the last one
        node.board.restore_devices()
        wait_for(lambda: "d1" in node.api.devices(), "the device that came is published")
        node.set_time_of_day(DAY)
        node.board.set_devices(*(name for name in DEVICES if name != "d1"))
        wait_for(lambda: "d1" not in node.api.devices(), "the device that is gone again is not published any more")
        assert node.kubelet.prepare_one(claim) == answered
        assert node.board.steps(claim) == ["prepare", "prepared"]
        node.kubelet.release(claim)
        assert node.is_clean(claim)
