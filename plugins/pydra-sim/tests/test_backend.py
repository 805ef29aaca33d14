"""The simulated backend as pydra calls it: through `connect`, over a scenario file and a state directory."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import pydra_sim
from pydra import (
    AllocatedDevice,
    Claim,
    ClaimError,
    DeviceInUse,
    DeviceStatus,
    HealthStatus,
    HeldClaim,
    PydraError,
    UnknownDevice,
)
from pydra.testing import check_backend
from pydra_sim import Settings, Sharing, SimConfig
from pydra_sim.scenario import ScenarioError

PARTITIONED = "groups: [{count: 2, slices: 4, partitions: [1, 2]}]"
SHARED = "groups: [{count: 2, shared: true}]"


@asynccontextmanager
async def machine(root: Path, scenario: str = "") -> AsyncIterator[Any]:
    """The backend in a new process, as it were: it has the files, and remembers nothing else."""
    if scenario:
        (root / "scenario.yaml").write_text(scenario)
    path = root / "scenario.yaml"
    async with pydra_sim.connect(Settings(scenario=str(path) if path.exists() else "", state=f"{root}/state")) as sim:
        yield sim


def device(name: str = "accel-0", **fields: Any) -> AllocatedDevice:
    return AllocatedDevice(request="r", pool="node", device=name, **fields)


def claim(*devices: AllocatedDevice | str, uid: str = "uid-1", plan: Any = None) -> Claim:
    allocated = tuple(device(one) if isinstance(one, str) else one for one in devices)
    return Claim(uid=uid, namespace="default", name="mine", devices=allocated, plan=plan)


async def planned(sim: Any, wanted: Claim, held: Sequence[HeldClaim] = ()) -> Claim:
    return msgspec.structs.replace(wanted, plan=await sim.plan(wanted, held))


async def hold(sim: Any, wanted: Claim, held: Sequence[HeldClaim] = ()) -> HeldClaim:
    with_plan = await planned(sim, wanted, held)
    return HeldClaim(claim=with_plan, prepared=tuple(await sim.prepare(with_plan)), completed=True)


def active(root: Path) -> list[str]:
    return sorted(file.stem for file in (root / "state" / "active").glob("*.json"))


def test_it_keeps_the_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYDRA_SIM_STATE", str(tmp_path))
    report = check_backend("sim")
    assert {check.mark for check in report.checks} == {"ok"}, report.text
    assert report.text.endswith("backend sim keeps the contract")


# What there is


async def test_the_default_machine_has_eight_accelerators_on_two_numa_nodes(tmp_path: Path) -> None:
    async with machine(tmp_path) as sim:
        devices = (await sim.discover()).devices
    assert [one.name for one in devices] == [f"accel-{number}" for number in range(8)]
    assert Counter(one.attributes["resource.kubernetes.io/numaNode"] for one in devices) == {0: 4, 1: 4}
    assert len({one.attributes["uuid"] for one in devices}) == 8
    assert len({one.attributes["resource.kubernetes.io/pciBusID"] for one in devices}) == 8


async def test_partitions_and_the_whole_draw_on_the_counters_of_one_accelerator(tmp_path: Path) -> None:
    async with machine(tmp_path, PARTITIONED) as sim:
        found = await sim.discover()
    names = [one.name for one in found.devices if one.name.startswith("accel-0")]
    assert names == ["accel-0", *(f"accel-0-1of4-{start}" for start in range(4)), "accel-0-2of4-0", "accel-0-2of4-2"]
    whole = found.devices[0]
    partition = next(one for one in found.devices if one.name == "accel-0-2of4-2")
    assert found.counter_sets[0].counters == whole.consumes_counters[0].counters
    assert partition.consumes_counters[0].counters == {"memory": "32Gi", "cores": 64, "slice-2": 1, "slice-3": 1}
    assert partition.attributes["parentUUID"] == whole.attributes["uuid"]


async def test_a_shared_accelerator_is_given_out_in_steps(tmp_path: Path) -> None:
    async with machine(tmp_path, SHARED) as sim:
        shared = (await sim.discover()).devices[0]
    policy = shared.capacity["memory"].policy
    assert shared.allow_multiple_allocations
    assert (policy.default, policy.valid_range.step) == ("64Gi", "1Gi")


@pytest.mark.parametrize("by_hand", [True, False])
async def test_what_is_unhealthy_or_unplugged_is_so_with_its_partitions(tmp_path: Path, *, by_hand: bool) -> None:
    scenario = PARTITIONED if by_hand else PARTITIONED + "\nunhealthy: {accel-0: too hot}\nunplugged: [accel-1]"
    async with machine(tmp_path, scenario) as sim:
        if by_hand:
            (tmp_path / "state" / "unhealthy" / "accel-0").write_text("too hot\n")
            (tmp_path / "state" / "unplugged" / "accel-1").touch()
        found = await sim.discover()
        with pytest.raises(UnknownDevice, match="unplugged"):
            await sim.plan(claim("accel-1"), ())
    assert {(one.health.status, one.health.message) for one in found.devices} == {(HealthStatus.UNHEALTHY, "too hot")}
    assert [one.name for one in found.counter_sets] == ["accel-0"]


# Planning and preparing


async def test_containers_get_what_the_config_asks_for(tmp_path: Path) -> None:
    config = SimConfig(sharing=Sharing(strategy="TimeSliced"), clock=900, env={"FLAVOUR": "vanilla"})
    async with machine(tmp_path, "groups: [{infoFile: true}]") as sim:
        (prepared,) = (await hold(sim, claim(device("accel-3", configs=(config,))))).prepared
    edits = prepared.edits
    assert edits.env["SIM_ACCEL_3_UUID"].startswith("SIM-")
    assert prepared.status == DeviceStatus(data={"uuid": edits.env["SIM_ACCEL_3_UUID"]})
    assert {name: edits.env[name] for name in ("SIM_ACCEL_3_MEMORY", "SIM_ACCEL_3_CLOCK_MHZ", "FLAVOUR")} == {
        "SIM_ACCEL_3_MEMORY": "64Gi",
        "SIM_ACCEL_3_CLOCK_MHZ": "900",
        "FLAVOUR": "vanilla",
    }
    assert edits.env["SIM_ACCEL_3_TIME_SLICE_MS"] == "10"
    assert [(node.path, node.host_path) for node in edits.device_nodes] == [("/dev/sim/accel-3", "/dev/null")]
    assert edits.env["SIM_ACCEL_3_UUID"] in Path(edits.mounts[0].host_path).read_text()  # noqa: ASYNC240


@pytest.mark.parametrize("other", ["accel-0", "accel-0-2of4-0", "accel-0-1of4-1"])
async def test_a_partition_that_overlaps_a_held_one_is_refused(tmp_path: Path, other: str) -> None:
    async with machine(tmp_path, PARTITIONED) as sim:
        held = await hold(sim, claim("accel-0-2of4-0"))
        with pytest.raises(DeviceInUse, match="uid-1"):
            await sim.plan(claim(other, uid="uid-2"), [held])
        assert await sim.plan(claim("accel-0-2of4-2", uid="uid-2"), [held])


async def test_shares_of_one_accelerator_get_slots_of_their_own_until_there_are_none(tmp_path: Path) -> None:
    held: list[HeldClaim] = []
    async with machine(tmp_path, SHARED) as sim:
        for number in range(64):
            share = device(share_id=f"s-{number}", consumed_capacity={"memory": "1Gi", "cores": "2"})
            held.append(await hold(sim, claim(share, uid=f"uid-{number}"), held))
        with pytest.raises(ClaimError, match="all 64 shares of accel-0 are in use"):
            await sim.plan(claim(device(share_id="more"), uid="more"), held)
        used = {one.device: one.value for one in await sim.measure() if one.name == "memory_used_bytes"}
    assert used == {"accel-0": 64 * 2**30, "accel-1": 0}
    assert len({slot for one in held for slots in one.plan.values() for slot in slots}) == 64


async def test_admin_access_looks_at_a_device_that_another_claim_holds(tmp_path: Path) -> None:
    async with machine(tmp_path) as sim:
        holder = await hold(sim, claim("accel-0"))
        admin = await hold(sim, claim(device(admin_access=True), uid="uid-2"), [holder])
        await sim.unprepare(admin.claim, admin.prepared)
    assert admin.prepared[0].edits.env["SIM_ACCEL_0_ADMIN"] == "true"
    assert active(tmp_path) == ["accel-0"]


async def test_a_device_that_is_gone_can_still_be_unprepared(tmp_path: Path) -> None:
    async with machine(tmp_path, "unplugged: []") as sim:
        held = await hold(sim, claim("accel-0"))
        (tmp_path / "scenario.yaml").write_text("unplugged: [accel-0]")
        with pytest.raises(UnknownDevice):
            await sim.prepare(held.claim)
        await sim.unprepare(held.claim, held.prepared)
    assert active(tmp_path) == []


async def test_what_a_crash_in_prepare_left_is_undone_by_the_plan(tmp_path: Path) -> None:
    async with machine(tmp_path, PARTITIONED + "\nfaults: [{do: raise, at: end}]") as sim:
        begun = await planned(sim, claim("accel-0-1of4-0", "accel-0-1of4-1"))
        with pytest.raises(RuntimeError):
            await sim.prepare(begun)
    assert active(tmp_path) == ["accel-0-1of4-0", "accel-0-1of4-1"]
    async with machine(tmp_path) as sim:
        await sim.unprepare(begun, ())
        await sim.unprepare(begun, ())
    assert active(tmp_path) == []


async def test_a_new_process_ends_the_work_that_no_held_claim_explains(tmp_path: Path) -> None:
    async with machine(tmp_path) as sim:
        kept = await hold(sim, claim("accel-0"))
        begun = HeldClaim(claim=(await hold(sim, claim("accel-1", uid="uid-2"))).claim, completed=False)
        await hold(sim, claim("accel-2", uid="uid-3"))
    async with machine(tmp_path) as sim:
        await sim.restore([kept, begun])
    assert active(tmp_path) == ["accel-0", "accel-1"]


async def test_a_claim_whose_record_was_damaged_is_kept_and_undone_by_its_devices(tmp_path: Path) -> None:
    damaged = claim("accel-0")  # without its plan
    async with machine(tmp_path) as sim:
        await hold(sim, damaged)
    async with machine(tmp_path) as sim:
        await sim.restore([HeldClaim(claim=damaged, completed=False)])
        assert active(tmp_path) == ["accel-0"]
        await sim.unprepare(damaged, ())
    assert active(tmp_path) == []


# Changes


@pytest.mark.parametrize("change", ["scenario", "mark", "unmark"])
async def test_a_change_since_discover_is_noticed(tmp_path: Path, change: str) -> None:
    mark = tmp_path / "state" / "unhealthy" / "accel-0"
    async with machine(tmp_path, "unplugged: []") as sim:
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
        await asyncio.wait_for(waiting, 30)


async def test_a_scenario_that_is_not_valid_fails_discover_until_it_is_corrected(tmp_path: Path) -> None:
    async with machine(tmp_path, "groups: [{cuont: 1}]") as sim:
        with pytest.raises(ScenarioError, match="cuont"):
            await sim.discover()
        (tmp_path / "scenario.yaml").write_text("groups: [{count: 1}]")
        await asyncio.wait_for(sim.wait_changed(), 30)
        assert len((await sim.discover()).devices) == 1


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
async def test_the_state_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    os.chown(tmp_path / "state", 65534, 65534)
    with pytest.raises(PydraError, match="belongs to uid 65534"):
        async with machine(tmp_path):
            pass
