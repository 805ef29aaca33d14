"""The backend itself: the coroutines that pydra calls, over a scenario and a state directory.

Files are read and written without a thread: this process serves nobody else, and they are small.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

from pydra import AllocatedDevice, Claim, ClaimError, Inventory, PreparedDevice, Sample, UnknownDevice
from pydra_sim.config import DEFAULT_CONFIG, SimConfig
from pydra_sim.edits import build_edits
from pydra_sim.faults import GARBAGE, Call, Fault, act
from pydra_sim.hardware import Part, build_inventory, find_parts
from pydra_sim.scenario import Scenario, ScenarioError, ScenarioFile
from pydra_sim.state import Active, StateDirectory
from pydra_sim.telemetry import build_samples

POLL_INTERVAL = 1.0
"""Seconds between two looks at the scenario and the marks; each costs a quarter of a millisecond of CPU."""

DEFAULT_TIME_SLICE = 10
"""Milliseconds of a turn when TimeSliced is asked for without an interval."""


class Machine:
    """Simulated accelerators as the scenario has them now."""

    def __init__(self, scenario: ScenarioFile, state: StateDirectory) -> None:
        self._file = scenario
        self._state = state
        self._known: tuple[Scenario, Mapping[str, Part]] | None = None
        self._seen: object = None
        state.prepare_directories()

    async def discover(self) -> Inventory:
        """All accelerators and partitions, with their health."""
        self._seen = self._signature()  # before reading, so that a change in between is noticed
        garbage = await self._strike("discover", "start")
        inventory = build_inventory(
            self._file.read(),
            unhealthy=self._state.marks("unhealthy"),
            unplugged=frozenset(self._state.marks("unplugged")),
        )
        garbage += await self._strike("discover", "end")
        return cast("Inventory", GARBAGE) if garbage else inventory

    async def prepare(self, claim: Claim, /) -> Sequence[PreparedDevice]:
        """Create the claim's partitions and configure its devices; all of them or none."""
        garbage = await self._strike("prepare", "start", claim)
        created: list[str] = []
        try:
            with self._state.locked():
                prepared = [self._prepare_device(claim, device, created) for device in claim.devices]
        except ClaimError:
            for key in created:
                self._state.release(key, claim.uid)
            raise
        garbage += await self._strike("prepare", "end", claim)
        return cast("Sequence[PreparedDevice]", [GARBAGE, 42]) if garbage else prepared

    async def unprepare(self, claim: Claim, prepared: Sequence[PreparedDevice], /) -> None:
        """Destroy what `prepare` made or began; nothing to do is success."""
        await self._strike("unprepare", "start", claim)
        with self._state.locked():
            for device in claim.devices:
                self._state.release(_key(device), claim.uid)
        await self._strike("unprepare", "end", claim)

    async def wait_changed(self) -> None:
        """Return when the scenario or a mark differs from what `discover` saw."""
        with suppress(ScenarioError):  # which discover tells; here it is only a reason to wait for a better one
            await self._strike("wait_changed", "start")
        while self._signature() == self._seen:  # noqa: ASYNC110 - files have no event
            await asyncio.sleep(POLL_INTERVAL)

    async def measure(self) -> Sequence[Sample]:
        """Temperature and memory in use of each accelerator; both follow from what is at work on it."""
        await self._strike("measure", "start")
        active = self._state.active()
        samples: list[Sample] = []
        for part in self._parts().values():
            if part.whole:
                samples += build_samples(part, [one for one in active if one.accelerator == part.accelerator])
        return samples

    def _prepare_device(self, claim: Claim, allocated: AllocatedDevice, created: list[str]) -> PreparedDevice:
        part = self._part(allocated.device)
        config = allocated.config(SimConfig) or DEFAULT_CONFIG
        active = _plan(part, claim, allocated, config)
        info = ""
        if not allocated.admin_access:  # which only looks, at a device that another claim may hold
            self._refuse_overlap(part, claim)
            active, new = self._state.activate(_key(allocated), active)
            if new:
                created.append(_key(allocated))
            info = self._state.info_file(_key(allocated))
        edits = build_edits(part, allocated, active, config, info)
        return allocated.prepared(edits, state={"uuid": active.uuid})

    def _part(self, device: str) -> Part:
        parts, gone = self._parts(), {*self._file.read().unplugged, *self._state.marks("unplugged")}
        part = parts.get(device)
        if part is None:
            raise UnknownDevice(f"this machine has no device {device}")
        if gone & {part.name, part.accelerator}:
            raise UnknownDevice(f"device {device} has been unplugged")
        return part

    def _refuse_overlap(self, part: Part, claim: Claim) -> None:
        """The hardware has each slice once, whatever the scheduler believed."""
        if not part.group.slices:
            return
        for active in self._state.active():
            other = self._parts().get(active.device)
            if active.claim != claim.uid and other is not None and part.overlaps(other):
                raise ClaimError(
                    f"device {part.name} cannot be created: its slices are in use by {active.device}"
                    f" for the claim with uid {active.claim}"
                )

    def _parts(self) -> Mapping[str, Part]:
        scenario = self._file.read()
        if self._known is None or self._known[0] is not scenario:
            self._known = scenario, find_parts(scenario)
        return self._known[1]

    def _signature(self) -> object:
        return self._file.signature(), self._state.signature()

    async def _strike(self, call: Call, at: str, claim: Claim | None = None) -> int:
        """Let the scenario's faults for this moment happen; how many of them spoil the answer."""
        devices = tuple(device.device for device in claim.devices) if claim else ()
        garbage = 0
        for fault in self._file.read().faults:
            if fault.at != at or not fault.matches(call, claim.name if claim else "", devices):
                continue
            if fault.strikes(self._state.count(fault.key())):
                self._mark(fault, devices)
                await act(fault)
                garbage += fault.do == "garbage"
        return garbage

    def _mark(self, fault: Fault, devices: Sequence[str]) -> None:
        marks = {"unhealthy": "unhealthy", "unplug": "unplugged"}
        if fault.do in marks:
            for device in (fault.device,) if fault.device else devices:
                self._state.mark(marks[fault.do], device, fault.message)


def _key(allocated: AllocatedDevice) -> str:
    return f"{allocated.device}~{allocated.share_id}" if allocated.share_id else allocated.device


def _plan(part: Part, claim: Claim, allocated: AllocatedDevice, config: SimConfig) -> Active:
    sliced = config.sharing.strategy == "TimeSliced"
    share: Mapping[str, Any] = allocated.consumed_capacity
    return Active(
        claim=claim.uid,
        accelerator=part.accelerator,
        device=part.name,
        uuid=part.uuid if part.whole else f"SIM-{uuid.uuid4()}",
        memory=share.get("memory", f"{part.memory}Gi"),
        cores=share.get("cores", str(part.cores)),
        clock_mhz=config.clock,
        interval=(config.sharing.interval or DEFAULT_TIME_SLICE) if sliced else None,
    )
