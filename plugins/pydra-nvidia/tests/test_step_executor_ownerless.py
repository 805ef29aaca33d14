"""What cannot be undone because nobody is there to be told: the claim goes, and its steps wait without an owner."""

from __future__ import annotations

import pytest

from pydra import ClaimError, PydraError
from pydra_nvidia.hardware_types import Placement
from pydra_nvidia.held_claims import HeldEntries
from pydra_nvidia.host.driver_root import DriverMissing
from pydra_nvidia.nvml.errors import Code, NvmlError
from pydra_nvidia.step_executor import LeftBehind, StepExecutor, UndoFailed
from pydra_nvidia.steps import BindVfio, CreateMig, Entry, Hold, MigModeOn, StartMps, Step

PART = CreateMig(gpu="GPU-0", profile=19, profile_name="1g.10gb", placement=Placement(0, 1))
STEPS: tuple[Step, ...] = (
    MigModeOn(gpu="GPU-0"),
    PART,
    StartMps(id="mps", devices=("GPU-1",), pinned_mib={"GPU-1": 1024}),
    BindVfio(address="0000:0f:00.0", before="nvidia", target="vfio-pci"),
)
ENTRY = Entry(
    uid="one", namespace="default", name="claim", holds=(Hold(device="gpu-0", hardware="0000:0e:00.0"),), steps=STEPS
)
MISMATCH = NvmlError(Code.LIB_RM_VERSION_MISMATCH, "nvmlInitWithFlags")


class Hardware:
    """An applier that keeps what is done; `refusals` are what undoing a step raises."""

    def __init__(self) -> None:
        self.done: list[Step] = []
        self.refusals: dict[int, list[Exception]] = {}
        self.refused: dict[int, Exception] = {}

    async def apply(self, step: Step, _entry: Entry) -> None:
        if error := self.refused.get(STEPS.index(step)):
            raise error
        self.done.append(step)

    async def undo(self, step: Step, _entry: Entry) -> None:
        if waiting := self.refusals.get(STEPS.index(step)):
            raise waiting.pop(0) if len(waiting) > 1 else waiting[0]
        if step in self.done:
            self.done.remove(step)


class Node:
    def __init__(self) -> None:
        self.hardware, self.held = Hardware(), HeldEntries()
        self.executor = StepExecutor(self.held, dict.fromkeys(map(type, STEPS), self.hardware))
        self.held.write(ENTRY)


@pytest.fixture
async def node() -> Node:
    node = Node()
    await node.executor.carry_out(ENTRY)
    return node


@pytest.mark.parametrize(
    "error",
    [
        MISMATCH,
        NvmlError(Code.LIBRARY_NOT_FOUND, "nvmlInitWithFlags"),
        DriverMissing("no driver"),
        NvmlError(Code.GPU_IS_LOST, "nvmlDeviceGetHandleByUUID"),
    ],
    ids=["libraries of another version", "no library", "no installation", "a lost GPU"],
)
async def test_a_claim_that_cannot_be_undone_now_ends_and_what_is_left_is_undone_later(
    node: Node, error: Exception
) -> None:
    node.hardware.refusals = {1: [error], 2: [error]}
    await node.executor.undo(ENTRY)
    assert node.hardware.done == [PART, STEPS[2]]
    (left,) = node.held.entries().values()
    assert left.steps == (PART, STEPS[2])
    assert left.ownerless
    assert left.holds == (), "others may have the devices"
    assert node.held.staying("another") == (), "nothing is kept for it"
    (problem,) = await node.executor.undo_ownerless()
    assert problem.startswith(f"what claim default/claim left is not undone yet: {error}")
    assert node.held.entries() == {left.uid: left}
    node.hardware.refusals.clear()
    assert await node.executor.undo_ownerless() == ()
    assert node.hardware.done == []
    assert node.held.entries() == {}


async def test_a_session_that_ended_is_opened_anew_before_anything_is_left(node: Node) -> None:
    node.hardware.refusals = {1: [NvmlError(Code.UNINITIALIZED, "nvmlDeviceGetCount"), MISMATCH]}
    await node.executor.undo(ENTRY)
    assert [left.steps for left in node.held.entries().values()] == [(PART,)]


async def test_a_claim_that_leaves_something_twice_leaves_all_of_it(node: Node) -> None:
    node.hardware.refusals = {1: [MISMATCH]}
    await node.executor.undo(ENTRY)
    node.hardware.refusals = {1: [MISMATCH], 2: [MISMATCH]}
    node.held.write(ENTRY)
    await node.executor.undo(ENTRY)
    assert [left.steps for left in node.held.entries().values()] == [(PART, STEPS[2])]


async def test_what_is_busy_keeps_the_claim_with_all_that_is_left(node: Node) -> None:
    node.hardware.refusals = {1: [MISMATCH], 2: [ClaimError("a process lives")]}
    with pytest.raises(UndoFailed, match="a process lives"):
        await node.executor.undo(ENTRY)
    left = node.held.read("one")
    assert left is not None
    assert left.steps == STEPS[:3]
    assert list(node.held.entries()) == ["one"]


async def test_a_function_that_another_claim_has_by_now_is_not_taken_from_it(node: Node) -> None:
    node.hardware.refusals = {3: [DriverMissing("no driver")]}
    await node.executor.undo(ENTRY)
    node.hardware.refusals.clear()
    node.held.write(Entry(uid="two", namespace="default", name="two", steps=STEPS[3:]))
    assert await node.executor.undo_ownerless() == ()
    assert node.hardware.done == [STEPS[3]]
    assert list(node.held.entries()) == ["two"]


@pytest.mark.parametrize("failed", [MISMATCH, DriverMissing("no driver"), PydraError("anything")], ids=str)
async def test_what_went_wrong_first_is_told_whatever_undoing_says(failed: PydraError) -> None:
    node = Node()
    node.hardware.refused = {2: LeftBehind("the daemon does not answer")}
    node.hardware.refusals = {0: [failed]}
    with pytest.raises(ClaimError, match="the daemon does not answer"):
        await node.executor.carry_out(ENTRY)
