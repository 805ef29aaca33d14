"""What the backend finds when it starts, and what it does about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from pydra import AllocatedDevice, Claim, HeldClaim
from pydra_nvidia.hardware_types import Placement, Reading
from pydra_nvidia.mig.reconcile_partitions import Report, plan_cleanup, reconcile
from pydra_nvidia.settings import Orphans, Settings
from pydra_nvidia.simulation.state import Process
from pydra_nvidia.steps import Entry, Hold, MigModeOn

if TYPE_CHECKING:
    from conftest import Node

MakeNode = Callable[..., "Node"]

STATIC = Settings()
ADOPT = Settings(dynamic_mig=True)
REMOVE = Settings(dynamic_mig=True, orphans=Orphans.REMOVE)

WHOLE, HALF = {"profile": "2g.20gb", "start": 0}, {"profile": "3g.40gb", "start": 4, "compute": []}


def h100(*instances: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "h100-80gb", "mig": True, "instances": instances, **more}


async def clean(node: Node, settings: Settings, reading: Reading | None = None) -> Report:
    """As at a start."""
    reading = reading or node.read()
    node.session.close()
    return await reconcile(node.session, node.held, reading, settings=settings)


async def test_a_node_in_order_has_nothing_to_report(node: MakeNode) -> None:
    one = node({"model": "h100-80gb"}, {"model": "t4", "minors": [1]})
    for settings in (STATIC, ADOPT, REMOVE):
        report = await clean(one, settings)
        assert (report, report.lines()) == (Report(), ())
    assert await reconcile(one.session, one.held, Reading(), settings=REMOVE) == Report()


@pytest.mark.parametrize(
    "settings", [STATIC, ADOPT, Settings(orphans=Orphans.REMOVE)], ids=["static", "adopt", "remove without dynamic"]
)
async def test_partitions_that_nobody_claims_are_left_and_told(node: MakeNode, settings: Settings) -> None:
    one = node(h100(WHOLE, HALF))
    before = one.instances()
    report = await clean(one, settings)
    assert one.instances() == before
    assert one.mode()
    assert (report.removed, report.modes_off, report.problems) == ((), (), ())
    whole, half = report.left
    assert whole == "2g.20gb (profile 14) at memory slices 0-1, GPU instance 1, of gpu-0, is adopted: no claim has it"
    assert half.endswith("no claim has it, and without a compute instance nothing can use it")


async def test_partitions_that_nobody_claims_are_removed_where_the_admin_chose_so(node: MakeNode) -> None:
    one = node(h100(WHOLE, HALF))
    report = await clean(one, REMOVE)
    assert one.instances() == ()
    assert not one.mode(), "a GPU without partitions leaves MIG mode"
    assert [orphan.instance.placement for orphan in report.removed] == [Placement(0, 2), Placement(4, 4)]
    assert report.modes_off == (one.uuids[0],)
    assert len(report.lines()) == 3


async def test_a_partition_in_use_is_not_removed(node: MakeNode) -> None:
    one = node(h100(WHOLE, HALF))
    one.inject.start_process(0, Process(pid=7, gi=1, ci=0))
    report = await clean(one, REMOVE)
    assert one.places() == [(14, 0)]
    assert len(report.removed) == 1
    assert "could not be removed" in report.problems[0]
    assert "IN_USE" in report.problems[0]
    assert one.mode()


@pytest.mark.parametrize("settings", [ADOPT, REMOVE], ids=["adopt", "remove"])
async def test_what_claims_made_or_have_is_theirs(node: MakeNode, settings: Settings) -> None:
    one = node(h100(WHOLE, HALF))
    made = one.create("3g", 4)
    one.held.write(Entry(uid="maker", namespace="default", name="maker", steps=(made,)))
    static = Hold(device="gpu-0-mig-2g20gb-14-0", hardware=one.read().gpus[0].pci, place=Placement(0, 2))
    one.held.write(Entry(uid="user", namespace="default", name="user", holds=(static,)))
    before = one.instances()
    report = await clean(one, settings)
    assert one.instances() == before
    assert (report.removed, report.left) == ((), ())
    assert "made for claim default/maker, is not there" in report.problems[0], "it is half made"


async def test_while_the_plan_of_one_claim_is_not_known_nothing_is_called_ownerless(node: MakeNode) -> None:
    one = node(h100(WHOLE), h100(minors=[1]))
    device = AllocatedDevice(request="r", pool="node", device="gpu-0")
    strange = Claim(uid="one", namespace="default", name="claim", devices=(device,), plan={"steps": [{"step": "x"}]})
    for unknown in (strange, replace(strange, plan=None)):
        one.held.restore([HeldClaim(claim=unknown, completed=True)])
        report = await clean(one, REMOVE)
        assert one.places() == [(14, 0)]
        assert one.mode(1)
        assert report.removed == report.modes_off == ()
    one.held.restore([])
    assert len((await clean(one, REMOVE)).removed) == 1


async def test_what_a_claim_came_to_have_after_the_decision_stays(node: MakeNode) -> None:
    one = node(h100(WHOLE), h100(minors=[1]))
    reading = one.read()
    one.session.close()
    found = one.held.entries

    def begun_meanwhile() -> Mapping[str, Entry]:
        before = found()
        for gpu, place in zip(reading.gpus, (Placement(0, 2), Placement(0, 1)), strict=True):
            hold = Hold(device="a partition", hardware=gpu.pci, place=place)
            one.held.write(Entry(uid=f"late-{gpu.minor}", namespace="default", name="late", holds=(hold,)))
        one.held.entries = found  # type: ignore[method-assign]
        return before

    one.held.entries = begun_meanwhile  # type: ignore[method-assign]
    report = await reconcile(one.session, one.held, reading, settings=REMOVE)
    assert one.places() == [(14, 0)]
    assert one.mode(1)
    assert (report.removed, report.modes_off) == ((), ())


@pytest.mark.parametrize("settings", [ADOPT, REMOVE], ids=["adopt", "remove"])
async def test_an_empty_gpu_leaves_mig_mode_unless_a_claim_has_it(node: MakeNode, settings: Settings) -> None:
    one = node(h100(), h100(minors=[1]), {"model": "a100-40gb", "mig": True, "minors": [2]})
    pci = {gpu.minor: gpu.pci for gpu in one.read().gpus}
    begun = Entry(
        uid="begun",
        namespace="default",
        name="begun",
        holds=(Hold(device="gpu-1-mig-1g10gb-19-0", hardware=pci[1], place=Placement(0, 1)),),
        steps=(MigModeOn(gpu=one.uuids[1]),),
    )
    one.held.write(begun)
    report = await clean(one, settings)
    assert report.modes_off == (one.uuids[0],)
    assert [one.mode(minor) for minor in range(3)] == [False, True, True]


async def test_a_static_node_keeps_its_mode(node: MakeNode) -> None:
    one = node(h100())
    assert await clean(one, STATIC) == Report()
    assert one.mode()


async def test_a_mode_that_cannot_be_left_is_told_and_no_failure(node: MakeNode) -> None:
    one = node(h100())
    one.inject.start_process(0, Process(pid=7, name="dcgm"))
    report = await clean(one, ADOPT)
    assert report.modes_off == ()
    assert "could not leave MIG mode" in report.problems[0]


async def test_a_partition_that_vanished_is_told_made_again_by_prepare_and_forgotten_by_unprepare(
    node: MakeNode,
) -> None:
    one = node({"model": "h100-80gb"})
    entry = await one.prepare(MigModeOn(gpu=one.uuids[0]), one.create("2g", 2))
    assert (await clean(one, ADOPT)).lines() == ()
    one.inject.reboot()
    report = await clean(one, ADOPT)
    (line,) = report.lines()
    assert line.startswith("the partition 2g.20gb at memory slice 2 of gpu-0, made for claim default/claim-one, is not")
    await one.executor.carry_out(entry)
    assert one.places() == [(14, 2)]
    one.session.close()
    one.inject.reset(0, force=True)
    await one.executor.undo(entry)
    assert one.held.entries() == {}


async def test_what_was_replaced_after_the_decision_stays(node: MakeNode) -> None:
    one = node(h100(WHOLE))
    reading = one.read()
    assert len(plan_cleanup(reading, {}, complete=True, settings=REMOVE).remove) == 1
    one.inject.destroy_mig(0, 0)
    one.inject.create_mig(0, "1g.10gb", 0)
    report = await clean(one, REMOVE, reading)
    assert one.places() == [(19, 0)]
    assert report == Report()


async def test_who_has_admin_access_owns_nothing(node: MakeNode) -> None:
    one = node(h100(WHOLE), h100(minors=[1]))
    for gpu in one.read().gpus:
        look = Hold(device=f"gpu-{gpu.minor}", hardware=gpu.pci, admin=True)
        one.held.write(Entry(uid=f"monitor-{gpu.minor}", namespace="default", name="monitor", holds=(look,)))
    report = await clean(one, REMOVE)
    assert one.places() == []
    assert set(report.modes_off) == set(one.uuids.values())
