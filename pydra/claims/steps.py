"""Carries out the steps of claims, and undoes them.

A step is recorded as begun before the backend's `apply` is called, and its result before the next step begins. What
was begun is undone, in reverse order, and nothing else.

Steps of several claims with the same key are one change. Each claim has the step of the first, with the state before
that it recorded; `apply` is called for each of them, and `undo` for the last. Both happen under a lock of the key,
which excludes other tasks and other instances, and under which the record is written. No task holds the locks of two
keys.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from msgspec.structs import replace

from pydra.checkpoint.locks_between_instances import STEPS, find_offset
from pydra.checkpoint.record import Record
from pydra.checkpoint.record_files import find_claim_uid
from pydra.checkpoint.store import RecordStore
from pydra.claim import AllocatedDevice, Claim, ClaimStep, StepStage
from pydra.errors import CheckpointError, ClaimError, ClaimQuarantined, LeftBehind, PydraError, Unavailable, UndoLater

if TYPE_CHECKING:
    from pydra.backends.supervisor import BackendSupervisor

_log = logging.getLogger(__name__)

_LEAST_SECONDS = 5.0
"""What an `undo` has at least, if there is so much time."""


class StepIndex:
    """The steps of all claims, by key and uid; those of this process are known here before the disk has them."""

    def __init__(self) -> None:
        self._steps: dict[str, dict[str, ClaimStep]] = {}
        self._known: dict[str, tuple[ClaimStep, ...]] = {}

    def note(self, uid: str, steps: tuple[ClaimStep, ...]) -> None:
        """Note that the claim has these steps, and no others."""
        if self._known.get(uid, ()) == steps:
            return
        for one in self._known.pop(uid, ()):
            claims = self._steps[one.key]
            del claims[uid]
            if not claims:
                del self._steps[one.key]
        for one in steps:
            self._steps.setdefault(one.key, {})[uid] = one
        if steps:
            self._known[uid] = steps

    def find(self, key: str, *, but: str) -> list[ClaimStep]:
        """Return the steps of other claims with this key; those that are done come first."""
        others = [one for uid, one in sorted(self._steps.get(key, {}).items()) if uid != but]
        return sorted(others, key=lambda one: one.stage is not StepStage.DONE)

    def adopt(self, claim: Claim) -> Claim:
        """Return the claim with the steps that other claims have already as those claims have them.

        So all have the state before the first. Called while nobody else plans.
        """
        others = [next(iter(self.find(one.key, but=claim.uid)), one) for one in claim.steps]
        steps = [replace(one, step=other.step) for one, other in zip(claim.steps, others, strict=True)]
        return replace(claim, steps=tuple(steps))


class StepRunner:
    """The steps of one driver's claims. `may_need` says whether a claim whose record cannot be read may use devices."""

    def __init__(
        self,
        store: RecordStore,
        backend: BackendSupervisor,
        index: StepIndex,
        may_need: Callable[[Claim, Collection[str]], bool],
    ) -> None:
        self._may_need = may_need
        self._store = store
        self._backend = backend
        self._index = index
        self._locks: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()  # those that a task has or wants
        self._clock = asyncio.get_running_loop().time

    async def carry_out(self, record: Record, *, until: float, keep: Callable[[Record], None]) -> Record:
        """Carry out all steps, in order; `keep` is called with the record whenever it changes.

        Raises what a step raised; it and those before it are then as the record says.
        """
        for place in range(len(record.claim.steps)):
            record = await self._apply(record, place, until, keep)
        return record

    async def _apply(self, record: Record, place: int, until: float, keep: Callable[[Record], None]) -> Record:
        step = record.claim.steps[place]
        async with self._locked(step.key, until):
            before = record
            async with self._store:
                others = self._index.find(step.key, but=record.claim.uid)
                result = next((one.result for one in others if one.stage is StepStage.DONE), step.result)
                record = _set_stage(record, place, StepStage.BEGUN, result)
                keep(record)
                await self._store.write(record)
            began = self._clock()
            try:
                result = await self._backend.apply(record.claim, place, until=until)
            except PydraError as error:
                if changed_nothing(error):  # planned as before, or done, if the claim is prepared again
                    keep(await self._note_unchanged(before, place))
                raise
            record = _set_stage(record, place, StepStage.DONE, result)
            keep(record)
            async with self._store:
                await self._store.write(record)
            _log.info("step %s: done in %.0f ms", step.label, (self._clock() - began) * 1000)
            return record

    async def undo(self, record: Record, *, until: float, keep: Callable[[Record], None]) -> Mapping[str, str]:
        """Undo what was begun, last first; return what cannot be undone now: the keys of the steps, and the reasons.

        A step that holds a device of a later one that is still there waits for it. Raises the first other error, when
        all steps have been tried.
        """
        begun = [place for place, one in enumerate(record.claim.steps) if one.stage is not StepStage.PLANNED]
        kept: list[ClaimStep] = []
        later: dict[str, str] = {}
        failed: PydraError | None = None
        for place in reversed(begun):
            step = record.claim.steps[place]
            blocker = next((other for other in kept if _meet(step, other)), None)
            if blocker is not None:
                later[step.key] = f"step {step.label} waits for step {blocker.label}"
                kept.append(step)
                continue
            half = max((self._clock() + until) / 2, self._clock() + _LEAST_SECONDS)
            try:
                record = await self._undo(record, place, until if place == begun[0] else min(half, until))
                keep(record)
            except PydraError as error:
                kept.append(step)
                later[step.key] = f"step {step.label}: {error}"
                if not isinstance(error, UndoLater):
                    failed = failed or error
        if failed is not None:
            raise failed
        return later

    async def _undo(self, record: Record, place: int, until: float) -> Record:
        step = record.claim.steps[place]
        async with self._locked(step.key, until):
            async with self._store:
                others = self._index.find(step.key, but=record.claim.uid)
            began = self._clock()
            if any(one.stage is not StepStage.PLANNED for one in others):
                _log.info("step %s: not undone, another claim has it", step.label)
                return await self._note_undone(record, place)
            for unreadable in self._store.unreadable.values():
                if self._may_need(unreadable.claim, tuple(_list_held(record.claim, (step,)))):
                    raise UndoLater(
                        f"the record of the claim with uid {unreadable.claim.uid} cannot be read ({unreadable.path}), "
                        "and it may need the same; delete the pods of that claim"
                    )
            # Backends may name what they make by the claim's uid, so they get that also when it is left over.
            claim = replace(record.claim, uid=find_claim_uid(record.claim.uid))
            await self._backend.undo(claim, place, until=until)
            _log.info("step %s: undone in %.0f ms", step.label, (self._clock() - began) * 1000)
            return await self._note_undone(record, place)

    async def _note_undone(self, record: Record, place: int) -> Record:
        return await self._note_unchanged(_set_stage(record, place, StepStage.PLANNED, None), place)

    async def _note_unchanged(self, record: Record, place: int) -> Record:
        try:
            async with self._store:
                await self._store.write(record, in_place=True)
        except CheckpointError as error:  # a full disk must not keep a pod from ending, and `undo` is idempotent
            self._index.note(record.claim.uid, record.claim.steps)
            _log.warning("how far step %s has come is not recorded: %s", record.claim.steps[place].label, error)
        return record

    @asynccontextmanager
    async def _locked(self, key: str, until: float) -> AsyncIterator[None]:
        """Exclude other tasks and other instances from steps with this key."""
        offset = find_offset(STEPS, key)
        lock = self._locks.setdefault(offset, asyncio.Lock())
        try:
            async with asyncio.timeout_at(until):
                await lock.acquire()
        except TimeoutError:
            raise Unavailable("timed out waiting for another claim with the same step; try again") from None
        try:
            await self._store.lock.lock(offset, until, waiting_for="carries out the same step")
            try:
                yield
            finally:
                self._store.lock.release_step(offset)
        finally:
            lock.release()


