"""Which of what was begun for a claim is carried on, and which partitions are ours."""

from __future__ import annotations

from typing import Any

import pytest

from pydra_nvidia.hardware import ComputeInstance, Gpu, GpuInstance, Mig, Placement, Reading
from pydra_nvidia.plan import find_owned, go_on
from pydra_nvidia.steps import (
    BindVfio,
    CreateMig,
    Entry,
    Hold,
    MigModeOff,
    MigModeOn,
    SetTimeSlice,
    StartMps,
    Step,
)

PLACE = Placement(0, 1)
PART = CreateMig(gpu="GPU-0", profile=19, profile_name="1g.10gb", placement=PLACE)
SLICE = SetTimeSlice(gpu="GPU-0", interval=1)
BIND = BindVfio(address="0000:0f:00.0", before="nvidia", target="vfio-pci", persistence=True)


def mps(**fields: Any) -> StartMps:
    return StartMps(**{"id": "one-12345", "devices": ("MIG-1",), "thread_percentage": 50, **fields})


def entry(*steps: Step, device: str = "gpu-0") -> Entry:
    return Entry(uid="one", namespace="default", name="claim", holds=(Hold(device=device, hardware="x"),), steps=steps)


@pytest.mark.parametrize(
    ("written", "planned", "carried_out"),
    [
        ((), (), ()),
        ((PART,), (PART,), (PART,)),
        ((mps(),), (mps(id="one-67890", devices=(), partition=("GPU-0", PLACE)),), (mps(),)),
        ((SLICE,), (MigModeOff(gpu="GPU-0"), SLICE), (MigModeOff(gpu="GPU-0"), SLICE)),
        ((PART,), (MigModeOn(gpu="GPU-0"), PART), (MigModeOn(gpu="GPU-0"), PART)),
        ((MigModeOff(gpu="GPU-0"), SLICE), (SLICE,), (SLICE,)),
        ((MigModeOff(gpu="GPU-0"), BIND), (BIND,), (BIND,)),
        ((MigModeOff(gpu="GPU-0"), BIND), (MigModeOff(gpu="GPU-0"), BIND), (MigModeOff(gpu="GPU-0"), BIND)),
        ((BIND,), (BindVfio(address=BIND.address, before="vfio-pci", target="vfio-pci"),), (BIND,)),
    ],
    ids=[
        "nothing to do",
        "the same",
        "another name of the daemon",
        "a mode that is to be left now",
        "a mode that is to be entered now",
        "a mode that need not be left now",
        "a mode that was left before the function was bound",
        "a mode that is not left yet",
        "a function that is bound already",
    ],
)
def test_what_does_the_same_is_carried_on(
    written: tuple[Step, ...], planned: tuple[Step, ...], carried_out: tuple[Step, ...]
) -> None:
    assert go_on(entry(*written), entry(*planned)) == entry(*carried_out)


@pytest.mark.parametrize(
    ("written", "planned"),
    [
        (entry(), entry(PART)),
        (entry(mps()), entry(mps(thread_percentage=20))),
        (entry(SLICE), entry(SetTimeSlice(gpu="GPU-0", interval=2))),
        (entry(device="gpu-1"), entry()),
    ],
    ids=["a partition that is gone", "other limits", "another slice", "another device"],
)
def test_what_does_not_is_undone(written: Entry, planned: Entry) -> None:
    assert go_on(written, planned) is None


def test_a_partition_of_another_profile_where_ours_was_is_not_ours() -> None:
    def reading(profile: int) -> Reading:
        part = GpuInstance(
            id=1, profile=profile, placement=PLACE, compute=(ComputeInstance(id=0, uuid="MIG-1", slices=1),)
        )
        mig = Mig(enabled=True, pending=True, resetless=True, profiles=(), instances=(part,))
        gpu = Gpu(
            index=0,
            minor=0,
            uuid="GPU-0",
            name="NVIDIA H100",
            brand=2,
            architecture=9,
            compute=(9, 0),
            pci="0000:0f:00.0",
            memory=80 << 30,
            mig=mig,
        )
        return Reading(gpus=(gpu,))

    entries = {"one": entry(PART)}
    assert find_owned(entries, reading(19)) == find_owned(entries, Reading()) == {("GPU-0", PLACE)}
    assert find_owned(entries, reading(20)) == frozenset()
