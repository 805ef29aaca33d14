"""The MIG steps on simulated hardware: done, repeated, refused, undone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from nvml_libraries import answer_late
from pydra import ClaimError, LeftBehind
from pydra_nvidia.claim_records import read_entries
from pydra_nvidia.mig.apply_partitions import GpuBusy, NoRoom, PlaceTaken
from pydra_nvidia.mig.vanished_partitions import find_owned
from pydra_nvidia.nvml.errors import Code, NvmlError
from pydra_nvidia.nvml.mig_state import MAKING
from pydra_nvidia.steps import MigModeOn
from step_agent import build_claim

if TYPE_CHECKING:
    from conftest import Node

MakeNode = Callable[..., "Node"]

A30, A100, H100 = {"model": "a30", "mig": True}, {"model": "a100-40gb", "mig": True}, {"model": "h100-80gb"}
GENERATIONS = ({"model": "gb200-186gb"}, H100, A100, A30)


def by_model(gpu: dict[str, Any]) -> str:
    return str(gpu["model"])


def h100(**more: Any) -> dict[str, Any]:
    return {"model": "h100-80gb", "mig": True, **more}


@pytest.mark.parametrize("gpu", GENERATIONS, ids=by_model)
async def test_every_profile_of_every_generation_is_created_filled_and_destroyed(
    node: MakeNode, gpu: dict[str, Any]
) -> None:
    one = node({**gpu, "mig": True})
    profiles = one.read().gpus[0].mig.profiles
    assert len(profiles) >= 5
    for profile in profiles:
        place = profile.placements[-1]
        step = one.create(profile.name, place.start)
        await one.prepare(step)
        (found,) = one.instances()
        assert (found.profile, found.placement) == (profile.id, place)
        assert [compute.slices for compute in found.compute] == [profile.slices]
        await one.agent.undo("one")
        assert one.instances() == ()


async def test_the_balanced_layout_is_made_and_the_mode_follows(node: MakeNode) -> None:
    one = node(H100)
    on = MigModeOn(gpu=one.uuids[0])
    layout = [one.create("3g", 4), one.create("2g", 2), one.create("1g", 1), one.create("1g", 0)]
    for number, step in enumerate(layout):
        await one.prepare(on, step, uid=str(number))
    assert one.places() == sorted((step.profile, step.placement.start) for step in layout)
    for number in range(len(layout)):
        assert one.mode()
        await one.agent.undo(str(number))
    assert not one.mode(), "the last one leaves MIG mode"
    assert one.agent.records == {}


async def test_doing_and_undoing_may_be_repeated(node: MakeNode) -> None:
    one = node(H100)
    entry = await one.prepare(MigModeOn(gpu=one.uuids[0]), one.create("2g", 2))
    before = one.instances()
    for step in entry.steps:
        assert await one.agent.backend.apply(step.step, step.result, entry) == step.result
    assert one.instances() == before, "the same partition, with the same UUID"
    for _ in range(2):
        for step in reversed(entry.steps):
            await one.agent.backend.undo(step.step, step.result, entry)
    assert not one.mode()


async def test_a_gpu_instance_that_a_killed_process_left_half_made_is_completed(node: MakeNode) -> None:
    one = node(h100(instances=[{"profile": "3g.40gb", "start": 4, "compute": []}]))
    (half,) = one.instances()
    assert half.compute == ()
    await one.prepare(one.create("3g", 4))
    (found,) = one.instances()
    assert (found.id, [compute.slices for compute in found.compute]) == (half.id, [3])


async def test_a_partition_of_somebody_else_outlives_the_claim_beside_it(node: MakeNode) -> None:
    one = node(h100(instances=[{"profile": "3g.40gb", "start": 0}]))
    before = one.instances()
    await one.prepare(MigModeOn(gpu=one.uuids[0]), one.create("2g", 4))
    assert len(one.instances()) == 2
    await one.agent.undo("one")
    assert one.instances() == before
    assert one.mode(), "the mode is not left under somebody else's partition"


async def test_a_shared_partition_goes_with_the_last_claim_that_has_it(node: MakeNode) -> None:
    one = node(H100)
    shared = (MigModeOn(gpu=one.uuids[0]), one.create("2g", 0))
    await one.prepare(*shared, uid="first")
    (before,) = one.instances()
    await one.prepare(*shared, uid="second")
    assert one.instances() == (before,)
    await one.agent.undo("first")
    assert one.instances() == (before,)
    await one.agent.undo("second")
    assert one.instances() == ()


async def test_a_place_that_was_taken_meanwhile_is_refused_with_whose_it_is(node: MakeNode) -> None:
    one = node(h100())
    await one.prepare(one.create("2g", 2), uid="other")
    one.inject.create_mig(0, "1g.10gb", 0)
    before = one.instances()
    words = (
        r"there is 1g\.10gb \(profile 19\) at memory slice 0, GPU instance 2, made outside of this driver;"
        r" 2g\.20gb \(profile 14\) at memory slices 2-3, GPU instance 1, of claim default/claim-other"
    )
    with pytest.raises(PlaceTaken, match=r"4g\.40gb cannot be created at memory slices 0-3 .*" + words):
        await one.prepare(one.create("4g", 0))
    assert one.instances() == before
    assert set(one.agent.records) == {"other"}


async def test_a_gpu_without_engines_or_slices_for_it_has_an_error_of_its_own(node: MakeNode) -> None:
    one = node(h100(instances=[{"profile": "1g.10gb+me", "start": 0}]))
    with pytest.raises(NoRoom, match=r"the place is free, but .* it has 1g\.10gb\+me"):
        await one.prepare(one.create("1g.10gb+me", 1))
    assert one.agent.records == {}


async def test_what_somebody_divided_is_neither_used_nor_destroyed(node: MakeNode) -> None:
    one = node(h100(instances=[{"profile": "3g.40gb", "start": 4, "compute": [1, 2]}]))
    before = one.instances()
    step = one.create("3g", 4)
    with pytest.raises(PlaceTaken, match="was divided outside of this driver"):
        await one.prepare(step)
    await one.agent.backend.undo(step, None, build_claim("one", step))
    assert one.instances() == before


async def test_what_has_another_uuid_is_not_destroyed(node: MakeNode) -> None:
    one = node(h100())
    await one.prepare(one.create("2g", 0))
    one.inject.destroy_mig(0, 0)
    one.inject.create_mig(0, "2g.20gb", 0)
    before = one.instances()
    step = one.create("2g", 0)
    await one.agent.backend.undo(step, "MIG-ours", build_claim("one", step))
    assert one.instances() == before


async def test_what_was_divided_is_not_destroyed_although_a_part_has_the_remembered_uuid(node: MakeNode) -> None:
    one = node(h100(instances=[{"profile": "3g.40gb", "start": 4, "compute": [1, 2]}]))
    before = one.instances()
    step, uuid = one.create("3g", 4), before[0].compute[0].uuid
    await one.agent.backend.undo(step, uuid, build_claim("one", step))
    assert one.instances() == before


async def test_partitions_of_the_same_ids_have_the_same_uuid(node: MakeNode) -> None:
    one = node(h100())
    await one.prepare(one.create("2g", 0))
    (ours,) = one.instances()
    one.inject.destroy_mig(0, 0)
    assert one.inject.create_mig(0, "1g.10gb", 5) == ours.compute[0].uuid


async def test_what_appeared_between_the_plan_and_its_step_is_neither_adopted_nor_destroyed(node: MakeNode) -> None:
    one = node(h100())
    await one.prepare(one.create("2g", 2), uid="other")
    one.inject.create_mig(0, "2g.20gb", 0)
    with pytest.raises(PlaceTaken, match="made outside of this driver a moment ago"):
        await one.prepare(one.create("2g", 0))
    assert one.places() == [(14, 0), (14, 2)]
    assert set(one.agent.records) == {"other"}


async def test_a_partition_in_use_is_kept_and_reported_and_destroyed_by_the_next_call(node: MakeNode) -> None:
    one = node(H100)
    await one.prepare(MigModeOn(gpu=one.uuids[0]), one.create("3g", 0))
    one.inject.start_process(0, pid=4711, name="/usr/bin/train", gi=one.instances()[0].id, ci=0)
    with pytest.raises(GpuBusy, match=r"IN_USE.*NVML names train \(pid 4711\)"):
        await one.agent.undo("one")
    assert len(one.instances()[0].compute) == 1
    assert "one" in one.agent.records
    one.inject.end_process(0, 4711)
    await one.agent.undo("one")
    assert one.instances() == ()
    assert not one.mode()


async def test_a_partition_that_is_busy_for_a_moment_only_is_waited_for(node: MakeNode) -> None:
    one = node(h100(), patience=30.0)
    await one.prepare(one.create("3g", 0))
    one.fault(
        {"op": "nvmlComputeInstanceDestroy", "do": "raise", "code": "IN_USE", "count": 1},
        {"op": "nvmlGpuInstanceDestroy", "do": "raise", "code": "IN_USE", "count": 1},
    )
    await one.agent.undo("one")
    assert one.instances() == ()


async def test_without_permission_nothing_is_done_and_root_is_asked_for(node: MakeNode) -> None:
    one = node(H100, privileged=False)
    with pytest.raises(NvmlError, match=r"NO_PERMISSION.*needs root") as caught:
        await one.prepare(MigModeOn(gpu=one.uuids[0]))
    assert caught.value.code == Code.NO_PERMISSION
    assert one.agent.records == {}


@pytest.mark.parametrize(
    ("op", "after"),
    [
        ("nvmlDeviceSetMigMode", "nothing"),
        ("nvmlDeviceCreateGpuInstanceWithPlacement", "nothing"),
        ("nvmlGpuInstanceCreateComputeInstance", "nothing"),
        ("nvmlGpuInstanceCreateComputeInstance", "a reset"),
    ],
)
async def test_a_gpu_that_is_lost_in_the_middle_is_put_right_when_it_answers_again(
    node: MakeNode, op: str, after: str
) -> None:
    one = node(H100)
    entry = build_claim("one", MigModeOn(gpu=one.uuids[0]), one.create("1g", 0))
    one.fault({"op": op, "do": "lost", "count": 1})
    with pytest.raises(ClaimError, match=r"GPU_IS_LOST.*fallen off the bus"):
        await one.agent.carry_out(entry)
    assert all(left.left_over for left in one.agent.held()), "the claim can end"
    one.fault()
    if after == "a reset":
        one.inject.reset(0, force=True)
    else:
        one.inject.answer(0)
    await one.agent.retry()
    assert one.agent.records == {}
    assert one.instances() == ()
    assert not one.mode()


async def test_a_claim_that_ends_while_its_gpu_is_lost_leaves_no_partition_to_strangers(node: MakeNode) -> None:
    one = node(H100)
    step = one.create("1g", 0)
    await one.prepare(MigModeOn(gpu=one.uuids[0]), step)
    one.inject.lose(0)
    await one.agent.undo("one")
    assert [left.left_over for left in one.agent.held()] == [True], "the claim has ended"
    one.inject.answer(0)
    assert find_owned(read_entries(one.agent.held()), one.read()) == {(step.gpu, step.placement)}
    await one.agent.retry()
    assert one.instances() == ()


@pytest.mark.parametrize("counts", [True, False])
async def test_a_claim_that_ends_after_a_restart_with_a_lost_gpu_leaves_no_partition_to_strangers(
    node: MakeNode, *, counts: bool
) -> None:
    one = node(H100, countsLost=counts)
    step = one.create("1g", 0)
    await one.prepare(MigModeOn(gpu=one.uuids[0]), step, holds=[one.hold(0, "gpu-0-mig-1g", step.placement)])
    one.inject.lose(0)
    one.session.close()
    await one.agent.undo("one")
    assert [left.left_over for left in one.agent.held()] == [True], "the claim has ended"
    one.inject.answer(0)
    one.session.close()
    assert find_owned(read_entries(one.agent.held()), one.read()) == {(step.gpu, step.placement)}
    await one.agent.retry()
    assert one.instances() == ()
    assert one.agent.records == {}


async def test_a_claim_ends_for_good_when_its_lost_gpu_has_been_taken_out(node: MakeNode) -> None:
    one = node(H100, {"model": "h100-80gb", "minors": [1]}, countsLost=False)
    step = one.create("1g", 0)
    await one.prepare(MigModeOn(gpu=one.uuids[0]), step, holds=[one.hold(0, "gpu-0-mig-1g", step.placement)])
    one.inject.lose(0)
    one.inject.unplug(0)
    one.session.close()
    await one.agent.undo("one")
    assert one.agent.records == {}


@pytest.mark.parametrize("what", ["unloaded", "reset", "rebooted", "removed"])
async def test_undoing_succeeds_where_the_partition_is_gone_already(node: MakeNode, what: str) -> None:
    one = node(H100)
    await one.prepare(MigModeOn(gpu=one.uuids[0]), one.create("1g", 0))
    match what:
        case "unloaded":
            one.inject.unload_driver(force=True)
        case "reset":
            one.inject.reset(0, force=True)
        case "rebooted":
            one.inject.reboot()
        case "removed":
            one.inject.destroy_mig(0, 0)
    await one.agent.undo("one")
    assert one.agent.records == {}


async def test_a_gpu_instance_that_cannot_be_filled_is_removed_again_although_it_cannot_be_listed(
    node: MakeNode,
) -> None:
    one = node(h100())
    for op, code, count in (
        ("nvmlGpuInstanceCreateComputeInstance", "INSUFFICIENT_RESOURCES", 1),
        ("nvmlGpuInstanceCreateComputeInstance", "IN_USE", 1),
        ("nvmlGpuInstanceGetComputeInstanceProfileInfo*", "UNKNOWN", 18),
    ):
        unlisted = {"op": "nvmlDeviceGetGpuInstances", "do": "raise", "code": code, "after": 1}
        one.fault({"op": op, "do": "raise", "code": code, "count": count}, unlisted)
        with pytest.raises(ClaimError, match=code):
            await one.agent.carry_out(build_claim("one", one.create("3g", 4)))
        one.fault()
        assert (one.instances(), one.agent.records) == ((), {})


@pytest.mark.parametrize("before", [[], [{"profile": "3g.40gb", "start": 4, "compute": []}]], ids=["new", "half made"])
async def test_a_partition_that_was_made_in_spite_of_an_error_is_removed_again(
    node: MakeNode, before: list[Any]
) -> None:
    one = node(h100(instances=before))
    assert len(one.instances()) == len(before)
    answer_late("nvmlGpuInstanceCreateComputeInstance", Code.UNKNOWN)
    with pytest.raises(ClaimError, match="UNKNOWN"):
        await one.agent.carry_out(build_claim("one", one.create("3g", 4)))
    assert (one.instances(), one.agent.records) == ((), {})


async def test_what_cannot_even_be_removed_stays_to_be_undone_by_the_next_call(node: MakeNode) -> None:
    one = node(h100())
    entry = build_claim("one", one.create("3g", 4))
    one.fault(
        {"op": "nvmlGpuInstanceCreateComputeInstance", "do": "raise", "code": "UNKNOWN"},
        {"op": "nvmlGpuInstanceDestroy", "do": "raise", "code": "UNKNOWN"},
    )
    with pytest.raises(LeftBehind, match="removing what was made until then failed"):
        await one.agent.carry_out(entry)
    assert "one" in one.agent.records
    one.fault()
    (half,) = one.instances()
    assert half.compute == ()
    await one.agent.undo("one")
    assert one.instances() == ()


async def test_a_partition_that_cannot_be_looked_at_after_it_was_created_leaves_nothing(node: MakeNode) -> None:
    one = node(h100())
    step = one.create("3g", 4)
    entry = build_claim("one", step)
    one.fault({"op": "nvmlGpuInstanceGetInfo", "do": "raise", "code": "TIMEOUT", "count": 1})
    with pytest.raises(LeftBehind, match="TIMEOUT"):
        await one.agent.carry_out(entry)
    assert one.instances() == ()
    assert one.agent.records == {}


@pytest.mark.parametrize(
    ("op", "code"),
    [
        ("nvmlDeviceGetGpuInstanceById", "NOT_FOUND"),
        ("nvmlDeviceGetGpuInstanceProfileInfo*", "NOT_SUPPORTED"),
        ("nvmlDeviceGetHandleByUUID", "NOT_FOUND"),
        ("nvmlDeviceGetMigMode", "INVALID_ARGUMENT"),
        ("nvmlComputeInstanceGetInfo_v2", "NOT_FOUND"),
        ("nvmlGpuInstanceGetInfo", "NOT_SUPPORTED"),
    ],
)
@pytest.mark.parametrize("call", ["apply", "undo"])
async def test_what_a_driver_denies_for_a_moment_is_not_left_without_a_record(
    node: MakeNode, op: str, code: str, call: str
) -> None:
    one = node(H100)
    for after in range(5):
        denial = {"op": op, "do": "raise", "code": code, "after": after, "count": 2}
        if call == "apply":
            one.fault(denial)
        with suppress(ClaimError):
            await one.prepare(MigModeOn(gpu=one.uuids[0]), one.create("3g", 4))
        if call == "undo":
            one.session.close()
            one.fault(denial)
        with suppress(ClaimError):
            await one.agent.undo("one")
        one.fault()
        assert one.agent.records or (one.instances(), one.mode()) == ((), False), f"after {after} calls"
        for uid in tuple(one.agent.records):
            await one.agent.undo(uid)
        assert (one.instances(), one.mode()) == ((), False), f"after {after} calls"


@pytest.mark.parametrize(
    ("op", "code"),
    [("nvmlComputeInstanceDestroy", "NOT_FOUND"), ("nvmlGpuInstanceGetComputeInstanceById", "INVALID_ARGUMENT")],
)
async def test_a_compute_instance_that_the_driver_keeps_is_reported_with_what_the_driver_said_of_it(
    node: MakeNode, op: str, code: str
) -> None:
    one = node(h100())
    await one.prepare(one.create("3g", 4))
    one.fault({"op": op, "do": "raise", "code": code, "count": 1})
    words = f"{op} for {one.uuids[0]} failed with NVML_ERROR_{code}"
    with pytest.raises(NvmlError, match=words) as caught:
        await one.agent.undo("one")
    assert "processes" not in str(caught.value)
    await one.agent.undo("one")
    assert one.instances() == ()


async def test_an_old_driver_without_the_symbol_is_reported(node: MakeNode) -> None:
    one = node(h100(), missing=["nvmlDeviceCreateGpuInstanceWithPlacement"])
    with pytest.raises(NvmlError, match=r"FUNCTION_NOT_FOUND.*too old"):
        await one.prepare(one.create("3g", 4))
    assert one.agent.records == {}


@pytest.mark.parametrize(
    "driver",
    [
        {"namedProfilesWhenOff": False},
        {"missing": ["nvmlDeviceGetGpuInstanceProfileInfoV"]},
        {"missing": ["nvmlDeviceGetGpuInstanceProfileInfo"]},
        {"missing": ["nvmlGpuInstanceGetComputeInstanceProfileInfoV"]},
        {"missing": ["nvmlGpuInstanceGetComputeInstanceProfileInfo"]},
    ],
    ids=str,
)
async def test_partitions_are_made_with_either_version_of_the_profiles(node: MakeNode, driver: dict[str, Any]) -> None:
    one = node(H100, **driver)
    await one.prepare(MigModeOn(gpu=one.uuids[0]), one.create("3g", 4))
    assert one.places() == [(9, 4)]
    await one.agent.undo("one")
    assert one.instances() == ()
    assert not one.mode()


async def test_a_function_that_a_driver_refuses_leaves_nothing_behind(node: MakeNode) -> None:
    one = node(H100)
    steps = MigModeOn(gpu=one.uuids[0]), one.create("3g", 4)
    for symbol in MAKING:
        one.fault({"op": symbol, "do": "raise", "code": "NOT_SUPPORTED"})
        with suppress(ClaimError):  # a function that only undoing needs is not missed before
            await one.agent.carry_out(build_claim("one", *steps))
        one.fault()
        await one.agent.undo("one")
        assert (one.instances(), one.mode(), one.agent.records) == ((), False, {}), symbol


async def test_claims_on_different_gpus_are_prepared_side_by_side(node: MakeNode) -> None:
    one = node({"model": "h100-80gb", "count": 4})
    claims = [
        (MigModeOn(gpu=one.uuids[minor]), one.create("1g", start, minor)) for minor in range(4) for start in range(3)
    ]
    await asyncio.gather(*(one.prepare(*steps, uid=str(n)) for n, steps in enumerate(claims)))
    assert [one.places(minor) for minor in range(4)] == [[(19, 0), (19, 1), (19, 2)]] * 4
    await asyncio.gather(*(one.agent.undo(str(n)) for n in range(len(claims))))
    assert [one.mode(minor) for minor in range(4)] == [False] * 4
