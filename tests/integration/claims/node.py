"""A node of real directories for the claims' part of the agent: records, CDI files, and hardware that is files too.

The hardware outlives a killed process and raises when a device is given to two claims which may not share it. Each
effect is a step, at which a test may wait, fail or be killed: Python's audit events announce what is done to files.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

from msgspec.structs import replace

from pydra import Claim, ClaimStep, ContainerEdits, Device, HeldClaim, PreparedDevice, StepStage
from pydra.backends.supervisor import BackendSupervisor
from pydra.cdi.device_metadata_files import MetadataPaths, MetadataStore
from pydra.cdi.store import CdiStore
from pydra.checkpoint.locks_between_instances import InstanceLocks
from pydra.checkpoint.store import RecordStore, UnreadableRecord
from pydra.claim import ClaimRef
from pydra.claims.claim_files import ClaimFiles
from pydra.claims.device_use import PublishedPool
from pydra.claims.gc import GarbageCollected, GarbageCollector
from pydra.claims.preparer import ClaimPreparer, Deadlines
from pydra.claims.work_queue import ClaimEvent
from pydra.errors import KubeError, NotFound, Unavailable
from pydra.kube.api_resources import Resource
from pydra.kube.client import KubeClient

DRIVER = "gpu.example.com"
POOL = "node-1"

Step = Callable[[str], None]
"""Called with the name of an effect just before it is done, such as `records: rename`."""

EFFECTS = {
    "open": "create",
    "os.chmod": "write",  # after which the content of a new file is written
    "os.rename": "rename",
    "os.remove": "unlink",
    "os.mkdir": "make directory",
    "os.rmdir": "remove directory",
}

_running: list[Node] = []


def _announce(event: str, arguments: tuple[Any, ...]) -> None:
    if not _running or event not in EFFECTS:
        return
    path = os.readlink(f"/proc/self/fd/{arguments[0]}") if isinstance(arguments[0], int) else str(arguments[0])
    if event in ("open", "os.chmod") and not path.endswith(".tmp"):
        return
    for node in dict.fromkeys(_running):
        place = path.removeprefix(f"{node.root}/").partition("/")[0]
        if place in ("records", "cdi", "dra-device-metadata"):
            node.step(f"{place}: {EFFECTS[event]}")


sys.addaudithook(_announce)


def ref(uid: str) -> ClaimRef:
    return ClaimRef(uid=uid, namespace="ns", name=f"claim-{uid}")


def claim_object(uid: str, *devices: str, share: str = "", admin: bool = False) -> dict[str, Any]:
    """A ResourceClaim allocated to these devices, or not at all."""
    more = {**({"shareID": share} if share else {}), **({"adminAccess": True} if admin else {})}
    results = [
        {"request": f"r{index}", "driver": DRIVER, "pool": POOL, "device": name, **more}
        for index, name in enumerate(devices)
    ]
    status = {"allocation": {"devices": {"results": results}}} if devices else {}
    reserved = [{"resource": "pods", "name": f"pod-{uid}", "uid": f"pod-uid-{uid}"}]
    return {"metadata": {"uid": uid}, "status": {**status, "reservedFor": reserved}}


SILENT = Unavailable("the API server does not answer")
NO_API = NotFound("the server could not find the requested resource", status=404, cause="NotFound")
"""What a proxy answers, or an API server that does not serve claims: it says nothing about a claim."""


class Api:
    """The claims of the API server, by uid."""

    def __init__(self) -> None:
        self.claims: dict[str, dict[str, Any]] = {}
        self.failure: KubeError | None = None
        self.reads = 0
        self.before_answer: Callable[[], Awaitable[None]] = _answer_at_once

    def allocate(self, uid: str, *devices: str, **more: Any) -> None:
        self.claims[uid] = claim_object(uid, *devices, **more)

    async def get(self, _resource: Resource, name: str, *, namespace: str, deadline: float) -> Mapping[str, Any]:
        assert name, "the API server would answer with a list"
        self.reads += 1
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        found = self.claims.get(name.removeprefix("claim-"))
        if found is None:
            raise NotFound(f"no claim {namespace}/{name}", status=404, cause="NotFound", is_of_object=True)
        await self.before_answer()
        return found

    async def find_names(self) -> Mapping[str, tuple[str, str]]:
        if self.failure is not None:
            raise self.failure
        return {uid: ("ns", f"claim-{uid}") for uid in self.claims}


class Hardware:
    """Devices are files with the uids of the claims that use them; with plans, so are slots that `plan` chooses.

    With steps, taking a slot is one, after the mode that all claims need and that the file `mode` stands for. Those of
    a claim with several devices hold one each, the mode also the device `board`.
    """

    def __init__(self, path: Path, step: Step, *, steps: bool = False) -> None:
        self.path = path
        self.steps = steps
        self.calls: list[tuple[str, str]] = []
        self.held: dict[str, HeldClaim] = {}
        self.before_step: Callable[[Claim], Awaitable[None]] = _go_on
        self.before_prepare: Callable[[Claim], Awaitable[None]] = _go_on
        self.before_unprepare: Callable[[Claim], Awaitable[None]] = _go_on
        self._step = step
        path.mkdir(parents=True, exist_ok=True)

    def note_held(self, uid: str, held: HeldClaim | None) -> None:
        if held is not None:
            self.held[uid] = held
        else:
            self.held.pop(uid, None)

    async def plan(self, claim: Claim, *, until: float) -> Claim:
        self.calls.append(("plan", claim.uid))
        others = [one for uid, one in self.held.items() if uid != claim.uid]
        taken = {slot for one in others for slot in (one.plan or {"slots": ()})["slots"]}
        free = (f"slot-{number}" for number in range(100) if f"slot-{number}" not in taken)
        slots = [next(free) for _ in claim.devices]
        several = len(claim.devices) > 1
        state = "fast" if self.is_fast() else "slow"
        needed = (claim.devices[-1].device, "board") if several else None
        mode = ClaimStep(step={"mode": state}, key="mode", label="mode", holds=needed)
        takes = [
            ClaimStep(step={"slot": slot}, key=slot, label=f"take {slot}", holds=(one.device,) if several else None)
            for slot, one in zip(slots, claim.devices, strict=True)
        ]
        return replace(claim, plan={"slots": slots}, steps=(mode, *takes) if self.steps else ())

    def is_fast(self) -> bool:
        return (self.path / "mode").exists()

    async def apply(self, claim: Claim, place: int, *, until: float) -> Any:
        self.calls.append(("apply", claim.uid))
        await self.before_step(claim)
        step = claim.steps[place].step
        if "slot" in step:
            self._step("take slot")
            self._use(step["slot"], claim.uid, may_share=False)
        else:
            self._step("set mode")
            self._write("mode", ["fast"])
        self._step("applied")
        return {"place": place}

    async def undo(self, claim: Claim, place: int, *, until: float) -> None:
        self.calls.append(("undo", claim.uid))
        await self.before_step(claim)
        step = claim.steps[place].step
        assert claim.steps[place].stage is not StepStage.PLANNED
        if "slot" in step:
            self._step("free slot")
            self._free(step["slot"], claim.uid)
        elif step["mode"] == "slow":
            assert not list(self.path.glob("slot-*")), "the mode is undone, and claims need it"
            self._step("set mode back")
            (self.path / "mode").unlink(missing_ok=True)
        self._step("undone")

    async def prepare(self, claim: Claim, *, until: float) -> tuple[PreparedDevice, ...]:
        self.calls.append(("prepare", claim.uid))
        await self.before_prepare(claim)
        assert self.is_fast() or not self.steps
        for slot in () if self.steps else (claim.plan or {}).get("slots", ()):
            self._step("take slot")
            self._use(slot, claim.uid, may_share=False)
        for device in claim.devices:
            self._step("configure device")
            if not device.admin_access:
                self._use(device.device, claim.uid, may_share=device.share_id is not None)
        self._step("configured")
        edits = ContainerEdits().with_env("CLAIM", claim.uid)
        return tuple(device.prepared(edits, state={"since": 1}) for device in claim.devices)

    def release(self, uid: str) -> None:
        """Nothing is quarantined here."""

    async def unprepare(self, claim: Claim, prepared: Sequence[PreparedDevice], *, until: float) -> None:
        self.calls.append(("unprepare", claim.uid))
        await self.before_unprepare(claim)
        slots = () if self.steps else (claim.plan or {}).get("slots", ())
        for name in (*(device.device for device in claim.devices), *slots):
            self._step("free device")
            self._free(name, claim.uid)
        self._step("freed")

    def owners(self, name: str) -> list[str]:
        path = self.path / name
        return json.loads(path.read_text()) if path.exists() else []

    def _use(self, name: str, uid: str, *, may_share: bool) -> None:
        owners = [one for one in self.owners(name) if one != uid]
        assert not owners or may_share, f"{name} was given to {uid} while {owners} have it"
        self._write(name, [*owners, uid])

    def _free(self, name: str, uid: str) -> None:
        owners = [one for one in self.owners(name) if one != uid]
        if owners:
            self._write(name, owners)
        else:
            (self.path / name).unlink(missing_ok=True)

    def _write(self, name: str, owners: list[str]) -> None:
        (self.path / f"{name}.new").write_text(json.dumps(owners))
        os.replace(self.path / f"{name}.new", self.path / name)


async def _answer_at_once() -> None:
    """Interfere with nothing."""


async def _go_on(_claim: Claim) -> None:
    """Interfere with nothing."""


class Instance:
    """One instance of the agent over the node."""

    def __init__(self, preparer: ClaimPreparer, garbage: GarbageCollector, store: RecordStore) -> None:
        self.preparer = preparer
        self.garbage = garbage
        self.store = store
        self.hardware: Hardware

    async def prepare(self, *uids: str) -> list[Any]:
        return [await one for one in [self.preparer.prepare(ref(uid)) for uid in uids]]

    async def unprepare(self, *uids: str) -> list[Any]:
        return [await one for one in [self.preparer.unprepare(ref(uid)) for uid in uids]]


class Node:
    """What outlives the agent, below `root`."""

    def __init__(
        self,
        root: Path,
        *,
        step: Step = lambda _: None,
        durable: bool = False,
        plans: bool = False,
        steps: bool = False,
        metadata: bool = False,
        one_pod: bool = False,
    ) -> None:
        self.root = root
        self.metadata = metadata
        self.one_pod = one_pod
        self.api = Api()
        self.step = step
        self.durable = durable
        self.plans = plans or steps
        self.steps = steps
        self.boot_id = "boot-1"
        self.published: set[str] | None = None
        self.reported: list[ClaimEvent | UnreadableRecord] = []
        (root / "run").mkdir(parents=True, exist_ok=True)

    def traces(self) -> dict[str, list[str]]:
        """The names of all files, but for the lock and what was set aside."""
        found = {}
        for name in ("records", "cdi", "hardware"):
            path = self.root / name
            found[name] = sorted(one.name for one in path.iterdir() if one.is_file()) if path.exists() else []
        path = self.root / "dra-device-metadata"
        found["metadata"] = sorted(str(one.relative_to(path)) for one in path.rglob("*"))
        return found

    def record_file(self, uid: str) -> Path:
        return self.root / "records" / f"{uid}.json"

    def cdi_file(self, uid: str) -> Path:
        return self.root / "cdi" / f"{DRIVER}-claim_{uid}.json"

    def reboot(self) -> None:
        """The hardware and the tmpfs directories forget, unless the hardware is of the kind that remembers."""
        self.boot_id += "+"
        for name in ("cdi",) if self.durable else ("cdi", "hardware"):
            for path in (self.root / name).glob("*"):
                path.unlink()

    @asynccontextmanager
    async def running(
        self,
        *,
        grace: float = 0.0,
        conflict_pause: float = 0.0,
        prepare: float = 20.0,
        host_root: str = "/",
        flush_seconds: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
        collected: Callable[[GarbageCollected], None] = lambda _: None,
    ) -> AsyncIterator[Instance]:
        """An instance that ends, with whatever it has in work, at the end of the block."""
        lock = InstanceLocks(str(self.root / "run" / "lock"))
        cdi = CdiStore(str(self.root / "cdi"), DRIVER)
        store = RecordStore(
            str(self.root / "records"),
            lock,
            durable=self.durable,
            boot_id=self.boot_id,
            elsewhere=(str(self.root / "elsewhere"),),
            find_devices=partial(cdi.read_devices, pool=POOL),
            report=self.reported.append,
            flush_seconds=flush_seconds,
        )
        metadata = MetadataStore(
            MetadataPaths(driver=DRIVER, plugin_directory=str(self.root), cdi_directory=str(self.root / "cdi"))
        )
        hardware = Hardware(self.root / "hardware", self.step, steps=self.steps)
        store.open()
        files = ClaimFiles(DRIVER, cdi=cdi, metadata=metadata, host_root=host_root)
        files.open()
        async with store:
            store.hold_removed(cdi.list_of_this_boot())
        preparer = ClaimPreparer(
            driver=DRIVER,
            boot_id=self.boot_id,
            client=cast("KubeClient", self.api),
            store=store,
            backend=cast("BackendSupervisor", hardware),
            plans=self.plans,
            reads_held=self.plans,
            one_pod=self.one_pod,
            files=files,
            writes_metadata=self.metadata,
            deadlines=Deadlines(prepare=prepare, unprepare=20.0, fetch=10.0),
            report=self.reported.append,
        )
        published = self.published
        if published is None and self.plans:  # without counters known, nothing is planned
            published = {f"gpu-{number}" for number in range(16)}
        if published is not None:
            devices = {name: Device(name=name) for name in published}
            preparer.set_published({POOL: PublishedPool(devices=devices)})
        garbage = GarbageCollector(
            driver=DRIVER,
            client=cast("KubeClient", self.api),
            find_names=self.api.find_names,
            store=store,
            files=files,
            preparer=preparer,
            kubelet_state=str(self.root / "dra_manager_state"),
            grace=grace,
            conflict_pause=conflict_pause,
            report=collected,
            clock=clock,
        )
        instance = Instance(preparer, garbage, store)
        instance.hardware = hardware
        _running.append(self)
        try:
            yield instance
        finally:
            _running.remove(self)
            await preparer.stop()
            lock.close()


NOTHING: dict[str, list[str]] = {"records": [], "cdi": [], "hardware": [], "metadata": []}
