"""The backend keeps pydra's contract and gives a claim its devices."""

import asyncio
from pathlib import Path  # with: health

import pytest  # with: health
from pydra import AllocatedDevice, Claim
from pydra.testing import check_backend

import my_fpga


def test_the_agent_would_accept_the_backend() -> None:
    report = check_backend("my_fpga:")
    assert report.ok, report.text


def test_a_container_learns_which_fpga_it_got() -> None:
    device = AllocatedDevice(request="fpga", pool="node", device="fpga-1")
    claim = Claim(uid="1", namespace="default", name="mine", devices=(device,))
    (prepared,) = asyncio.run(my_fpga.prepare(claim))
    assert prepared.edits.env["FPGA"] == "fpga-1"
# with: partitions


def test_each_part_of_a_board_has_slots_of_its_own() -> None:
    devices = asyncio.run(my_fpga.discover()).devices
    halves = [one for one in devices if one.name.startswith("fpga-0") and one.attributes["slots"] == 2]
    taken = [set(one.consumes_counters[0].counters) for one in halves]
    assert taken == [{"slot-0", "slot-1"}, {"slot-2", "slot-3"}]
# end
# with: config


def test_a_claim_sets_the_clock_of_its_device() -> None:
    fast = my_fpga.DeviceConfig(clock=300)
    device = AllocatedDevice(request="r", pool="node", device="fpga-1", configs=(fast,))
    claim = Claim(uid="1", namespace="default", name="mine", devices=(device,))
    (prepared,) = asyncio.run(my_fpga.prepare(claim))
    assert [value for name, value in prepared.edits.env.items() if name.endswith("_MHZ")] == ["300"]
# end
# with: health


def test_a_board_that_fails_is_unhealthy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(my_fpga, "FAULTS", tmp_path)
    (tmp_path / "fpga-1").write_text("it is too hot")
    devices = asyncio.run(my_fpga.discover()).devices
    assert {one.health.message for one in devices if one.name.startswith("fpga-1")} == {"it is too hot"}
    assert {one.health.message for one in devices if one.name.startswith("fpga-0")} == {""}
# end
