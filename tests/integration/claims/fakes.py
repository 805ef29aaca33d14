"""A node in memory: hardware, records, CDI files, an API server. Each effect is a step where a test may interfere."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
from anyio.abc import TaskGroup

from pydra.cdi.edits import ContainerEdits
from pydra.checkpoint.record import Record
from pydra.checkpoint.scan import RecordTrouble
from pydra.claim import AllocatedDevice, Claim, PreparedDevice
from pydra.claims.device_index import may_share
from pydra.claims.execution import Execution
from pydra.claims.holdings import Holdings
from pydra.claims.outcome import ClaimRef
from pydra.claims.outside import Limits, Span
from pydra.claims.preparer import ClaimPreparer
from pydra.claims.reports import ClaimEvent
from pydra.claims.stages import no_span
from pydra.errors import NotFound, Unavailable

DRIVER = "gpu.example.com"
Step = Callable[[str, str], Awaitable[None]]
"""Awaited at each effect with its name and the claim's uid, before the effect; it may wait or raise."""


async def go_on(name: str, uid: str) -> None:
    """Interfere with nothing."""


class Gate:
    """A step that notes what passes, and holds back what is named."""

    def __init__(self, *held: str) -> None:
        self.passed: list[tuple[str, str]] = []
        self.held = set(held)
        self.reached = anyio.Event()
        self.opened = anyio.Event()

    async def __call__(self, name: str, uid: str) -> None:
        if name in self.held:
            self.reached.set()
            await self.opened.wait()
        self.passed.append((name, uid))

    def names(self, uid: str) -> list[str]:
        return [name for name, of in self.passed if of == uid]


class Failing:
    """A step that raises at the names it has an error for."""

    def __init__(self, **errors: Exception) -> None:
        self.errors = {name.replace("_", " "): error for name, error in errors.items()}
        self.passed: list[str] = []

    async def __call__(self, name: str, uid: str) -> None:
        if name in self.errors:
            raise self.errors[name]
        self.passed.append(name)


def ref(uid: str) -> ClaimRef:
    return ClaimRef(uid=uid, namespace="ns", name=f"claim-{uid}")


def claim_object(
    uid: str, *devices: str, share: str = "", admin: bool = False, configs: Sequence[object] = ()
) -> dict[str, Any]:
    """A ResourceClaim allocated to these devices, or not at all."""
    more = {**({"shareID": share} if share else {}), **({"adminAccess": True} if admin else {})}
    results = [
        {"request": f"r{index}/large", "driver": DRIVER, "pool": "node-1", "device": name, **more}
        for index, name in enumerate(devices)
    ]
    status = {"allocation": {"devices": {"results": results, "config": list(configs)}}} if devices else {}
    reserved = [{"resource": "pods", "name": f"pod-{uid}", "uid": f"pod-uid-{uid}"}]
    return {"metadata": {"uid": uid}, "status": {**status, "reservedFor": reserved}}


@dataclass
class FakeApi:
    """Claims by name, and the number of reads. One that `has_no_claims` does not serve resource.k8s.io at all."""

    claims: dict[str, dict[str, Any]] = field(default_factory=dict)
    has_no_claims: bool = False
    down: bool = False
    silent: bool = False
    reads: int = 0

    def allocate(self, uid: str, *devices: str, **more: Any) -> None:
        self.claims[f"claim-{uid}"] = claim_object(uid, *devices, **more)

    async def fetch_claim(self, wanted: ClaimRef) -> Mapping[str, Any]:
        self.reads += 1
        await anyio.lowlevel.checkpoint()
        if self.silent:
            await anyio.sleep_forever()
        if self.down:
            raise Unavailable("the API server does not answer")
        if self.has_no_claims or wanted.name not in self.claims:
            raise NotFound(f"no claim {wanted}", status=404, cause="" if self.has_no_claims else "NotFound")
        found: Any = self.claims[wanted.name]
        if isinstance(found, Exception):
            raise found
        return dict(found)


@dataclass
class FakeNode:
    """What outlives the agent: disk and hardware."""

    step: Step = go_on
    boot_id: str = "boot-1"
    records: dict[str, Record] = field(default_factory=dict)
    troubles: dict[str, RecordTrouble] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    hardware: dict[str, dict[tuple[str, str], AllocatedDevice]] = field(default_factory=dict)

    def reboot(self) -> None:
        """Power off and on: hardware and tmpfs forget everything."""
        self.boot_id += "+"
        self.files.clear()
        self.hardware.clear()

    def is_empty(self) -> bool:
        return not (self.records or self.files or any(self.hardware.values()))


