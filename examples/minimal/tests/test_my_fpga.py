"""The backend keeps pydra's contract and gives a claim its devices."""

import asyncio

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
    assert prepared.edits.env == {"FPGA": "fpga-1"}
