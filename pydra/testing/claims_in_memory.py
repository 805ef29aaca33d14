"""The claims of an agent without kubelet, API server and disk: for checks of backends, debuggers and tests."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from pydra.checkpoint.record import Record, Stage
from pydra.claim import Claim, HeldClaim, PreparedDevice, StepStage
from pydra.claims.steps import StepIndex, StepRunner
from pydra.errors import UndoLater

if TYPE_CHECKING:
    from pydra.backends.supervisor import BackendSupervisor

_SECONDS = 3600.0


class CallsInProcess(ABC):
    """The calls of a backend's coroutines in this process, which `call` awaits, as a `BackendSupervisor` has them."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend

    async def call(self, _name: str, call: Coroutine[Any, Any, Any]) -> Any:
        """Return what the coroutine returns."""
        return await call

    @abstractmethod
    async def plan(self, claim: Claim, *, until: float) -> Claim:
        """Return the claim with its plan and its steps."""

    async def apply(self, claim: Claim, step: int, *, until: float) -> Any:  # noqa: D102
        one = claim.steps[step]
        return await self.call(f"apply of {one.label}", self.backend.apply(one.step, one.result, claim))

    async def undo(self, claim: Claim, step: int, *, until: float) -> None:  # noqa: D102
        one = claim.steps[step]
        await self.call(f"undo of {one.label}", self.backend.undo(one.step, one.result, claim))

    async def prepare(self, claim: Claim, *, until: float) -> tuple[PreparedDevice, ...]:  # noqa: D102
        return tuple(await self.call("prepare", self.backend.prepare(claim)))

    async def unprepare(  # noqa: D102
        self, claim: Claim, prepared: Sequence[PreparedDevice], *, until: float
    ) -> None:
        if getattr(self.backend, "unprepare", None) is not None:
            await self.call("unprepare", self.backend.unprepare(claim, prepared))


class ClaimsInMemory:
    """What is held of one driver, by uid in `records`; the agent's own code carries out the steps and undoes them."""

    def __init__(self, calls: BackendSupervisor | CallsInProcess, records: dict[str, HeldClaim] | None = None) -> None:
        self.records = {} if records is None else records
        self._calls = calls
        self._index = StepIndex()
        self._indexed: set[str] = set()
        self._runner: StepRunner | None = None

    def deadline(self) -> float:
        """When a call that begins now must have ended."""
        return asyncio.get_running_loop().time() + _SECONDS

    def keep(self, held: HeldClaim) -> None:
        """Keep the record of a claim."""
        self.records[held.claim.uid] = held

    def forget(self, claim: Claim) -> None:
        """Do not hold the claim any more."""
        self.records.pop(claim.uid, None)

    def note(self, claim: Claim, prepared: Sequence[PreparedDevice] = (), *, completed: bool = False) -> None:
        """Hold the claim as it is now."""
        self.keep(HeldClaim(claim=claim, prepared=tuple(prepared), completed=completed))

    async def plan(self, claim: Claim) -> Claim:
        """Return the claim with its plan and its steps, held from now on; a held claim keeps them."""
        if claim.uid not in self.records:
            planned = await self.ask_plan(claim)
            self._steps()
            self.note(self._index.adopt(planned))
        return self.records[claim.uid].claim

    async def ask_plan(self, claim: Claim) -> Claim:
        """Have the backend plan the claim."""
        return await self._calls.plan(claim, until=self.deadline())

    async def carry_out(self, claim: Claim) -> Claim:
        """Carry out the steps of a planned claim; after a failure, what was begun stays held."""
        runner = self._steps()
        self.note(self._index.adopt(claim))
        record = _build_record(self.records[claim.uid])
        return (await runner.carry_out(record, until=self.deadline(), keep=self._keep)).claim

    async def hold(self, claim: Claim) -> tuple[PreparedDevice, ...]:
        """Plan, carry out the steps and prepare; what is begun is held from before that on, also if it fails."""
        planned = await self.plan(claim)
        if any(one.stage is not StepStage.DONE for one in planned.steps):
            planned = await self.carry_out(planned)
        prepared = tuple(await self._calls.prepare(planned, until=self.deadline()))
        self.note(planned, prepared, completed=True)
        return prepared

    async def release(self, claim: Claim, prepared: Sequence[PreparedDevice] = ()) -> None:
        """Unprepare and undo the steps; without `prepared` as if `prepare` had not ended."""
        held = self.records.get(claim.uid)
        await self._calls.unprepare(claim if held is None else held.claim, prepared, until=self.deadline())
        await self.undo(claim.uid)

    async def undo(self, uid: str) -> None:
        """Undo what was begun for the claim, last first, and forget it."""
        if (held := self.records.get(uid)) is None:
            return
        latest = _build_record(replace(held, completed=False))
        self._keep(latest)

        def keep(record: Record) -> None:
            nonlocal latest
            latest = record
            self._keep(record)

        if later := await self._steps().undo(latest, until=self.deadline(), keep=keep):
            self.leave(latest, later)
        else:
            self.forget(latest.claim)

    def leave(self, _record: Record, later: Mapping[str, str]) -> None:
        """Deal with steps that cannot be undone now, by default as with any other error."""
        raise UndoLater("; ".join(later.values()))

    def _keep(self, record: Record) -> None:
        if self.records.get(record.claim.uid) != (held := record.held()):
            self.keep(held)
        self._index_steps()

    def _steps(self) -> StepRunner:
        """Return the agent's code, which knows all steps of the records as they are now."""
        if self._runner is None:
            store = cast("Any", _Records(self._keep))
            self._runner = StepRunner(store, cast("Any", self._calls), self._index, lambda _claim, _names: True)
        self._index_steps()
        return self._runner

    def _index_steps(self) -> None:
        for uid in self._indexed | self.records.keys():
            self._index.note(uid, self.records[uid].claim.steps if uid in self.records else ())
        self._indexed = set(self.records)


class _Records:
    """What a `RecordStore` is to the steps, of the only instance."""

    unreadable: Mapping[str, Any] = {}

    def __init__(self, keep: Callable[[Record], None]) -> None:
        self.lock = _NoLock()
        self._keep = keep

    async def __aenter__(self) -> None:
        """Others do not change anything."""

    async def __aexit__(self, *_: object) -> None:
        """Nothing is locked."""

    async def write(self, record: Record, *, in_place: bool = False) -> None:
        self._keep(record)


class _NoLock:
    async def lock(self, *_: object, **__: object) -> None:
        """There is no other instance."""

    def release_step(self, _offset: int) -> None:
        """Nothing is locked."""


def _build_record(held: HeldClaim) -> Record:
    return Record(
        claim=held.claim,
        driver="in memory",
        stage=Stage.COMPLETED if held.completed else Stage.STARTED,
        boot_id="",
        prepared=held.prepared,
        left_over="left over" if held.left_over else "",
    )
