"""What prepared devices remember, for the day the journal is lost."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pydra import AllocatedDevice, Claim, PreparedDevice
from pydra_nvidia.hardware import ComputeInstance, Gpu, GpuInstance, Placement
from pydra_nvidia.slicing import build_state, entry_from
from pydra_nvidia.steps import CreateMig, Entry, Hold, MigModeOn, StartMps
from pydra_nvidia.targets import Partition, Target, WholeGpu

GPU = Gpu(
    index=0,
    minor=0,
    uuid="GPU-1",
    name="NVIDIA H100 80GB HBM3",
    brand=2,
    architecture=9,
    compute=(9, 0),
    pci="0000:0f:00.0",
    memory=80 << 30,
)
PLACE = Placement(3, 1)
CREATE = CreateMig(gpu="GPU-1", profile=19, profile_name="1g.10gb", placement=PLACE)
MPS = StartMps(id="mps", devices=("GPU-2",), pinned_mib={"GPU-2": 1024})
ENTRY = Entry(
    uid="uid",
    namespace="default",
    name="claim",
    holds=(
        Hold(device="gpu-0-mig-1g10gb-19-3", hardware="0000:0f:00.0", place=PLACE),
        Hold(device="gpu-1", hardware="0000:1f:00.0", config="{}"),
    ),
    steps=(MigModeOn(gpu="GPU-1"), CREATE, MPS),
)
CLAIM = Claim(
    uid="uid",
    namespace="default",
    name="claim",
    devices=(
        AllocatedDevice(request="part", pool="node", device="gpu-0-mig-1g10gb-19-3"),
        AllocatedDevice(request="whole", pool="node", device="gpu-1"),
    ),
)
TARGETS: tuple[Target, ...] = (
    Partition(
        allocated=CLAIM.devices[0],
        gpu=GPU,
        profile_id=19,
        placement=PLACE,
        instance=GpuInstance(
            id=7, profile=19, placement=PLACE, compute=(ComputeInstance(id=0, uuid="MIG-9", slices=1),)
        ),
    ),
    WholeGpu(allocated=CLAIM.devices[1], gpu=GPU),
)


def prepare(entry: Entry = ENTRY) -> list[PreparedDevice]:
    """What the agent has kept as JSON and hands back."""
    states = [json.loads(json.dumps(build_state(entry, target))) for target in TARGETS]
    return [device.prepared(state=state) for device, state in zip(CLAIM.devices, states, strict=True)]


def test_the_devices_together_remember_the_entry_and_the_partitions_uuid() -> None:
    found = entry_from(CLAIM, prepare())
    assert found is not None
    assert found.holds == ENTRY.holds
    assert found.steps == (MigModeOn(gpu="GPU-1"), CreateMig(**{**_fields(CREATE), "uuid": "MIG-9"}), MPS)
    assert (found.uid, found.namespace, found.name) == ("uid", "default", "claim")


def test_the_journal_counts_and_learns_the_uuid() -> None:
    journal = Entry(uid="uid", namespace="default", name="claim", holds=ENTRY.holds[:1], steps=(CREATE,))
    found = entry_from(CLAIM, prepare(), journal)
    assert found is not None
    assert found.holds == ENTRY.holds[:1]
    assert found.steps == (CreateMig(**{**_fields(CREATE), "uuid": "MIG-9"}),)


def test_without_prepared_devices_the_journal_is_all_that_is_known() -> None:
    assert entry_from(CLAIM, []) is None
    assert entry_from(CLAIM, [], ENTRY) == ENTRY


@pytest.mark.parametrize(
    "state",
    [None, 7, "text", [], {}, {"version": 1, "holds": [], "steps": []}, {"version": 2, "steps": [{"step": "x"}]}],
    ids=str,
)
def test_state_of_another_make_is_passed_over(state: Any) -> None:
    prepared = [CLAIM.devices[0].prepared(state=state)]
    assert entry_from(CLAIM, prepared) is None
    assert entry_from(CLAIM, prepared, ENTRY) == ENTRY
    assert entry_from(CLAIM, [*prepared, *prepare()]) is not None


def test_state_of_another_boot_is_passed_over() -> None:
    prepared = prepare(Entry(**{**{name: getattr(ENTRY, name) for name in ENTRY.__struct_fields__}, "boot": "boot-1"}))
    found = entry_from(CLAIM, prepared, boot="boot-1")
    assert found is not None
    assert found.boot == "boot-1"
    assert entry_from(CLAIM, prepared, boot="boot-2") is None
    assert entry_from(CLAIM, prepared, ENTRY, boot="boot-2") == ENTRY, "nor are its UUIDs of this boot"


def _fields(step: CreateMig) -> dict[str, Any]:
    return {name: getattr(step, name) for name in step.__struct_fields__}
