"""What the backend finds when it starts, and what it does about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from pydra import AllocatedDevice, Claim
from pydra_nvidia.claim_records import Hold, build_data, read_entries
from pydra_nvidia.hardware_types import VGPU_GUEST, Placement, Reading
from pydra_nvidia.mig.reconcile_partitions import plan_cleanup, reconcile
from pydra_nvidia.settings import Orphans, Settings
from pydra_nvidia.steps import MigModeOn
from step_agent import build_claim

if TYPE_CHECKING:
    from conftest import Node

MakeNode = Callable[..., "Node"]

STATIC = Settings()
ADOPT = Settings(dynamic_mig=True)
REMOVE = Settings(dynamic_mig=True, orphans=Orphans.REMOVE)

WHOLE, HALF = {"profile": "2g.20gb", "start": 0}, {"profile": "3g.40gb", "start": 4, "compute": []}


def h100(*instances: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "h100-80gb", "mig": True, "instances": instances, **more}


def hold_claim(uid: str, hold: Hold) -> Claim:
    """A claim that has this, without any step."""
    device = AllocatedDevice(request="r", pool="node", device=hold.device, admin_access=hold.admin)
    return replace(build_claim(uid, data=build_data([hold])), devices=(device,))


async def clean(node: Node, settings: Settings, reading: Reading | None = None) -> tuple[str, ...]:
    """As at a start."""
    reading = reading or node.read()
    node.session.close()
    return await reconcile(node.session, read_entries(node.agent.held()), reading, settings=settings)


async def test_a_node_in_order_has_nothing_to_report(node: MakeNode) -> None:
    one = node({"model": "h100-80gb"}, {"model": "t4", "minors": [1]})
    for settings in (STATIC, ADOPT, REMOVE):
        assert await clean(one, settings) == ()
    assert await reconcile(one.session, (), Reading(), settings=REMOVE) == ()


@pytest.mark.parametrize(
    "settings", [STATIC, ADOPT, Settings(orphans=Orphans.REMOVE)], ids=["static", "adopt", "remove without dynamic"]
)
async def test_partitions_that_nobody_claims_are_left_and_logged(node: MakeNode, settings: Settings) -> None:
    one = node(h100(WHOLE, HALF))
    before = one.instances()
    whole, half = await clean(one, settings)
    assert one.instances() == before
    assert one.mode()
    assert whole == "2g.20gb (profile 14) at memory slices 0-1, GPU instance 1, of gpu-0, is adopted: no claim has it"
    assert half.endswith("no claim has it, and without a compute instance nothing can use it")


async def test_partitions_that_nobody_claims_are_removed_where_the_admin_chose_so(node: MakeNode) -> None:
    one = node(h100(WHOLE, HALF))
    whole, half, mode = await clean(one, REMOVE)
    assert one.instances() == ()
    assert not one.mode(), "a GPU without partitions leaves MIG mode"
    assert whole == "removed 2g.20gb (profile 14) at memory slices 0-1, GPU instance 1, of gpu-0, which no claim has"
    assert "at memory slices 4-7" in half
    assert mode == f"{one.uuids[0]} left MIG mode: no partition is on it"


async def test_a_partition_in_use_is_not_removed(node: MakeNode) -> None:
    one = node(h100(WHOLE, HALF))
    one.inject.start_process(0, pid=7, gi=1, ci=0)
    kept, removed = await clean(one, REMOVE)
    assert one.places() == [(14, 0)]
    assert "could not be removed" in kept
    assert "IN_USE" in kept
    assert removed.startswith("removed")
    assert one.mode()


@pytest.mark.parametrize("settings", [ADOPT, REMOVE], ids=["adopt", "remove"])
async def test_what_claims_made_or_have_is_theirs(node: MakeNode, settings: Settings) -> None:
    one = node(h100(WHOLE, HALF))
    made = one.create("3g", 4)
    one.agent.note(build_claim("maker", made))
    static = one.hold(0, "gpu-0-mig-2g20gb-14-0", Placement(0, 2))
    one.agent.note(hold_claim("user", static))
    before = one.instances()
    assert await clean(one, settings) == ()
    assert one.instances() == before


async def test_while_the_plan_of_one_claim_is_not_known_nothing_is_called_ownerless(node: MakeNode) -> None:
    one = node(h100(WHOLE), h100(minors=[1]))
    device = AllocatedDevice(request="r", pool="node", device="gpu-0")
    strange = Claim(uid="one", namespace="default", name="claim", devices=(device,), plan={"steps": [{"step": "x"}]})
    for unknown in (strange, replace(strange, plan=None)):
        one.agent.note(unknown, completed=True)
        assert [line.endswith("is adopted: no claim has it") for line in await clean(one, REMOVE)] == [True]
        assert one.places() == [(14, 0)]
        assert one.mode(1)
    one.agent.records.clear()
    assert (await clean(one, REMOVE))[0].startswith("removed")


@pytest.mark.parametrize("settings", [ADOPT, REMOVE], ids=["adopt", "remove"])
async def test_an_empty_gpu_leaves_mig_mode_unless_a_claim_has_it(node: MakeNode, settings: Settings) -> None:
    one = node(h100(), h100(minors=[1]), {"model": "a100-40gb", "mig": True, "minors": [2]})
    one.agent.note(hold_claim("begun", one.hold(1, "gpu-1-mig-1g10gb-19-0", Placement(0, 1))))
    (line,) = await clean(one, settings)
    assert line.startswith(f"{one.uuids[0]} left MIG mode")
    assert [one.mode(minor) for minor in range(3)] == [False, True, True]


def test_the_mode_of_an_empty_gpu_in_a_vgpu_guest_is_the_hypervisors(node: MakeNode) -> None:
    (gpu,) = node(h100()).read().gpus
    guest = replace(gpu, virtualization=VGPU_GUEST)
    assert plan_cleanup(Reading(gpus=(gpu, guest)), (), settings=ADOPT).empty == (gpu,)


async def test_a_static_node_keeps_its_mode(node: MakeNode) -> None:
    one = node(h100())
    assert await clean(one, STATIC) == ()
    assert one.mode()


async def test_a_mode_that_cannot_be_left_is_reported_and_no_failure(node: MakeNode) -> None:
    one = node(h100())
    one.inject.start_process(0, pid=7, name="dcgm")
    (line,) = await clean(one, ADOPT)
    assert "could not leave MIG mode" in line


async def test_a_partition_that_vanished_needs_nothing_when_its_claim_ends(node: MakeNode) -> None:
    one = node({"model": "h100-80gb"})
    await one.prepare(MigModeOn(gpu=one.uuids[0]), one.create("2g", 2))
    assert await clean(one, ADOPT) == ()
    one.inject.reboot()
    assert await clean(one, ADOPT) == ()
    one.session.close()
    await one.agent.undo("one")
    assert one.agent.records == {}


async def test_what_was_replaced_after_the_decision_stays(node: MakeNode) -> None:
    one = node(h100(WHOLE))
    reading = one.read()
    assert len(plan_cleanup(reading, (), settings=REMOVE).remove) == 1
    one.inject.destroy_mig(0, 0)
    one.inject.create_mig(0, "1g.10gb", 0)
    assert await clean(one, REMOVE, reading) == ()
    assert one.places() == [(19, 0)]


async def test_who_has_admin_access_owns_nothing(node: MakeNode) -> None:
    one = node(h100(WHOLE), h100(minors=[1]))
    for minor in (0, 1):
        one.agent.note(hold_claim(f"monitor-{minor}", one.hold(minor, f"gpu-{minor}", admin=True)))
    await clean(one, REMOVE)
    assert one.places() == []
    assert not one.mode(0)
    assert not one.mode(1)
