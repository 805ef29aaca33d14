"""The coroutines that pydra calls, composed of the other modules: read, decide, act, say what containers get."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Generator, Mapping, Sequence
from functools import partial
from typing import Any

from pydra import (
    Claim,
    ClaimError,
    HeldClaim,
    Inheritance,
    Inventory,
    Plan,
    PreparedDevice,
    PydraError,
    Sample,
    held_claims,
    time_left,
)
from pydra_nvidia.cdi.edits import DeviceEdits
from pydra_nvidia.claim_plan import plan_claim
from pydra_nvidia.claim_records import Entry, build_data, count_devices, read_entries
from pydra_nvidia.claim_targets import describe_prepared, find_targets, identify
from pydra_nvidia.device_names import GpuName, MigName, VfioName, parse_name
from pydra_nvidia.fabric.plan_fabric import explain_disconnected
from pydra_nvidia.hardware_reader import HardwareReader
from pydra_nvidia.hardware_types import Reading
from pydra_nvidia.health.diagnosis import Diagnosis, add_vanished
from pydra_nvidia.health.monitor import HealthMonitor
from pydra_nvidia.host.device_nodes import UVM_NOT_LOADED
from pydra_nvidia.inventory.build import build_inventory
from pydra_nvidia.mig.reconcile_partitions import reconcile
from pydra_nvidia.mig.vanished_partitions import explain_vanished, find_owned, find_vanished
from pydra_nvidia.nvml.hung_queries import SuspendedQueries
from pydra_nvidia.nvml.maintenance_gate import Gate, InMaintenance, Request
from pydra_nvidia.nvml.samples import read_samples
from pydra_nvidia.nvml.session import NvmlSession
from pydra_nvidia.prior_state import PriorState
from pydra_nvidia.settings import Settings
from pydra_nvidia.sharing.mps_watch import MpsWatch
from pydra_nvidia.step_appliers import StepAppliers
from pydra_nvidia.steps import Step
from pydra_nvidia.takeover.takeover import VendorTakeover
from pydra_nvidia.waiting import Busy, call_time, in_thread
from pydra_pci import run_beside

_MEASURE_PATIENCE = 1.0
"""Seconds that a measurement waits for its turn with NVML."""

_EVENT_PAUSE = 2.0
"""Seconds between two events that are reported."""

_LOOKS = 3
"""How often hardware that changes while it is read is read again."""

_MAINTENANCE_LOOK = 0.5
"""Seconds between two looks for a request for maintenance."""

_MAINTENANCE_PATIENCE = 4.0
"""Seconds after which calls that should have ended are no longer waited for."""

_LONGEST = 60.0
"""Seconds that a call without a deadline is waited for."""

_log = logging.getLogger(__name__)


class NvidiaBackend:
    """One node's NVIDIA hardware. Made by `composition.open_backend`."""

    def __init__(
        self,
        settings: Settings,
        *,
        session: NvmlSession,
        gate: Gate,
        hardware: HardwareReader,
        prior_state: PriorState,
        appliers: StepAppliers,
        edits: DeviceEdits,
        health: HealthMonitor,
        queries: SuspendedQueries,
        mps: MpsWatch,
        takeover: VendorTakeover,
    ) -> None:
        self._settings = settings
        self._session = session
        self._gate = gate
        self._hardware = hardware
        self._prior_state = prior_state
        self._appliers = appliers
        self._edits = edits
        self._health = health
        self._queries = queries
        self._mps = mps
        self._takeover = takeover
        self._restored = asyncio.Event()
        self._seen: object = None
        self._reported_at = -_EVENT_PAUSE
        self._disconnected: Mapping[str, str] = {}
        self._logged: frozenset[str] = frozenset()
        self._measured: tuple[Sample, ...] = ()
        self._at_work = 0
        self._maintenance: Request | None = None
        self._idle_by = 0.0

    async def discover(self) -> Inventory:
        """All GPUs, partitions and functions, with their health; during maintenance as they were before."""
        for _ in range(_LOOKS):
            self._seen = await asyncio.to_thread(self._signature)  # before reading: changes since are noticed
            inventory = await self._take_stock()
            if await asyncio.to_thread(self._signature) == self._seen:
                break  # else this is half of the one and half of the other, and a change back would not be noticed
        return inventory

    async def restore(self, held: Sequence[HeldClaim], /) -> None:
        """End what no held claim explains, as far as the settings say so, and look after what the others have.

        GPUs that cannot be read now are compared at the next start: claims must be able to end meanwhile, and later
        something may belong to a claim that is being prepared.
        """
        entries = read_entries(held)
        self._hardware.note_claims()
        self._restored.set()
        await self._mps.end_orphans(entries)
        try:
            reading = await self._hardware.read()
            lines = await reconcile(self._session, entries, reading, settings=self._settings)
        except PydraError as error:
            _log.warning("the GPUs are not compared with what claims hold until the next start: %s", error)
            return
        for line in lines:
            _log.warning("%s", line)

    async def plan(self, claim: Claim, held: Sequence[HeldClaim], /) -> Plan:
        """The claim's steps, with the state before them, and what it will have of the hardware."""
        with call_time():
            return await in_thread(self._plan, claim, read_entries(held))

    async def apply(self, step: Step, result: Any, claim: Claim, /) -> Any:
        """Do one step."""
        with self._working(), call_time():
            return await self._appliers.apply(step, result, claim)

    async def undo(self, step: Step, result: Any, claim: Claim, /) -> None:
        """Undo one step. Raises UndoLater if the driver cannot be called now, or the GPU is lost."""
        with self._working(), call_time():
            await self._appliers.undo(step, result, claim)

    async def prepare(self, claim: Claim, /) -> Sequence[PreparedDevice]:
        """What containers get, from the hardware as the steps have made it."""
        with self._working(), call_time():
            return await in_thread(self._describe, claim)

    async def wait_changed(self) -> None:
        """Return on an event of a GPU, or when something outside changed: functions, drivers, partitions."""
        # Wait first: `discover` has just looked, and each look that finds a claim's own change costs one more.
        while not await self._health.wait_event(self._settings.poll_period):
            if await asyncio.to_thread(self._signature) != self._seen:
                return
            if self._is_reconnected() or await asyncio.to_thread(self._hardware.is_fabric_back):
                break
        # A burst of events is one report: each makes the agent read everything again.
        await asyncio.sleep(max(0.0, self._reported_at + _EVENT_PAUSE - time.monotonic()))
        self._reported_at = time.monotonic()

    async def supervise(self) -> None:
        """Look after the MPS daemons of claims, until cancelled; beside everything else, since it may take long."""
        await self._restored.wait()
        while True:
            if self._maintenance is None:  # a daemon that is started has the GPUs open
                await self._mps.look()
            await asyncio.sleep(self._settings.poll_period)

    async def follow_maintenance(self) -> None:
        """End the session with NVML whenever the admin requests maintenance, until cancelled.

        What has begun is waited for. Nothing else begins: `_plan` refuses claims, and the gate any other session.
        """
        while True:
            request = await asyncio.to_thread(self._gate.asked)
            if request is not None and self._maintenance is None:
                _log.warning("NVML is closed: %s", request.explain())
            elif request is None and self._maintenance is not None:
                _log.warning("NVML is used again: the time is over, or the request was taken back")
                await self._queries.resume()
            self._maintenance = request
            if request is not None and self._session.is_open and self._may_end():
                with contextlib.suppress(ClaimError):  # NVML is busy; the next look is soon
                    await in_thread(self._session.close)
            await asyncio.sleep(_MAINTENANCE_LOOK)

    async def measure(self) -> Sequence[Sample]:
        """What the GPUs report, and what went wrong since this process began.

        It waits for nobody: while NVML is at work for others, the numbers of the last time are good enough.
        """
        reading = self._hardware.last
        if reading.gpus:
            try:
                work = partial(read_samples, reading=reading, queries=self._queries)
                async with run_beside({"hanging queries": self._queries.watch()}):
                    self._measured = await self._session.run(work, patience=_MEASURE_PATIENCE)
            except Busy:
                pass
            except InMaintenance:  # what was measured then says nothing by now
                self._measured = ()
        maintenance = Sample(
            name="maintenance",
            value=float(self._maintenance is not None),
            help="1 during maintenance.",
        )
        return (
            *self._measured,
            maintenance,
            *self._health.samples(reading),
            *self._queries.samples(reading),
            *self._mps.samples(),
            *count_devices(held_claims()),
        )

    async def inherit(self, directory: str, /) -> Inheritance:
        """What NVIDIA's own driver prepared before; its plugin must have ended."""
        return await self._takeover.inherit(directory)

    async def _take_stock(self) -> Inventory:
        """All hardware as it is now; during maintenance as it was before."""
        before = read_entries(held_claims())
        reading, diagnosis = await in_thread(self._examine)
        after = read_entries(held_claims())
        # What was begun or undone meanwhile may have been read halfway.
        still = {entry.uid for entry in before if entry.completed and not entry.left_over}
        held = [entry for entry in after if entry.completed and entry.uid in still]
        vanished = find_vanished(held, reading)
        disconnected = explain_disconnected(held, reading)
        messages = explain_vanished(vanished) | disconnected
        warnings = [UVM_NOT_LOADED] if reading.lacks_uvm else []
        if self._settings.health:
            self._disconnected = disconnected
            diagnosis = add_vanished(diagnosis, messages, settings=self._settings)
        else:  # no taint says it: devices count as healthy
            warnings += [f"{device}: {message}" for device, message in sorted(messages.items())]
        self._log_new(warnings)
        return await in_thread(
            build_inventory,
            reading,
            settings=self._settings,
            owned=find_owned((*before, *after), reading),
            diagnosis=diagnosis,
            removed=[(one.gpu, one.profile, one.placement) for one in vanished],
        )

    def _log_new(self, warnings: Sequence[str]) -> None:
        """Log those that the last look did not have."""
        for warning in warnings:
            if warning not in self._logged:
                _log.warning("%s", warning)
        self._logged = frozenset(warnings)

    def _examine(self) -> tuple[Reading, Diagnosis]:
        """The hardware and its health. Blocks."""
        try:
            self._gate.check()
            reading = self._hardware.read_here()
            return reading, self._health.diagnose(reading)
        except InMaintenance as reason:
            reading = self._hardware.last
            if reading == Reading():  # nothing is known of what was never read
                raise
            return reading, self._health.recall(reading, str(reason))

    def _plan(self, claim: Claim, entries: Sequence[Entry]) -> Plan:
        """Blocks. `entries` are older than the reading: a partition that goes meanwhile is not somebody else's."""
        self._gate.check()
        reading = self._reread(claim)
        targets = find_targets(claim.devices, reading)
        holds, steps = plan_claim(claim, targets, reading, entries=entries, settings=self._settings)
        begun = [step for entry in entries for step in entry.begun]
        return Plan(steps=self._prior_state.remember(steps, begun), data=build_data(holds))

    def _describe(self, claim: Claim) -> list[PreparedDevice]:
        """What containers get, from the hardware as it is now. Blocks."""
        reading = self._reread(claim)
        targets = find_targets(claim.devices, reading)
        edits = self._edits.build(targets, reading, [one.step for one in claim.steps])
        return [
            target.allocated.prepared(own, attributes=describe_prepared(target), status=identify(target))
            for target, own in zip(targets, edits, strict=True)
        ]

    def _reread(self, claim: Claim) -> Reading:
        """The hardware, with what can have changed of the claim's GPUs read again: all of it, to take one from NVML."""
        names = [parse_name(device.device) for device in claim.devices]
        if any(isinstance(name, VfioName) for name in names):
            reading = self._hardware.read_here()
        else:
            reading = self._hardware.reread_here([name.minor for name in names if isinstance(name, GpuName | MigName)])
        self._health.see(reading)
        return reading

    def _is_reconnected(self) -> bool:
        """Whether a claim whose partition of Fabric Manager is not active has ended."""
        if not self._disconnected:
            return False
        held = [entry for entry in read_entries(held_claims()) if entry.completed and not entry.left_over]
        return not self._disconnected.keys() <= explain_disconnected(held, self._hardware.last).keys()

    def _signature(self) -> object:
        return self._hardware.signature(), self._gate.asked() is not None

    @contextlib.contextmanager
    def _working(self) -> Generator[None]:
        """Something is done to the hardware, which is waited for before the session ends for maintenance."""
        self._at_work += 1
        self._idle_by = max(self._idle_by, time.monotonic() + min(time_left(), _LONGEST) + _MAINTENANCE_PATIENCE)
        try:
            yield
        finally:
            self._at_work -= 1

    def _may_end(self) -> bool:
        return not self._at_work or time.monotonic() >= self._idle_by
