"""How ill devices are: by the files of a simulated machine, and by what the runtime says."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

import pydra_tpu
from pydra import HealthStatus, TaintEffect
from pydra_tpu import Settings
from pydra_tpu.health import diagnose
from pydra_tpu.settings import Offer
from tpu_values import add_process, chip_of, claim_of, holding

if TYPE_CHECKING:
    from pydra_tpu.backend import TpuBackend

LEFT = {"2x4-0", "2x2-0", "1x2-2", "chip-3"}
"""The devices that chip 3 is part of."""


@pytest_asyncio.fixture
async def backend(tmp_path: Path) -> AsyncIterator[TpuBackend]:
    settings = Settings(scenario="v5e-8", state=str(tmp_path), poll_period=0.01)
    async with pydra_tpu.connect(settings) as opened:
        yield opened


async def find_ill(backend: TpuBackend) -> Mapping[str, str]:
    """The reasons of the devices that are not healthy."""
    devices = (await backend.discover()).devices
    assert len(devices) == 15
    return {one.name: one.health.reason for one in devices if one.health.status is HealthStatus.UNHEALTHY}


def function(root: Path, chip: int) -> Path:
    return root / "tree" / "sys" / "bus" / "pci" / "devices" / f"0000:00:{4 + chip:02x}.0"


async def test_a_chip_without_its_driver_is_ill_until_it_is_bound_again(backend: TpuBackend, tmp_path: Path) -> None:
    driver = function(tmp_path, 3) / "driver"
    target = driver.readlink()
    assert await find_ill(backend) == {}
    for change, ill in (
        (driver.unlink, dict.fromkeys(LEFT, "NoDriver")),
        (lambda: driver.symlink_to(target), {}),
    ):
        waiting = asyncio.create_task(backend.wait_changed())
        change()
        await asyncio.wait_for(waiting, 60)
        assert await find_ill(backend) == ill


async def test_seven_of_eight_device_nodes_make_one_chip_ill(backend: TpuBackend, tmp_path: Path) -> None:
    (tmp_path / "tree" / "dev" / "vfio" / "3").unlink()
    assert await find_ill(backend) == dict.fromkeys(LEFT, "NodeGone")


@pytest.mark.parametrize(("node", "ill"), [("3", LEFT), ("vfio", None)])
@pytest.mark.parametrize("is_directory", [False, True])
async def test_a_node_that_containers_cannot_get_makes_the_chips_ill_that_need_it(
    backend: TpuBackend, tmp_path: Path, node: str, ill: set[str] | None, *, is_directory: bool
) -> None:
    path = tmp_path / "tree" / "dev" / "vfio" / node
    path.unlink()
    if is_directory:
        path.mkdir()
    found = await find_ill(backend)
    assert {*found.values()} == {"NodeGone"}
    assert {*found} == (ill or {one.name for one in (await backend.discover()).devices})


async def test_a_chip_that_comes_back_at_another_address_has_its_place_again(
    backend: TpuBackend, tmp_path: Path
) -> None:
    before = [one.name for one in (await backend.discover()).devices]
    entry = function(tmp_path, 3)
    entry.rename(entry.with_name("0000:00:1f.0"))
    after = (await backend.discover()).devices
    assert [one.name for one in after] == before
    assert {one.health.status for one in after} == {HealthStatus.HEALTHY}
    place = {one.name: one.attributes.get("resource.kubernetes.io/pciBusID") for one in after}
    assert (place["chip-3"], place["chip-4"]) == ("0000:00:1f.0", "0000:00:08.0")
    assert (await backend.discover()).devices == after, "nobody moves up later"


async def test_chips_that_vanish_keep_their_places_and_the_others_theirs(backend: TpuBackend, tmp_path: Path) -> None:
    before = {one.name: one.attributes for one in (await backend.discover()).devices}
    for chip in range(4):
        function(tmp_path, chip).unlink()
    ill = await find_ill(backend)
    assert {*ill} == {
        one for one in before if one not in ("2x2-4", "1x2-4", "1x2-6", *(f"chip-{n}" for n in (4, 5, 6, 7)))
    }
    assert {*ill.values()} == {"ChipGone"}
    assert {one.name: one.attributes for one in (await backend.discover()).devices} == before


async def test_a_chip_that_was_gone_before_the_start_is_missed_if_somebody_counts(tmp_path: Path) -> None:
    settings = Settings(scenario="v5e-8", state=str(tmp_path), host_chips=8)
    async with pydra_tpu.connect(settings) as backend:
        for chip in range(4):
            shutil.rmtree(function(tmp_path, chip).resolve())
            function(tmp_path, chip).unlink()
        inventory = await backend.discover()
    assert inventory.devices == ()
    assert "chips of this machine: 4, expected by the settings: 8; none is offered" in inventory.unreadable[0]


async def test_a_chip_in_use_by_a_process_without_a_claim_is_not_given_out(backend: TpuBackend, tmp_path: Path) -> None:
    assert await find_ill(backend) == {}
    waiting = asyncio.create_task(backend.wait_changed())
    process = add_process(tmp_path, 4711, "/dev/vfio/3")
    await asyncio.wait_for(waiting, 60)
    assert await find_ill(backend) == dict.fromkeys(LEFT, "InUse")
    chip = next(one for one in (await backend.discover()).devices if one.name == "chip-3")
    assert chip.health.effect is TaintEffect.NO_SCHEDULE
    assert "chip 3 is open in process 4711 (python) 3) of the node" in chip.health.message
    shutil.rmtree(process)
    assert await find_ill(backend) == {}


async def test_processes_of_a_claim_are_expected_as_long_as_the_node_holds_it(
    backend: TpuBackend, tmp_path: Path
) -> None:
    await backend.discover()
    with holding(claim_of("2x2-0")):  # prepared by another instance of the agent, as in an upgrade
        add_process(tmp_path, 4711, "/dev/vfio/3")
        assert await find_ill(backend) == {}
    assert await find_ill(backend) == dict.fromkeys(LEFT, "InUse")


async def test_a_claim_of_a_device_that_the_settings_no_longer_offer_still_explains_its_processes(
    tmp_path: Path,
) -> None:
    settings = Settings(scenario="v5e-8", state=str(tmp_path), offer=Offer.CHIPS)
    async with pydra_tpu.connect(settings) as backend:
        with holding(claim_of("2x2-0")):
            add_process(tmp_path, 4711, "/dev/vfio/3")
            assert [one.name for one in (await backend.discover()).devices if one.health.reason] == []


async def test_who_had_a_chip_before_its_claim_is_not_the_claims(backend: TpuBackend, tmp_path: Path) -> None:
    process = add_process(tmp_path, 4711, "/dev/vfio/3")
    await backend.discover()
    with holding(claim_of("chip-3")):
        assert await find_ill(backend) == dict.fromkeys(LEFT, "InUse")
        shutil.rmtree(process)
        add_process(tmp_path, 4711, "/dev/vfio/3", started=8)  # another one, with the same id
        assert await find_ill(backend) == {}


async def test_processes_that_cannot_be_read_are_nobodys(backend: TpuBackend, tmp_path: Path) -> None:
    (add_process(tmp_path, 4711, "/dev/vfio/3") / "stat").write_text("torn")
    (tmp_path / "tree" / "proc" / "12").mkdir()
    (tmp_path / "tree" / "proc" / "self").symlink_to("12")
    assert await find_ill(backend) == {}


@pytest.mark.parametrize(
    ("size", "fields", "reason", "effect"),
    [
        (4, {"links": {"ici0": 10}}, "LinkDown", None),
        (4, {"links": {"ici0": 7, "ici1": 10}}, "LinkDown", None),
        (4, {"links": {"ici0": 6}}, "LinkDegraded", TaintEffect.NO_SCHEDULE),
        (4, {"links": {"ici0": 5}}, "", None),
        (1, {"links": {"ici0": 10}}, "", None),
        (1, {"throttle": 3}, "Throttled", TaintEffect.NO_SCHEDULE),
        (4, {"throttle": 3, "links": {"ici0": 10}}, "LinkDown", None),
        (4, {"present": False, "node": "", "links": {"ici0": 10}}, "ChipGone", None),
    ],
)
def test_what_the_runtime_says_of_a_chip_is_told_with_the_worst_first(
    size: int, fields: dict[str, object], reason: str, effect: TaintEffect | None
) -> None:
    chips = [*(chip_of("v5litepod", index) for index in range(size - 1)), chip_of("v5litepod", size - 1, **fields)]
    health = diagnose(chips)
    assert (health.reason, health.effect) == (reason, effect)