class FakeCheckpoints:
    """Records that become what is asked when the step before lets them."""

    def __init__(self, node: FakeNode) -> None:
        self._node = node
        self.changed: set[str] = set()
        self.refreshes = 0

    async def refresh(self) -> Collection[str]:
        self.refreshes += 1
        changed, self.changed = self.changed, set()
        return changed

    def records(self) -> Mapping[str, Record]:
        return self._node.records

    def unreadable(self) -> Mapping[str, RecordTrouble]:
        return self._node.troubles

    async def write(
        self, record: Record, /, *, before: Callable[[], None] | None = None, after: Callable[[], None] | None = None
    ) -> None:
        uid = record.claim.uid
        if before is not None:
            await self._node.step("write file", uid)
            before()
        await self._node.step(f"write {record.stage.value}", uid)
        self._node.records[uid] = record
        if after is not None:
            await self._node.step("remove file", uid)
            after()

    async def remove(self, uid: str, /) -> None:
        await self._node.step("remove record", uid)
        self._node.records.pop(uid, None)


class FakeCdi:
    """Files by uid."""

    def __init__(self, node: FakeNode) -> None:
        self._node = node

    def write_now(self, uid: str, spec: bytes, /) -> None:
        self._node.files[uid] = spec

    async def ensure(self, uid: str, spec: bytes, /) -> bool:
        await self._node.step("ensure file", uid)
        changed = self._node.files.get(uid) != spec
        self._node.files[uid] = spec
        return changed

    async def remove(self, uid: str, /) -> None:
        await self._node.step("remove file", uid)
        self.remove_now(uid)

    def remove_now(self, uid: str, /) -> None:
        self._node.files.pop(uid, None)

    async def read(self) -> Mapping[str, bytes]:
        return dict(self._node.files)


class FakeBackend:
    """Hardware that notices when one device is given to two claims which may not share it."""

    def __init__(self, node: FakeNode) -> None:
        self._node = node

    async def prepare(self, claim: Claim, /, *, until: float) -> Sequence[PreparedDevice]:
        await self._node.step("begin prepare", claim.uid)
        mine = self._node.hardware.setdefault(claim.uid, {})
        for device in claim.devices:
            key = (device.pool, device.device)
            for uid, held in self._node.hardware.items():
                if uid != claim.uid and key in held and not may_share(held[key], device):
                    raise AssertionError(f"{device.device} was given to {claim.uid} while {uid} has it")
            mine[key] = device
            await self._node.step("configure device", claim.uid)
        return [
            device.prepared(
                ContainerEdits(env={f"DEVICE_{device.device.upper().replace('-', '_')}": claim.uid}), state=[1]
            )
            for device in claim.devices
        ]

    async def unprepare(self, claim: Claim, prepared: Sequence[PreparedDevice], /, *, until: float) -> None:
        await self._node.step("begin unprepare", claim.uid)
        self._node.hardware.pop(claim.uid, None)
        await self._node.step("unprepared", claim.uid)


class FakeLock:
    """A lock that nobody else wants."""

    def __init__(self) -> None:
        self.held = 0

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        self.held += 1
        try:
            yield
        finally:
            self.held -= 1


async def all_present(prepared: Sequence[PreparedDevice]) -> tuple[PreparedDevice, ...]:
    """A host that has everything."""
    return tuple(prepared)


@dataclass
class Agent:
    """One instance over the node."""

    preparer: ClaimPreparer
    node: FakeNode
    checkpoints: FakeCheckpoints
    lock: FakeLock
    reports: list[ClaimEvent]
    tasks: TaskGroup


@asynccontextmanager
async def running_agent(
    node: FakeNode,
    api: FakeApi,
    *,
    limits: Limits = Limits(),  # noqa: B008 - frozen
    backend: Any = None,
    read_present: Any = all_present,
    span: Span = no_span,
) -> AsyncIterator[Agent]:
    """An agent that is stopped, with whatever it has in work, at the end of the block."""
    checkpoints, lock = FakeCheckpoints(node), FakeLock()
    reports: list[ClaimEvent] = []
    async with anyio.create_task_group() as tasks:
        execution = Execution(
            driver=DRIVER,
            boot_id=node.boot_id,
            backend=backend or FakeBackend(node),
            checkpoints=checkpoints,
            cdi=FakeCdi(node),
            read_present=read_present,
            limits=limits,
            wall_clock=lambda: 1.0,
        )
        preparer = ClaimPreparer(
            driver=DRIVER,
            boot_id=node.boot_id,
            tasks=tasks,
            fetch_claim=api.fetch_claim,
            holdings=Holdings(checkpoints, lock),
            execution=execution,
            limits=limits,
            report=reports.append,
            span=span,
        )
        yield Agent(preparer=preparer, node=node, checkpoints=checkpoints, lock=lock, reports=reports, tasks=tasks)
        tasks.cancel_scope.cancel()
