"""The engine: steps in order, undone in reverse, and what is held never says too little."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydra import ClaimError, TerminalError
from pydra_nvidia.held_claims import HeldEntries
from pydra_nvidia.step_executor import LeftBehind, StepExecutor, UndoFailed
from pydra_nvidia.steps import BindVfio, Entry, MigModeOn, SetTimeSlice, Step

Behaviour = Callable[[], None]


class Hardware:
    """An applier that keeps what is done; `on_apply` and `on_undo` say what happens at a step instead."""

    def __init__(self) -> None:
        self.done: list[Step] = []
        self.calls: list[tuple[str, Step]] = []
        self.on_apply: dict[Step, BaseException] = {}
        self.on_undo: dict[Step, BaseException] = {}
        self.after: Callable[[], None] = lambda: None

    async def apply(self, step: Step, entry: Entry) -> None:
        self.calls.append(("apply", step))
        if error := self.on_apply.get(step):
            if isinstance(error, LeftBehind) or not isinstance(error, ClaimError):
                self.done.append(step)
            raise error
        if step not in self.done:
            self.done.append(step)

    async def undo(self, step: Step, entry: Entry) -> None:
        self.calls.append(("undo", step))
        if error := self.on_undo.get(step):
            raise error
        if step in self.done:
            self.done.remove(step)

    def executor(self, held: HeldEntries) -> StepExecutor:
        return StepExecutor(held, dict.fromkeys((MigModeOn, SetTimeSlice, BindVfio), self))


STEPS: tuple[Step, ...] = (
    MigModeOn(gpu="GPU-0"),
    SetTimeSlice(gpu="GPU-1", interval=1),
    BindVfio(address="0000:0f:00.0", before="nvidia", target="vfio-pci"),
)
ENTRY = Entry(uid="one", namespace="default", name="claim", steps=STEPS)


def begin() -> tuple[Hardware, HeldEntries, StepExecutor]:
    hardware, held = Hardware(), HeldEntries()
    held.write(ENTRY)
    return hardware, held, hardware.executor(held)


async def test_steps_are_done_in_order_and_undone_in_reverse() -> None:
    hardware, held, executor = begin()
    await executor.carry_out(ENTRY)
    assert hardware.done == list(STEPS)
    assert held.read("one") == ENTRY
    await executor.undo(ENTRY)
    assert hardware.calls[3:] == [("undo", step) for step in reversed(STEPS)]
    assert held.read("one") is None


async def test_carrying_out_twice_does_each_step_once() -> None:
    hardware, _, executor = begin()
    await executor.carry_out(ENTRY)
    await executor.carry_out(ENTRY)
    assert hardware.done == list(STEPS)


@pytest.mark.parametrize("position", range(len(STEPS)))
async def test_a_step_that_is_refused_takes_the_others_back(position: int) -> None:
    hardware, held, executor = begin()
    hardware.on_apply[STEPS[position]] = TerminalError("no such thing")
    with pytest.raises(TerminalError, match="no such thing"):
        await executor.carry_out(ENTRY)
    assert hardware.done == []
    assert held.entries() == {}
    assert ("undo", STEPS[position]) not in hardware.calls, "it left nothing, what is there is somebody else's"


@pytest.mark.parametrize(
    "error", [LeftBehind("half of it is there"), ZeroDivisionError("a bug")], ids=lambda one: type(one).__name__
)
async def test_a_step_that_may_have_left_something_is_undone_too(error: Exception) -> None:
    hardware, held, executor = begin()
    hardware.on_apply[STEPS[1]] = error
    with pytest.raises(type(error)):
        await executor.carry_out(ENTRY)
    assert ("undo", STEPS[1]) in hardware.calls
    assert hardware.done == []
    assert held.entries() == {}


async def test_when_taking_back_fails_too_both_are_told_and_what_is_left_is_known() -> None:
    hardware, held, executor = begin()
    hardware.on_apply[STEPS[2]] = ClaimError("the bus is busy")
    hardware.on_undo[STEPS[1]] = ClaimError("a process lives")
    with pytest.raises(UndoFailed, match=r"the bus is busy.*a process lives"):
        await executor.carry_out(ENTRY)
    assert hardware.done == [STEPS[1]]
    remembered = held.read("one")
    assert remembered is not None
    assert remembered.steps == STEPS[:2], "the steps before it may have waited for it"
    del hardware.on_undo[STEPS[1]]
    await executor.undo(remembered)
    assert hardware.done == []
    assert held.entries() == {}


async def test_one_failing_undo_does_not_keep_the_others_from_being_undone() -> None:
    hardware, held, executor = begin()
    await executor.carry_out(ENTRY)
    hardware.on_undo[STEPS[2]] = ClaimError("busy")
    hardware.on_undo[STEPS[0]] = ClaimError("also busy")
    with pytest.raises(UndoFailed, match="busy; also busy"):
        await executor.undo(ENTRY)
    assert hardware.done == [STEPS[0], STEPS[2]]
    assert held.read("one") == ENTRY


async def test_a_bug_in_one_undo_is_raised_when_the_others_are_undone() -> None:
    hardware, held, executor = begin()
    await executor.carry_out(ENTRY)
    hardware.on_undo[STEPS[2]] = ZeroDivisionError("a bug")
    with pytest.raises(ZeroDivisionError):
        await executor.undo(ENTRY)
    assert hardware.done == [STEPS[2]]
    assert held.read("one") == ENTRY


async def test_undoing_what_was_not_known_remembers_what_could_not_be_undone() -> None:
    hardware, held, executor = begin()
    await executor.carry_out(ENTRY)
    held.remove("one")
    hardware.on_undo[STEPS[0]] = ClaimError("busy")
    with pytest.raises(UndoFailed):
        await executor.undo(ENTRY)
    remembered = held.read("one")
    assert remembered is not None
    assert remembered.steps == STEPS[:1]


async def test_undoing_what_was_never_done_succeeds() -> None:
    hardware, held, executor = begin()
    await executor.undo(ENTRY)
    await executor.undo(ENTRY)
    assert hardware.done == []
    assert held.entries() == {}


@pytest.mark.parametrize("position", range(len(STEPS)))
async def test_a_cancelled_call_leaves_all_of_it_to_the_next_one(position: int) -> None:
    hardware, held, executor = begin()
    hardware.on_apply[STEPS[position]] = asyncio.CancelledError()
    with pytest.raises(asyncio.CancelledError):
        await executor.carry_out(ENTRY)
    assert held.read("one") == ENTRY
    assert not [call for call in hardware.calls if call[0] == "undo"]
    hardware.on_apply.clear()
    await executor.carry_out(ENTRY)
    assert hardware.done.count(STEPS[position]) == 1
    hardware.on_undo[STEPS[position]] = asyncio.CancelledError()
    with pytest.raises(asyncio.CancelledError):
        await executor.undo(ENTRY)
    assert held.read("one") == ENTRY
    hardware.on_undo.clear()
    await executor.undo(ENTRY)
    assert hardware.done == []


@given(
    refused=st.sets(st.integers(0, 2)),
    stuck=st.lists(st.sets(st.integers(0, 2)), max_size=4),
)
def test_whatever_fails_when_in_the_end_nothing_is_left(refused: set[int], stuck: list[set[int]]) -> None:
    async def live() -> None:
        hardware, held, executor = begin()
        hardware.on_apply = {STEPS[one]: ClaimError("refused") for one in refused}
        for failing in [*stuck, set[int]()]:
            hardware.on_undo = {STEPS[one]: ClaimError("busy") for one in failing}
            entry = held.read("one")
            try:
                if entry == ENTRY:
                    await executor.carry_out(ENTRY)
                    await executor.undo(ENTRY)
                elif entry is not None:
                    await executor.undo(entry)
            except ClaimError:
                pass
            remembered = held.read("one")
            known = set() if remembered is None else set(remembered.steps)
            assert set(hardware.done) <= known, "what is held says too little"
        assert hardware.done == []

    asyncio.run(live())
