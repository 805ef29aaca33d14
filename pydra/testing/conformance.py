"""The examination of a backend: it is run and called as the agent would, crashes included.

Public: uses no test framework, and never raises for what a backend does.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from types import ModuleType

import anyio

from pydra.backends.discovery import BackendSource, choose_backend, find_backend
from pydra.backends.events import BackendEvent, BackendFacts, BackendStartFailed, HintsFailed
from pydra.backends.limits import Deadlines, RestartPolicy
from pydra.backends.supervisor import BackendSupervisor
from pydra.backends.wire import Method
from pydra.cdi.spec import build_spec
from pydra.claims.model import AllocatedDevice, Claim, OpaqueConfig, PreparedDevice
from pydra.device_rules import check_counter_set, check_device, check_references, is_driver_name
from pydra.devices import Device, HealthStatus, Inventory
from pydra.errors import BackendError, ClaimError, InvalidConfig, PydraError, SettingsError
from pydra.testing.report import Check, Report

_ABSENT = "pydra-no-such-device"
_POOL = "conformance"
_DRIVER = "conformance.example.com"

_Probe = Callable[[], Awaitable[list[str]]]


def check_backend(target: str | object, *, prepare: bool = True) -> Report:
    """Examine an installed backend by name, `module:attribute`, or an importable module or object.

    Prepares, and unprepares, its first healthy device; with `prepare` false the hardware is only read.
    Raises SettingsError when there is no such backend.
    """
    source = find_backend(target) if isinstance(target, str) else _locate(target)
    logging.getLogger("pydra").addHandler(logging.NullHandler())  # crashes are part of it; the report tells of others
    return anyio.run(lambda: examine(source, prepare=prepare))


async def examine(
    source: BackendSource,
    *,
    prepare: bool = True,
    deadlines: Deadlines = Deadlines(),  # noqa: B008 - frozen
    environ: Mapping[str, str] | None = None,
) -> Report:
    """What `check_backend` does, inside an event loop."""
    events: list[BackendEvent] = []
    supervisor = BackendSupervisor(
        source,
        deadlines=deadlines,
        restarts=RestartPolicy(first=0.05, cap=1.0),
        environ=environ,
        report=events.append,
    )
    examination = _Examination(supervisor, events)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.run)
        checks = await examination.run(connect=deadlines.connect, prepare=prepare)
        tasks.cancel_scope.cancel()
    return Report(backend=source.name, checks=checks)


class _Examination:
    """The probes, each of which returns the problems that it found."""

    def __init__(self, supervisor: BackendSupervisor, events: list[BackendEvent]) -> None:
        self._backend = supervisor
        self._events = events
        self._checks: list[Check] = []
        self._facts: BackendFacts | None = None
        self._inventory = Inventory()
        self._device: Device | None = None
        self._prepared: tuple[PreparedDevice, ...] = ()

    async def run(self, *, connect: float, prepare: bool) -> tuple[Check, ...]:
        await self._probe("it is loaded and connects", lambda: self._connect(connect))
        if self._facts is not None:
            await self._read(self._facts)
            await self._touch(prepare)
            await self._probe("its hints do not fail", self._hints)
        return tuple(self._checks)

    async def _read(self, facts: BackendFacts) -> None:
        await self._probe("it names its driver", self._driver)
        await self._probe("discover answers, and its devices obey the API's rules", self._discover)
        await self._probe("discover answers the same again", self._discover_again)
        if Method.MEASURE in facts.methods:
            await self._probe("measure answers", self._measure)
        for kind in facts.config_kinds:
            await self._probe(f"a misspelt field of {kind} is refused", lambda kind=kind: self._misspelt(kind))  # type: ignore[misc]
        await self._probe("a device that it does not have is refused", self._absent)

    async def _touch(self, prepare: bool) -> None:
        probes: list[tuple[str, _Probe]] = [
            ("unprepare succeeds when nothing was prepared", self._unprepare_nothing),
            ("prepare answers, and its edits obey CDI's rules", self._prepare),
            ("prepare again answers the same", self._prepare_again),
            ("prepare answers the same after a crash", self._prepare_after_crash),
            ("unprepare succeeds", self._unprepare),
            ("unprepare again succeeds", self._unprepare),
            ("unprepare succeeds after a crash in prepare, with nothing remembered", self._unprepare_after_crash),
            ("a prepare that was cancelled can be undone", self._cancel),
        ]
        self._device = next((one for one in self._inventory.devices if _is_usable(one)), None)
        for title, probe in probes:
            if not prepare:
                self._checks.append(Check(title=title, skipped="asked to leave the hardware alone"))
            elif self._device is None:
                self._checks.append(Check(title=title, skipped="no healthy device"))
            else:
                await self._probe(title, probe)

    async def _probe(self, title: str, probe: _Probe) -> None:
        try:
            problems = await probe()
        except BackendError as error:
            problems = [f"{error}\n{error.details}".strip()]
        except PydraError as error:
            problems = [f"{type(error).__name__}: {error}"]
        self._checks.append(Check(title=title, problems=tuple(problems)))

    # Reading

    async def _connect(self, limit: float) -> list[str]:
        with anyio.move_on_after(limit):
            self._facts = await self._backend.wait_ready()
            return []
        failed = [event.message for event in self._events if isinstance(event, BackendStartFailed)]
        return list(dict.fromkeys(failed)) or [f"it was not ready within {limit:g} s"]

    async def _driver(self) -> list[str]:
        driver = self._facts.driver if self._facts is not None else ""
        return [] if is_driver_name(driver) else ["DRIVER is absent, so that every admin must choose a name"]

    async def _discover(self) -> list[str]:
        self._inventory = inventory = await self._backend.discover()
        counters = {one.name: frozenset(one.counters) for one in inventory.counter_sets}
        problems = [
            f"counter set {one.name}: {text}" for one in inventory.counter_sets for text in check_counter_set(one)
        ]
        for device in inventory.devices:
            found = [*check_device(device), *check_references(device, counters)]
            problems += [f"device {device.name}: {text}" for text in found]
        return problems

    async def _discover_again(self) -> list[str]:
        again = {device.name: device for device in (await self._backend.discover()).devices}
        before = {device.name: device for device in self._inventory.devices}
        problems = [f"device {name} is gone" for name in sorted(before.keys() - again.keys())]
        problems += [f"device {name} is new" for name in sorted(again.keys() - before.keys())]
        for name in sorted(before.keys() & again.keys()):
            problems += [
                f"device {name}: {field} changed from {getattr(before[name], field)} to {getattr(again[name], field)}"
                for field in ("attributes", "capacity", "consumes_counters", "allow_multiple_allocations")
                if getattr(before[name], field) != getattr(again[name], field)
            ]
        if not problems and list(again) != list(before):
            problems.append("the devices come in another order")
        return problems

    async def _measure(self) -> list[str]:
        known = {device.name for device in self._inventory.devices} | {""}
        return [
            f"sample {sample.name} is of device {sample.device}, which discover does not list"
            for sample in await self._backend.measure()
            if sample.device not in known
        ]

    async def _misspelt(self, kind: str) -> list[str]:
        api_version, _, name = kind.rpartition("/")
        parameters = {"apiVersion": api_version, "kind": name, "pydraNoSuchField": 1}
        config = OpaqueConfig(source="FromClaim", position="config[0]", parameters=parameters)
        try:
            await self._backend.prepare(_claim("misspelt", _ABSENT, config))
        except InvalidConfig as error:
            return [] if "pydraNoSuchField" in str(error) else [f"the error does not name the field: {error}"]
        return ["it was accepted"]

    async def _absent(self) -> list[str]:
        try:
            await self._backend.prepare(_claim("absent", _ABSENT))
        except ClaimError:
            return []
        return [f"prepare of device {_ABSENT} succeeded; raise pydra.UnknownDevice"]

    # Touching

    def _own_claim(self, uid: str) -> Claim:
        return _claim(uid, self._device.name if self._device is not None else "")

    async def _unprepare_nothing(self) -> list[str]:
        await self._backend.unprepare(self._own_claim("never"), ())
        return []

    async def _prepare(self) -> list[str]:
        claim = self._own_claim("one")
        self._prepared = await self._backend.prepare(claim)
        build_spec(self._facts.driver if self._facts and self._facts.driver else _DRIVER, claim.uid, self._prepared)
        return []

    async def _prepare_again(self) -> list[str]:
        again = await self._backend.prepare(self._own_claim("one"))
        return [] if again == self._prepared else [f"first {self._prepared}, then {again}"]

    async def _prepare_after_crash(self) -> list[str]:
        await self._crash()
        return await self._prepare_again()

    async def _unprepare(self) -> list[str]:
        await self._backend.unprepare(self._own_claim("one"), self._prepared)
        return []

    async def _unprepare_after_crash(self) -> list[str]:
        claim = self._own_claim("two")
        await self._backend.prepare(claim)
        await self._crash()
        await self._backend.unprepare(claim, ())
        return await self._still_prepares()

    async def _cancel(self) -> list[str]:
        claim = self._own_claim("three")
        with anyio.CancelScope() as scope:
            scope.cancel()
            await self._backend.prepare(claim)
        with anyio.move_on_after(0.001):
            await self._backend.prepare(claim)
        await self._backend.unprepare(claim, ())
        return await self._still_prepares()

    async def _still_prepares(self) -> list[str]:
        claim = self._own_claim("after")
        prepared = await self._backend.prepare(claim)
        await self._backend.unprepare(claim, prepared)
        return []

    async def _crash(self) -> None:
        await self._backend.wait_ready()
        before = self._backend.statistics()
        os.kill(before.pid, signal.SIGKILL)
        while self._backend.statistics().starts == before.starts:
            await self._backend.wait_changed()

    async def _hints(self) -> list[str]:
        return [f"{event.message}\n{event.details}" for event in self._events if isinstance(event, HintsFailed)]


def _is_usable(device: Device) -> bool:
    return device.health.status is not HealthStatus.UNHEALTHY and not device.taints


def _claim(uid: str, device: str, *configs: OpaqueConfig) -> Claim:
    allocated = AllocatedDevice(request="device", pool=_POOL, device=device, configs=configs)
    return Claim(uid=f"conformance-{uid}", namespace="default", name=f"conformance-{uid}", devices=(allocated,))


def _locate(backend: object) -> BackendSource:
    """Where another process can import the object from. Raises SettingsError."""
    if isinstance(backend, ModuleType):
        return choose_backend(f"{backend.__name__}:", ())
    module = sys.modules.get(type(backend).__module__)
    for name, value in vars(module).items() if module is not None else ():
        if value is backend:
            return choose_backend(f"{type(backend).__module__}:{name}", ())
    raise SettingsError([f"{backend!r} is not a module, and no variable of its class's module: give module:attribute"])