def set_stage(claim: Claim, place: int, stage: StepStage, result: object = None) -> Claim:
    """Return the claim with one step at this stage, with this result."""
    steps = list(claim.steps)
    steps[place] = replace(steps[place], stage=stage, result=result)
    return replace(claim, steps=tuple(steps))


def _set_stage(record: Record, place: int, stage: StepStage, result: object) -> Record:
    return replace(record, claim=set_stage(record.claim, place, stage, result))


def build_left_over(record: Record, later: Mapping[str, str]) -> Record:
    """Return the record of a claim that has ended with what cannot be undone now: steps by key, and the reasons.

    It holds the devices that the steps name, which need not be devices of the claim.
    """
    claim = record.claim
    steps = tuple([one for one in claim.steps if one.key in later])
    names = dict.fromkeys(_list_held(claim, steps))
    devices = [one for one in claim.devices if one.device in names]  # of a device that is shared, every share
    known = {one.device for one in devices}
    devices += [
        AllocatedDevice(request="", pool=claim.devices[0].pool, device=name) for name in names if name not in known
    ]
    consumption = {key: one for key, one in record.consumption.items() if key.rpartition("/")[2] in names}
    return replace(
        record,
        claim=replace(claim, devices=tuple(devices), steps=steps),
        consumption=consumption,
        prepared=(),
        metadata=None,
        left_over="; ".join(later.values()),
    )


def _list_held(claim: Claim, steps: Iterable[ClaimStep]) -> Iterator[str]:
    for one in steps:
        yield from one.holds if one.holds is not None else [device.device for device in claim.devices]


def _meet(one: ClaimStep, other: ClaimStep) -> bool:
    """Whether both steps may concern one device."""
    return one.holds is None or other.holds is None or not set(one.holds).isdisjoint(other.holds)


def changed_nothing(error: PydraError) -> bool:
    """Whether the backend said so, or was not called.

    A claim can also be quarantined because its step crashed, and a call that is repeated may find what the first did.
    """
    said = isinstance(error, ClaimError) and not isinstance(error, LeftBehind | ClaimQuarantined)
    return (said and not error.repeated) or not error.reached_backend
