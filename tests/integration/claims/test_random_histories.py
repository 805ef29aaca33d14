"""Random histories of a node against what must hold at every moment and at the end of each.

The hardware itself raises when a device is given to two claims that may not share it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pydra.checkpoint.record import Stage
from pydra.claims.gc import Sweep
from pydra.errors import CheckpointError, ClaimError, InternalError
from tests.integration.claims.fakes import DRIVER, Agent, FakeApi, FakeCdi, FakeNode, ref, running_agent

UIDS = ("a", "b", "c")
DEVICES = ("gpu-0", "gpu-1", "gpu-2")


class Killed(BaseException):
    """The process ends here, with no chance to clean up."""


@dataclass(frozen=True)
class Call:
    """The kubelet calls for these claims, all at once; the n-th effect fails, or kills the process."""

    prepare: tuple[str, ...] = ()
    unprepare: tuple[str, ...] = ()
    fails_at: int = 0
    killed_at: int = 0
    api_down: bool = False


@dataclass(frozen=True)
class Allocate:
    """The scheduler gives a claim other devices, with access that excludes nobody, or a share, or for itself."""

    uid: str
    devices: tuple[str, ...]
    access: str


@dataclass(frozen=True)
class Reboot:
    """The node reboots."""


Event: TypeAlias = Call | Allocate | Reboot

uids = st.lists(st.sampled_from(UIDS), min_size=1, max_size=3, unique=True).map(tuple)
effect = st.just(0) | st.integers(1, 7)
events: st.SearchStrategy[Event] = st.one_of(
    st.builds(Call, prepare=uids, api_down=st.booleans()),
    st.builds(Call, prepare=uids, fails_at=effect, killed_at=effect),
    # Never both: a full disk and a crash in one unprepare can leave a record that looks usable.
    st.builds(Call, unprepare=uids, fails_at=effect),
    st.builds(Call, unprepare=uids, killed_at=effect),
    st.builds(Call, prepare=uids, unprepare=uids, killed_at=effect),
    st.builds(
        Allocate,
        uid=st.sampled_from(UIDS),
        devices=st.lists(st.sampled_from(DEVICES), min_size=1, max_size=2, unique=True).map(tuple),
        access=st.sampled_from(["own", "own", "own", "share", "admin"]),
    ),
    st.just(Reboot()),
)


class History:
    """A node on which events happen."""

    def __init__(self) -> None:
        self.node = FakeNode(step=self._step)
        self.api = FakeApi()
        self.now = Call()
        self.effects = 0
        for number, uid in enumerate(UIDS):
            self.api.allocate(uid, DEVICES[number % len(DEVICES)])

    async def _step(self, name: str, uid: str) -> None:
        self.effects += 1
        await anyio.lowlevel.checkpoint()
        if self.effects == self.now.killed_at:
            raise Killed
        if self.effects == self.now.fails_at:
            raise (CheckpointError if "record" in name or "write" in name else ClaimError)(f"{name} failed")

    def allocate(self, event: Allocate) -> None:
        share = f"share-{event.uid}" if event.access == "share" else ""
        self.api.allocate(event.uid, *event.devices, share=share, admin=event.access == "admin")

    async def call(self, agent: Agent, call: Call) -> None:
        self.now, self.effects, self.api.down = call, 0, call.api_down
        async with anyio.create_task_group() as calls:
            calls.start_soon(self._prepare, agent, call.prepare, set(call.unprepare))
            calls.start_soon(agent.preparer.unprepare, [ref(uid) for uid in call.unprepare])
        await agent.preparer.wait_idle()
        for uid in {*call.unprepare} - {*call.prepare}:
            self.check_at_rest(uid)

    async def _prepare(self, agent: Agent, uids: tuple[str, ...], also_unprepared: set[str]) -> None:
        outcomes = await agent.preparer.prepare([ref(uid) for uid in uids])
        assert set(outcomes) == set(uids), "every claim has an answer"
        for uid, outcome in outcomes.items():
            assert not isinstance(outcome, InternalError), "the hardware, or pydra, found something impossible"
            if isinstance(outcome, tuple) and uid not in also_unprepared:
                assert self.node.records[uid].stage is Stage.COMPLETED
                assert uid in self.node.files
                assert {name for _, name in self.node.hardware[uid]} == {device.device for device in outcome}

    def check_at_rest(self, uid: str) -> None:
        if uid not in self.node.records:
            assert uid not in self.node.files
            assert uid not in self.node.hardware

    async def run(self, history: list[Event]) -> None:
        """Let the events happen; an agent that is killed is followed by another over the same node."""
        left = list(history)
        while left:
            try:
                async with running_agent(self.node, self.api) as agent:
                    while left and not isinstance(left[0], Reboot):
                        match left.pop(0):
                            case Call() as call:
                                await self.call(agent, call)
                            case Allocate() as allocation:
                                self.allocate(allocation)
            except* Killed:
                pass
            while left and isinstance(left[0], Reboot):
                self.node.reboot()
                left.pop(0)

    async def end_well(self) -> None:
        """When all troubles are over a sweep and the kubelet's calls leave nothing."""
        self.now, self.api.down = Call(), False
        async with running_agent(self.node, self.api) as agent:
            sweep = Sweep(
                driver=DRIVER,
                boot_id=self.node.boot_id,
                fetch_claim=self.api.fetch_claim,
                checkpoints=agent.checkpoints,
                cdi=FakeCdi(self.node),
                service=agent.preparer,
            )
            assert (await sweep.sweep()).counts.failed == 0
            assert all(record.stage is Stage.COMPLETED for record in self.node.records.values())
            assert set(self.node.files) <= set(self.node.records)
            assert set(self.node.hardware) <= set(self.node.records)
            outcomes = await agent.preparer.unprepare([ref(uid) for uid in UIDS])
            assert all(outcome is None for outcome in outcomes.values())
            assert self.node.is_empty()
            for uid, device in zip("abc", DEVICES, strict=True):
                self.api.allocate(uid, device)
            again = await agent.preparer.prepare([ref(uid) for uid in "abc"])
            assert all(isinstance(outcome, tuple) for outcome in again.values())


def live_through(history: list[Event]) -> None:
    async def happen() -> None:
        node = History()
        await node.run(history)
        await node.end_well()

    anyio.run(happen)


@settings(max_examples=200, deadline=None)
@given(history=st.lists(events, min_size=3, max_size=20))
def test_whatever_happens_no_device_has_two_owners_and_nothing_leaks(history: list[Event]) -> None:
    live_through(history)


CALLS = {"prepare": Call(prepare=("a",)), "unprepare": Call(unprepare=("a",))}


@pytest.mark.parametrize("effect", range(1, 8))
@pytest.mark.parametrize("how", ["killed_at", "fails_at"])
@pytest.mark.parametrize("what", ["prepare", "unprepare"])
@pytest.mark.parametrize("then", ["prepare", "unprepare"])
def test_a_call_that_ends_at_any_effect_is_followed_by_any_other(effect: int, how: str, what: str, then: str) -> None:
    first = [CALLS["prepare"]] if what == "unprepare" else []
    interrupted: dict[str, Any] = {how: effect}
    live_through([*first, replace(CALLS[what], **interrupted), CALLS[then]])
