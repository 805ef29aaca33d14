"""Simulated machines of every type, and their faults, as the backend reports them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

import pydra_tpu
from pydra import HealthStatus, Inventory, PydraError
from pydra_tpu import Settings
from pydra_tpu.simulation.machine_types import MACHINE_TYPES
from tpu_values import claim_of


def settings_of(scenario: str, state: Path) -> Settings:
    return Settings(scenario=scenario, state=str(state), poll_period=0.01)


def list_ill(inventory: Inventory) -> Mapping[str, str]:
    return {one.name: one.health.reason for one in inventory.devices if one.health.status is HealthStatus.UNHEALTHY}


@pytest.mark.parametrize("name", MACHINE_TYPES)
async def test_each_machine_type_is_a_healthy_slice_by_itself(name: str, tmp_path: Path) -> None:
    machine = MACHINE_TYPES[name]
    async with pydra_tpu.connect(settings_of(name, tmp_path)) as backend:
        inventory = await backend.discover()
        [prepared] = await backend.prepare(claim_of(inventory.devices[0].name))
    attributes = inventory.devices[0].attributes
    assert inventory.unreadable == ()
    assert list_ill(inventory) == {}
    assert len(inventory.devices) == {1: 1, 2: 3, 4: 7, 8: 15}[machine.chips]
    assert (attributes["wholeHost"], attributes["chipCount"]) == (True, machine.chips)
    assert (attributes["topology"], attributes["tpuGen"]) == (machine.topology, machine.generation.name)
    assert prepared.edits.env["TPU_TOPOLOGY"] == machine.topology
    nodes = [node for node in prepared.edits.device_nodes if node.path != "/dev/vfio/vfio"]
    assert len(nodes) == machine.chips * machine.generation.functions


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("node-gone", "NodeGone"), ("driver-unbound", "NoDriver"), ("chip-held", "InUse")],
)
@pytest.mark.parametrize("name", ["v4-8", "v6e-8"])
async def test_a_fault_in_files_makes_the_last_chip_ill(name: str, fault: str, reason: str, tmp_path: Path) -> None:
    async with pydra_tpu.connect(settings_of(f"{name}+{fault}", tmp_path)) as backend:
        ill = list_ill(await backend.discover())
    assert ill[f"chip-{MACHINE_TYPES[name].chips - 1}"] == reason
    assert "chip-0" not in ill


async def test_a_process_outside_of_kubernetes_that_holds_libtpus_lock_has_all_chips(tmp_path: Path) -> None:
    async with pydra_tpu.connect(settings_of("v6e-4+lockfile-held", tmp_path)) as backend:
        inventory = await backend.discover()
    assert {*list_ill(inventory).values()} == {"InUse"}
    assert len(list_ill(inventory)) == len(inventory.devices)
    assert "process 4711 (train.py) of the node" in inventory.devices[0].health.message


async def test_a_host_that_lacks_a_chip_from_the_start_offers_none(tmp_path: Path) -> None:
    async with pydra_tpu.connect(settings_of("v5e-8+chip-gone", tmp_path)) as backend:
        inventory = await backend.discover()
    assert inventory.devices == ()
    assert inventory.unreadable[0] == "chips of this machine: 7, of a TPU v5e host: 1 or 4 or 8; none is offered"


async def test_the_metadata_server_alone_tells_of_the_slice(tmp_path: Path) -> None:
    async with pydra_tpu.connect(settings_of("v5e-8+metadata", tmp_path)) as backend:
        while "accelerator" not in (inventory := await backend.discover()).devices[0].attributes:
            await backend.wait_changed()
    attributes = inventory.devices[0].attributes
    assert (attributes["topology"], attributes["accelerator"]) == ("2x4", "tpu-v5-lite-podslice")
    assert inventory.unreadable == ()


async def test_what_the_metadata_server_tells_late_is_published_without_a_restart(tmp_path: Path) -> None:
    async with pydra_tpu.connect(settings_of("v5p-8+metadata-late", tmp_path)) as backend:
        before = (await backend.discover()).devices[0].attributes
        while "topology" not in (after := (await backend.discover()).devices[0].attributes):
            await backend.wait_changed()
    assert not {"topology", "acceleratorType", "hostBounds", "x"} & before.keys()
    assert (after["acceleratorType"], after["hostBounds"], after["x"]) == ("v5p-8", "1,1,1", 0)


async def test_what_the_metadata_server_contradicts_itself_in_is_left_out_and_told(tmp_path: Path) -> None:
    async with pydra_tpu.connect(settings_of("v5e-8+metadata-contradicts", tmp_path)) as backend:
        while not (inventory := await backend.discover()).unreadable:
            await backend.wait_changed()
    assert "topology" not in inventory.devices[0].attributes
    (problem,) = inventory.unreadable
    assert "topology is 2x4 by the metadata server's tpu-env and 16x16 by the metadata server's kube-labels" in problem


async def test_broken_links_and_throttling_taint_devices_until_they_are_over(tmp_path: Path) -> None:
    async with pydra_tpu.connect(settings_of("v5e-8+link-down+throttled", tmp_path)) as backend:
        while not (ill := list_ill(await backend.discover())):
            await backend.wait_changed()
        samples = {(one.name, one.device, *one.labels.values()): one.value for one in await backend.measure()}
        library = tmp_path / "tree" / "library.json"
        library.write_text(json.dumps({"ici_link_health": ["tray1.chip3.ici0.int: 0"], "tpu_throttle_score": ["?"]}))
        await asyncio.wait_for(backend.wait_changed(), 60)
        assert list_ill(await backend.discover()) == {}
    assert ill == dict.fromkeys(("2x4-0", "2x2-4", "1x2-6"), "LinkDown") | {"chip-7": "Throttled"}
    assert samples["ici_link_state", "chip-7", "ici0.int"] == 10
    assert samples["throttle_ratio", "chip-7"] == 0.3
    assert samples["tensorcore_use_ratio", "chip-0", "0"] == 0.2


async def test_a_metrics_service_that_hangs_is_reported_and_holds_nothing_up(tmp_path: Path) -> None:
    async with pydra_tpu.connect(settings_of("v5e-8+metrics-hang", tmp_path)) as backend:
        await backend.discover()
        measuring = asyncio.create_task(backend.measure())
        await backend.prepare(claim_of("2x2-0"))
        assert not measuring.done()
        samples = await measuring
    assert {(one.name, one.value) for one in samples} == {("runtime_answered", 0)}


async def test_a_silent_metadata_server_holds_nothing_up(tmp_path: Path) -> None:
    async with pydra_tpu.connect(settings_of("v5e-8+metadata-silent", tmp_path)) as backend:
        assert len((await backend.discover()).devices) == 15
        await backend.prepare(claim_of("2x2-0"))


@pytest.mark.parametrize(
    ("scenario", "text"),
    [
        ("v9-8", "there is no scenario v9-8; bundled are: .*v5e-8"),
        ("v5e-8+fire", r"there is no fire; after a \+ there can be: node-gone"),
    ],
)
async def test_what_cannot_be_simulated_is_refused_with_what_can(scenario: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(PydraError, match=text):
        async with pydra_tpu.connect(settings_of(scenario, tmp_path)):
            pass
