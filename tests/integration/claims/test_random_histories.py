"""Random histories of a node against what must hold at every moment and at the end of each.

The hardware itself raises when a device is given to two claims that may not share it.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from pydra.errors import CheckpointError, ClaimError, InternalError
from tests.integration.claims.node import NOTHING, SILENT, Instance, Node

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
    """The scheduler gives a claim other devices, for itself, as a share, or with access that excludes nobody."""

    uid: str
    devices: tuple[str, ...]
    access: str


@dataclass(frozen=True)
class Reboot:
    """The node reboots."""


Event: TypeAlias = Call | Allocate | Reboot

uids = st.lists(st.sampled_from(UIDS), min_size=1, max_size=3, unique=True).map(tuple)
effect = st.just(0) | st.integers(1, 20)
events: st.SearchStrategy[Event] = st.one_of(
    st.builds(Call, prepare=uids, api_down=st.booleans()),
    st.builds(Call, prepare=uids, fails_at=effect, killed_at=effect),
    st.builds(Call, unprepare=uids, fails_at=effect, killed_at=effect),
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

    def __init__(self, root: Path, *, plans: str, durable: bool) -> None:
        self.node = Node(root, step=self._step, plans=plans == "plan", steps=plans == "steps", durable=durable)
        self._fails_at = self._killed_at = 0

    def _step(self, _ref: str) -> None:
        self._fails_at -= 1
        self._killed_at -= 1
        if not self._killed_at:
            raise Killed
        if not self._fails_at:
            raise OSError(errno.EIO, "the disk failed")

    async def run(self, happening: list[Event]) -> None:
        for uid in UIDS:
            self.node.api.allocate(uid, DEVICES[UIDS.index(uid)])
        for event in happening:
            await self._happen(event)
        await self._end()

    async def _happen(self, event: Event) -> None:
        match event:
            case Reboot():
                self.node.reboot()
            case Allocate(uid=uid, devices=devices, access=access):
                share = f"share-of-{uid}" if access == "share" else ""
                self.node.api.allocate(uid, *devices, share=share, admin=access == "admin")
            case Call():
                async with self.node.running() as agent:
                    self._fails_at, self._killed_at = event.fails_at, event.killed_at
                    self.node.api.failure = SILENT if event.api_down else None
                    await self._call(agent, event)
                self.node.api.failure = None
                self._fails_at = self._killed_at = 0

    async def _call(self, agent: Instance, call: Call) -> None:
        calls = [agent.prepare(uid) for uid in call.prepare] + [agent.unprepare(uid) for uid in call.unprepare]
        for outcomes in await asyncio.gather(*calls):
            for outcome in outcomes:
                assert not isinstance(outcome, InternalError) or "OSError" in str(outcome), outcome
        await agent.preparer.queue.wait_idle()

    async def _end(self) -> None:
        """When all is well again every claim can be prepared that has its devices for itself, and all of them end."""
        for uid in UIDS:
            self.node.api.allocate(uid, DEVICES[UIDS.index(uid)])
        async with self.node.running() as agent:
            await agent.garbage.collect()
            await agent.unprepare(*UIDS)
            for outcome in await agent.prepare(*UIDS):
                assert not isinstance(outcome, CheckpointError | ClaimError), outcome
                assert isinstance(outcome, tuple), outcome
            assert await agent.unprepare(*UIDS) == [None] * len(UIDS)
            assert self.node.traces() == NOTHING


@given(st.lists(events, max_size=6), st.sampled_from(["none", "plan", "steps"]), st.booleans())
def test_whatever_happens_no_device_has_two_owners_and_nothing_is_left(
    happening: list[Event], plans: str, durable: bool
) -> None:
    with tempfile.TemporaryDirectory() as root:
        asyncio.run(History(Path(root), plans=plans, durable=durable).run(happening))
    # Finalizers of what a killed instance leaves may log tracebacks, for which Python 3.11 parses source lines. If the
    # collector runs them while hypothesis parses a module, that parse ends with a SystemError.
    gc.collect()
