"""The backend as pydra calls it, over a scenario file and a state directory."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import pydra_sim
from pydra import AllocatedDevice, Claim, ClaimError, DeviceInUse, HealthStatus, PydraError, UnknownDevice
from pydra_sim.config import Sharing, SimConfig
from pydra_sim.machine import Machine
from pydra_sim.scenario import ScenarioError, ScenarioFile
from pydra_sim.state import StateDirectory

PARTITIONED = "groups: [{count: 2, slices: 4, partitions: [1, 2]}]\n"


def machine(tmp_path: Path, scenario: str = "") -> Machine:
    (tmp_path / "scenario.yaml").write_text(scenario)
    return reopened(tmp_path)


def reopened(tmp_path: Path) -> Machine:
    """What a new process of the backend would have: the same files, no memory."""
    return Machine(ScenarioFile(str(tmp_path / "scenario.yaml")), StateDirectory(str(tmp_path / "state")))


def claim(*devices: str | AllocatedDevice, uid: str = "uid-1", name: str = "mine") -> Claim:
    allocated = (
        AllocatedDevice(request="r", pool="node", device=device) if isinstance(device, str) else device
        for device in devices
    )
    return Claim(uid=uid, namespace="default", name=name, devices=tuple(allocated))


def active(tmp_path: Path) -> list[str]:
    return sorted(file.stem for file in (tmp_path / "state" / "active").glob("*"))


async def test_a_prepared_device_is_described_to_its_containers(tmp_path: Path) -> None:
    config = SimConfig(sharing=Sharing(strategy="TimeSliced"), clock=900, env={"FLAVOUR": "vanilla"})
    device = AllocatedDevice(request="r", pool="node", device="accel-3", configs=(config,))
    (prepared,) = await machine(tmp_path, "groups: [{infoFile: true}]").prepare(claim(device))
    env = prepared.edits.env
    assert env["SIM_ACCEL_3_UUID"].startswith("SIM-")
    assert env["SIM_ACCEL_3_MEMORY"] == "64Gi"
    assert env["SIM_ACCEL_3_CLOCK_MHZ"] == "900"
    assert env["SIM_ACCEL_3_TIME_SLICE_MS"] == "10"
    assert env["FLAVOUR"] == "vanilla"
    assert [(node.path, node.host_path) for node in prepared.edits.device_nodes] == [("/dev/sim/accel-3", "/dev/null")]
    (info,) = (tmp_path / "state" / "active").glob("*")
    assert prepared.edits.mounts[0].host_path == str(info)
    assert env["SIM_ACCEL_3_UUID"] in info.read_text()


async def test_preparing_again_gives_the_same_even_in_a_new_process(tmp_path: Path) -> None:
    first = await machine(tmp_path, PARTITIONED).prepare(claim("accel-0-1of4-0"))
    assert await reopened(tmp_path).prepare(claim("accel-0-1of4-0")) == first


async def test_a_partition_that_is_created_anew_has_a_new_identity(tmp_path: Path) -> None:
    sim, mine = machine(tmp_path, PARTITIONED), claim("accel-0-1of4-0")
    first = await sim.prepare(mine)
    await sim.unprepare(mine, first)
    second = await sim.prepare(mine)
    assert first[0].state["uuid"] != second[0].state["uuid"]


async def test_a_device_is_never_given_to_two_claims(tmp_path: Path) -> None:
    sim = machine(tmp_path)
    await sim.prepare(claim("accel-0", uid="uid-1"))
    with pytest.raises(DeviceInUse, match="uid-1"):
        await sim.prepare(claim("accel-0", uid="uid-2"))


@pytest.mark.parametrize("other", ["accel-0", "accel-0-2of4-0", "accel-0-1of4-1"])
async def test_overlapping_slices_are_refused_whatever_the_scheduler_believed(tmp_path: Path, other: str) -> None:
    sim = machine(tmp_path, PARTITIONED)
    await sim.prepare(claim("accel-0-2of4-0", uid="uid-1"))
    with pytest.raises(ClaimError, match="in use"):
        await sim.prepare(claim(other, uid="uid-2"))
    await sim.prepare(claim("accel-0-2of4-2", uid="uid-3"))


async def test_a_failed_prepare_leaves_nothing_behind(tmp_path: Path) -> None:
    sim = machine(tmp_path)
    await sim.prepare(claim("accel-1", uid="uid-1"))
    with pytest.raises(DeviceInUse):
        await sim.prepare(claim("accel-0", "accel-1", uid="uid-2"))
    assert active(tmp_path) == ["accel-1"]


async def test_shares_of_one_device_live_side_by_side(tmp_path: Path) -> None:
    sim = machine(tmp_path, "groups: [{shared: true}]")
    for number in (1, 2):
        share = AllocatedDevice(
            request="r",
            pool="node",
            device="accel-0",
            share_id=f"share-{number}",
            consumed_capacity={"memory": f"{number}Gi", "cores": "4"},
        )
        (prepared,) = await sim.prepare(claim(share, uid=f"uid-{number}"))
        assert prepared.edits.env["SIM_ACCEL_0_MEMORY"] == f"{number}Gi"
        assert prepared.share_id == f"share-{number}"
    used = [sample.value for sample in await sim.measure() if sample.name == "memory_used_bytes"]
    assert used[0] == 3 * 2**30


async def test_admin_access_looks_at_a_device_that_another_claim_holds(tmp_path: Path) -> None:
    sim = machine(tmp_path)
    await sim.prepare(claim("accel-0", uid="uid-1"))
    admin = claim(AllocatedDevice(request="r", pool="node", device="accel-0", admin_access=True), uid="uid-2")
    (prepared,) = await sim.prepare(admin)
    await sim.unprepare(admin, [prepared])
    assert prepared.edits.env["SIM_ACCEL_0_ADMIN"] == "true"
    assert active(tmp_path) == ["accel-0"]


async def test_unprepare_undoes_what_a_crash_left_without_being_told(tmp_path: Path) -> None:
    mine = claim("accel-0-1of4-0", "accel-0-1of4-1")
    sim = machine(tmp_path, PARTITIONED + "faults: [{do: raise, at: end}]")
    with pytest.raises(RuntimeError):
        await sim.prepare(mine)
    assert active(tmp_path) == ["accel-0-1of4-0", "accel-0-1of4-1"]
    await reopened(tmp_path).unprepare(mine, ())
    await reopened(tmp_path).unprepare(mine, ())
    assert active(tmp_path) == []


async def test_unprepare_leaves_the_devices_of_other_claims_alone(tmp_path: Path) -> None:
    sim = machine(tmp_path)
    await sim.prepare(claim("accel-0", uid="uid-1"))
    await sim.unprepare(claim("accel-0", uid="uid-2"), ())
    assert active(tmp_path) == ["accel-0"]


async def test_a_device_that_was_unplugged_can_still_be_unprepared(tmp_path: Path) -> None:
    sim, mine = machine(tmp_path), claim("accel-0")
    prepared = await sim.prepare(mine)
    (tmp_path / "scenario.yaml").write_text("groups: [{name: other}]")
    with pytest.raises(UnknownDevice, match="no device accel-0"):
        await sim.prepare(mine)
    await sim.unprepare(mine, prepared)
    assert active(tmp_path) == []


@pytest.mark.parametrize("how", ["scenario", "mark"])
async def test_an_unplugged_device_is_refused_and_not_discovered(tmp_path: Path, how: str) -> None:
    sim = machine(tmp_path, "unplugged: [accel-0]" if how == "scenario" else "")
    if how == "mark":
        (tmp_path / "state" / "unplugged" / "accel-0").touch()
    assert "accel-0" not in {device.name for device in (await sim.discover()).devices}
    with pytest.raises(UnknownDevice, match="unplugged"):
        await sim.prepare(claim("accel-0"))


async def test_a_fault_counts_over_the_life_of_processes(tmp_path: Path) -> None:
    sim = machine(tmp_path, "faults: [{do: raise, claim: mine, count: 2}]")
    for _ in range(2):
        with pytest.raises(RuntimeError):
            await sim.prepare(claim("accel-0"))
        sim = reopened(tmp_path)
    assert await sim.prepare(claim("accel-0"))


@pytest.mark.parametrize("call", ["discover", "prepare"])
async def test_a_garbage_answer_is_none_of_the_contract(tmp_path: Path, call: str) -> None:
    sim = machine(tmp_path, f"faults: [{{do: garbage, call: {call}}}]")
    answer: Any = await (sim.discover() if call == "discover" else sim.prepare(claim("accel-0")))
    assert isinstance(answer, str) or isinstance(answer[0], str)


async def test_a_fault_makes_the_devices_of_a_claim_ill(tmp_path: Path) -> None:
    sim = machine(tmp_path, "faults: [{do: unhealthy, message: too hot}]")
    await sim.prepare(claim("accel-2"))
    ill = {
        d.name: d.health.message for d in (await sim.discover()).devices if d.health.status is HealthStatus.UNHEALTHY
    }
    assert ill == {"accel-2": "too hot"}


async def test_work_on_an_accelerator_warms_it(tmp_path: Path) -> None:
    sim = machine(tmp_path)
    await sim.prepare(claim("accel-0"))
    warm = {sample.device: sample.value for sample in await sim.measure() if sample.name == "temperature_celsius"}
    assert warm["accel-0"] > warm["accel-1"]


@pytest.mark.parametrize("change", ["scenario", "mark", "unmark"])
async def test_a_change_is_noticed(tmp_path: Path, change: str) -> None:
    mark = tmp_path / "state" / "unhealthy" / "accel-0"
    sim = machine(tmp_path)
    if change == "unmark":
        mark.touch()
    await sim.discover()
    waiting = asyncio.ensure_future(sim.wait_changed())
    await asyncio.sleep(0)
    assert not waiting.done()
    if change == "scenario":
        (tmp_path / "scenario.yaml").write_text("unplugged: [accel-0]")
    elif change == "mark":
        mark.touch()
    else:
        mark.unlink()
    await asyncio.wait_for(waiting, 5)


async def test_a_change_between_discover_and_the_wait_is_not_lost(tmp_path: Path) -> None:
    sim = machine(tmp_path)
    await sim.discover()
    (tmp_path / "scenario.yaml").write_text("unplugged: [accel-0]")
    await asyncio.wait_for(sim.wait_changed(), 5)


async def test_a_scenario_that_breaks_is_told_by_discover_and_mended_by_a_change(tmp_path: Path) -> None:
    sim = machine(tmp_path, "groups: [{cuont: 1}]")
    with pytest.raises(ScenarioError, match="cuont"):
        await sim.discover()
    (tmp_path / "scenario.yaml").write_text("groups: [{count: 1}]")
    await asyncio.wait_for(sim.wait_changed(), 5)
    assert len((await sim.discover()).devices) == 1


@asynccontextmanager
async def connected(monkeypatch: pytest.MonkeyPatch, **environment: str) -> AsyncIterator[Machine]:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    async with pydra_sim.connect() as found:
        yield found


async def test_connecting_takes_scenario_and_state_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(monkeypatch, PYDRA_SIM_SCENARIO="shared", PYDRA_SIM_STATE=str(tmp_path / "s")) as sim:
        assert len((await sim.discover()).devices) == 2
    assert (tmp_path / "s" / "active").stat().st_mode & 0o077 == 0


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
async def test_the_state_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 65534, 65534)
    with pytest.raises(PydraError, match="belongs to uid 65534"):
        StateDirectory(str(tmp_path)).prepare_directories()
