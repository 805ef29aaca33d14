"""Runs the conformance checks against a backend, crashes included.

The backend runs in a process and is called as the agent would. Public: uses no test framework, and never raises for
what a backend does.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from glob import iglob
from types import ModuleType
from typing import Any

import anyio
from msgspec.structs import replace

from pydra.backends.discovery import BackendSource, choose_backend, extend_module_path, find_backend, variable_prefix
from pydra.backends.error_codec import MAX_REASON, is_reason
from pydra.backends.supervisor import BackendSupervisor, Deadlines, RestartPolicy
from pydra.backends.supervisor_events import (
    BackendEnded,
    BackendEvent,
    BackendFacts,
    BackendStartFailed,
    HintsFailed,
    RestoreFailed,
)
from pydra.backends.wire import Method
from pydra.cdi.host_path_checks import resolve
from pydra.cdi.spec import build_spec
from pydra.claim import AllocatedDevice, Claim, HeldClaim, OpaqueConfig, PreparedDevice
from pydra.device_rules import validate_inventory
from pydra.devices import Capacity, Device, HealthStatus, Inventory, Quantity
from pydra.errors import (
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    ClaimError,
    DeviceInUse,
    HostPathMissing,
    InvalidConfig,
    PydraError,
    SettingsError,
)
from pydra.quantity import parse_quantity
from pydra.settings import CLAIM_DEADLINE, CONNECT_DEADLINE, DISCOVER_DEADLINE, Settings, parse_settings
from pydra.testing.report import Check, Report
from pydra.testing.rules import Rule

_ABSENT = "pydra-no-such-device"
_POOL = "conformance"
_DRIVER = "conformance.example.com"

IMPATIENT_DEADLINE = 5.0
"""Seconds for a call for a claim after one has timed out."""

_Probe = Callable[[], Awaitable[list[str]]]

Progress = Callable[[str, Check | None], None]
"""Told the title of each check twice: before it is made, with None, and with its outcome."""


def check_backend(
    target: str | object,
    *,
    prepare: bool = True,
    config: Mapping[str, Any] = {},
    parameters: Sequence[Mapping[str, Any]] = (),
    progress: Progress = lambda _title, _check: None,
) -> Report:
    """Check an installed backend by name, `module:attribute`, or an importable module or object.

    Prepares and unprepares its first healthy device that is not held; with `prepare` false the hardware is only
    read. The backend's process can import what this process can. Simulated hardware keeps its state in a temporary
    directory, unless PYDRA_<NAME>_STATE names one. `config` is the agent's settings file: `backendSettings` has the
    backend's own settings; `drivers` and the directories say where an agent has records. `parameters` is the opaque
    configuration of the claims that it prepares, for devices that need one: each with its `apiVersion` and `kind`.
    `progress` is told each check's title before it is made, with None, and again with the Check.
    Raises SettingsError if there is no such backend.
    """
    source = find_backend(target) if isinstance(target, str) else _locate(target)
    logging.getLogger("pydra").addHandler(logging.NullHandler())  # crashes are intended, and the report has the rest
    # Direct targets only: an installed backend is found without the caller's path, as on a node.
    places = () if source.distribution else (*sys.path, "")
    with tempfile.TemporaryDirectory(prefix="pydra-check-") as state:
        environ = {f"{variable_prefix(source.name)}_STATE": state, **os.environ}
        environ = extend_module_path(environ, places)
        return anyio.run(
            lambda: run_checks(
                source, prepare=prepare, environ=environ, config=config, parameters=parameters, progress=progress
            )
        )


async def run_checks(
    source: BackendSource,
    *,
    prepare: bool = True,
    deadlines: Deadlines = Deadlines(connect=CONNECT_DEADLINE, discover=DISCOVER_DEADLINE),  # noqa: B008 - frozen
    environ: Mapping[str, str] | None = None,
    config: Mapping[str, Any] = {},
    parameters: Sequence[Mapping[str, Any]] = (),
    progress: Progress = lambda _title, _check: None,
) -> Report:
    """Do what `check_backend` does, inside an event loop."""
    run = _Run(source, os.environ if environ is None else environ, config, parameters, progress)
    supervisor = BackendSupervisor(
        source,
        deadlines=deadlines,
        restarts=RestartPolicy(first=0.05, cap=1.0),
        environ=environ,
        settings=config.get("backendSettings", {}).get(source.configured_name, {}),
        report=run.hear,
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.run)
        try:
            checks = await run.run(supervisor, connect=deadlines.connect, prepare=prepare)
        finally:
            with anyio.move_on_after(CLAIM_DEADLINE, shield=True):
                await run.undo(supervisor)
        tasks.cancel_scope.cancel()
    return Report(backend=source.name, checks=checks)


class _Skipped(Exception):
    """The check cannot be made; the message says why."""


class _Run:
    """One conformance run: the checks, each of which returns the problems that it found."""

    def __init__(
        self,
        source: BackendSource,
        environ: Mapping[str, str],
        config: Mapping[str, Any],
        parameters: Sequence[Mapping[str, Any]],
        progress: Progress,
    ) -> None:
        self._progress = progress
        self._timed_out = False
        self._source = source
        self._config = config
        self._environ = environ
        self._agent = _find_agent_settings(source.name, environ, config)
        self._backend: BackendSupervisor
        self._connect_limit = 0.0
        self._events: list[BackendEvent] = []
        self._starting: anyio.CancelScope | None = None
        self._checks: list[Check] = []
        self._notes: list[str] = []
        self._lines: list[str] = []
        self._found = ""
        self._unprepared = ""
        self._parameters = tuple(
            OpaqueConfig(source="FromClaim", position=f"parameters[{place}]", parameters=one)
            for place, one in enumerate(parameters)
        )
        self._facts: BackendFacts | None = None
        self._inventory: Inventory | None = None
        self._device = Device(name=_ABSENT)
        self._claims: dict[str, Claim] = {}
        self._planned: dict[str, Claim] = {}
        self._held: dict[str, HeldClaim] = {}
        self._prepared: tuple[PreparedDevice, ...] = ()

    async def run(self, supervisor: BackendSupervisor, *, connect: float, prepare: bool) -> tuple[Check, ...]:
        self._backend, self._connect_limit = supervisor, connect
        await self._probe(Rule.CONNECT, self._connect)
        if self._facts is not None and (prepared := self._find_prepared(self._facts)):
            # `restore` would end what no claim of this run explains: the work of running pods.
            why = f"an agent has prepared claims on this node ({prepared}); check the backend on a node without"
            self._skip(Rule.CALLED, why)
        elif self._facts is not None:
            supervisor.restore_from(self._hold_all)
            await self._read(self._facts)
            await self._touch(prepare)
            if Method.RESTORE in self._facts.methods:
                await self._probe(Rule.RESTORE, self._restores)
            await self._probe(Rule.HINTS, self._hints)
        return tuple(self._checks)

    def _find_prepared(self, facts: BackendFacts) -> str:
        """Find a record of a claim that an agent has prepared here with this backend.

        Empty if there is none, and for a backend without `restore`. Any driver's record counts if no name is known.
        """
        if Method.RESTORE not in facts.methods:
            return ""
        environ, config = self._environ, self._config
        renamed = dict(one.split("=", 1) for one in environ.get("PYDRA_DRIVER", "").split(",") if "=" in one)
        renamed = {**config.get("drivers", {}), **renamed}
        names = {facts.driver, renamed.get(self._source.configured_name, "")} - {""} or {"*"}
        directories = (directory for name in names for directory in self._agent.claim_directories(name))
        return next((path for directory in directories for path in iglob(f"{directory}/*.*")), "")

    def hear(self, event: BackendEvent) -> None:
        """Handle an event of the supervisor. The first failure to start is enough: the agent would keep trying."""
        self._events.append(event)
        if self._starting is not None and isinstance(event, BackendStartFailed | BackendEnded):
            self._starting.cancel()

    async def undo(self, supervisor: BackendSupervisor) -> None:
        """Unprepare what a failed check still holds; the report already has the failure."""
        for held in tuple(self._held.values()):
            with suppress(PydraError):
                await supervisor.unprepare(held.claim, (), until=self._deadline())

    def _deadline(self) -> float:
        """When a call for a claim must have ended; after one that timed out, the others get no such time again."""
        return anyio.current_time() + (IMPATIENT_DEADLINE if self._timed_out else CLAIM_DEADLINE)

    async def _read(self, facts: BackendFacts) -> None:
        await self._probe(Rule.DRIVER, self._driver)
        if facts.settings:
            await self._probe(Rule.SETTINGS, self._settings)
        if facts.reasons:
            await self._probe(Rule.REASONS, self._reasons)
        await self._probe(Rule.DISCOVER, self._discover)
        if self._inventory is None:
            self._skip(Rule.STABLE, "discover failed")
        else:
            await self._probe(Rule.STABLE, self._discover_again)
            await self._probe(Rule.COUNTERS, self._counters)
        if Method.MEASURE in facts.methods:
            await self._probe(Rule.MEASURE, self._measure)
        for kind in facts.config_kinds:
            await self._probe(Rule.CONFIG, lambda kind=kind: self._misspelt(kind), kind)  # type: ignore[misc]

    async def _touch(self, prepare: bool) -> None:
        probes: list[tuple[Rule, _Probe]] = [
            (Rule.UNKNOWN, self._absent),
            (Rule.UNPREPARE_NOTHING, self._unprepare_nothing),
            (Rule.PREPARE, self._prepare),
            (Rule.PREPARE_AGAIN, self._prepare_again),
            (Rule.PREPARE_AFTER_CRASH, self._prepare_after_crash),
            (Rule.UNPREPARE, self._unprepare),
            (Rule.UNPREPARE_AGAIN, self._unprepare),
            (Rule.UNPREPARE_AFTER_CRASH, self._unprepare_after_crash),
            (Rule.CONCURRENT, self._concurrent),
            (Rule.CANCEL, self._cancel),
        ]
        if self._facts is not None and Method.PLAN in self._facts.methods:
            probes += [
                (Rule.PLAN, self._plan_again),
                (Rule.PLAN_CRASH, self._crash_after_plan),
            ]
        usable = self._usable()
        self._device = usable[0] if usable else self._device
        for rule, probe in probes:
            if not prepare:
                self._skip(rule, "asked to leave the hardware alone")
            elif self._inventory is None:
                self._skip(rule, "discover failed")
            elif not usable:
                self._skip(rule, "no healthy device")
            elif self._unprepared:
                self._skip(rule, self._unprepared)
            else:
                await self._probe(rule, probe)

    def _usable(self) -> list[Device]:
        return [one for one in self._inventory.devices if _is_usable(one)] if self._inventory is not None else []

    def _skip(self, rule: Rule, why: str) -> None:
        self._add(Check(rule=rule.value, title=rule.sentence, skipped=why))

    def _add(self, check: Check) -> None:
        self._checks.append(check)
        self._progress(check.title, check)

    async def _probe(self, rule: Rule, probe: _Probe, of: str = "") -> None:
        title, skipped = rule.sentence.format(of), ""
        self._progress(title, None)
        try:
            problems = await probe()
        except _Skipped as why:
            problems, skipped = [], str(why)
        except BackendError as error:
            self._timed_out = self._timed_out or isinstance(error, BackendTimeout)
            problems = [f"{error}\n{error.details}".strip()]
        except SettingsError as error:
            problems = list(error.problems)
        except PydraError as error:
            problems = [f"{type(error).__name__}: {error}"]
        check = Check(
            rule=rule.value,
            title=title,
            problems=tuple(problems),
            skipped=skipped,
            notes=tuple(self._notes),
            found=self._found,
            lines=tuple(self._lines),
        )
        self._add(check)
        self._notes, self._lines, self._found = [], [], ""

    # Reading

    async def _connect(self) -> list[str]:
        with anyio.move_on_after(self._connect_limit) as self._starting:
            self._facts = await self._backend.wait_ready()
        self._starting = None
        if self._facts is not None:
            return []
        failed = [
            f"{event.message}\n{event.details}" for event in self._events if isinstance(event, BackendStartFailed)
        ]
        died = [event.diagnosis.report for event in self._events if isinstance(event, BackendEnded)]
        return [*failed, *died] or [f"it was not ready within {self._connect_limit:g} s"]

    async def _driver(self) -> list[str]:
        """Advise a DRIVER: without it, the agent needs a name in its settings."""
        driver = self._facts.driver if self._facts is not None else ""
        if not driver:
            name = self._source.configured_name
            self._notes.append(f"DRIVER is absent, so every admin must give one: --driver {name}=NAME")
        return []

    async def _settings(self) -> list[str]:
        """Show the settings; the agent refuses invalid ones before anything else."""
        self._lines += [
            f"{one.name} = {one.value} (allowed: {one.allowed}; default: {one.default}; from: {one.source}; "
            f"variable: {one.variable})"
            for one in (self._facts.settings if self._facts is not None else ())
        ]
        return []

    async def _reasons(self) -> list[str]:
        """Advise valid reasons: otherwise pydra's own reason is used for the error."""
        reasons = self._facts.reasons if self._facts is not None else {}
        usable = sorted({reason for reason in reasons.values() if is_reason(reason)})
        self._found = ", ".join(usable)
        self._notes += [
            f"{name}.reason is {reason!r}; Events and metrics use pydra's reason instead, "
            f"because it is not CamelCase of at most {MAX_REASON} letters and digits, such as GpuBusy"
            for name, reason in reasons.items()
            if not is_reason(reason)
        ]
        return []

    async def _discover(self) -> list[str]:
        self._inventory = inventory = await self._backend.discover()
        self._notes += [f"hardware cannot be read: {text}" for text in inventory.unreadable]
        valid = validate_inventory(inventory)
        return [*valid.problems, *valid.dropped]

    async def _discover_again(self) -> list[str]:
        again = {device.name: device for device in (await self._backend.discover()).devices}
        before = {device.name: device for device in self._inventory.devices} if self._inventory is not None else {}
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

    async def _counters(self) -> list[str]:
        """Find devices that need more of a counter than there is; names and sets are `discover`'s to obey."""
        inventory = self._inventory or Inventory()
        sets = {one.name: one.counters for one in inventory.counter_sets}
        return [
            f"device {device.name} needs {amount} of counter {name} of set {one.counter_set}, which has {available}"
            for device in inventory.devices
            for one in device.consumes_counters
            for name, amount in one.counters.items()
            if (available := sets.get(one.counter_set, {}).get(name)) is not None
            and parse_quantity(amount) > parse_quantity(available)
        ]

    async def _measure(self) -> list[str]:
        """Advise known devices; but hardware that is not listed may have samples, such as a partitioned GPU."""
        measured = {sample.device: None for sample in await self._backend.measure()}
        if self._inventory is None:
            return []
        known = {device.name for device in self._inventory.devices} | {""}
        self._notes += [
            f"there are samples of device {name}, which discover does not list"
            for name in measured
            if name not in known
        ]
        return []

    async def _misspelt(self, kind: str) -> list[str]:
        api_version, _, name = kind.rpartition("/")
        parameters = {"apiVersion": api_version, "kind": name, "pydraNoSuchField": 1}
        config = OpaqueConfig(source="FromClaim", position="config[0]", parameters=parameters)
        claim = self._claim(f"misspelt-{name}", Device(name=_ABSENT), config)
        try:
            await self._hold(claim)
        except InvalidConfig as error:
            self._held.pop(claim.uid, None)
            return [] if "pydraNoSuchField" in str(error) else [f"the error does not name the field: {error}"]
        return ["it was accepted"]

    async def _absent(self) -> list[str]:
        """Advise UnknownDevice: it happens only with a device that disappeared after it was published."""
        claim = self._claim("absent", Device(name=_ABSENT))
        try:
            await self._hold(claim)
        except ClaimError:
            self._held.pop(claim.uid, None)
            return []
        self._notes.append(
            f"prepare of device {_ABSENT} succeeded; a device may have gone since the scheduler chose it: "
            "raise pydra.UnknownDevice, so the pod's Events show it"
        )
        await self._release(claim, ())
        return []

    # Touching

    def _claim(self, name: str, device: Device, *configs: OpaqueConfig) -> Claim:
        """Return the claim of this name, with a uid that no other run has used."""
        if name not in self._claims:
            self._claims[name] = _build_claim(name, device, configs or self._parameters)
        return self._claims[name]

    async def _hold(self, claim: Claim) -> tuple[PreparedDevice, ...]:
        """Plan, if it plans, and prepare, as the agent does: what is begun is held from before prepare on."""
        planned = await self._plan(claim)
        self._held.setdefault(claim.uid, HeldClaim(claim=planned, completed=False))
        prepared = await self._backend.prepare(planned, until=self._deadline())
        self._held[claim.uid] = HeldClaim(claim=planned, prepared=prepared, completed=True)
        return prepared

    async def _plan(self, claim: Claim) -> Claim:
        """Return the claim with its plan; a held claim keeps its plan."""
        if self._facts is None or Method.PLAN not in self._facts.methods:
            return claim
        if claim.uid not in self._held:
            plan = await self._backend.plan(claim, tuple(self._held.values()), until=self._deadline())
            self._planned[claim.uid] = replace(claim, plan=plan)
        return self._planned[claim.uid]

    async def _release(self, claim: Claim, prepared: Sequence[PreparedDevice]) -> None:
        planned = self._planned.get(claim.uid, claim)
        await self._backend.unprepare(planned, prepared, until=self._deadline())
        self._held.pop(claim.uid, None)

    @asynccontextmanager
    async def _hold_all(self) -> AsyncIterator[Sequence[HeldClaim]]:
        yield tuple(self._held.values())

    async def _plan_again(self) -> list[str]:
        claim, held = self._claim("plan", self._device), tuple(self._held.values())
        first = await self._backend.plan(claim, held, until=self._deadline())
        again = await self._backend.plan(claim, held, until=self._deadline())
        return [] if first == again else [f"first {first}, then {again}"]

    async def _crash_after_plan(self) -> list[str]:
        claim = self._claim("planned", self._device)
        self._held[claim.uid] = HeldClaim(claim=await self._plan(claim), completed=False)
        await self._crash()
        await self._release(claim, ())
        return await self._still_prepares("after-plan")

    async def _restores(self) -> list[str]:
        return [f"{event.message}\n{event.details}" for event in self._events if isinstance(event, RestoreFailed)]

    async def _unprepare_nothing(self) -> list[str]:
        await self._backend.unprepare(self._claim("never", self._device), (), until=self._deadline())
        return []

    async def _prepare(self) -> list[str]:
        """Prepare the first device that is free and takes the parameters: on a node at work, others are held by claims.

        A device may need configuration that only its claims' authors know; without `parameters` it is not prepared.
        """
        usable = self._usable()
        for place, device in enumerate(usable, start=1):
            claim = _build_claim("one", device, self._parameters)
            try:
                self._prepared = await self._hold(claim)
            except DeviceInUse as error:
                if place == len(usable):
                    raise
                self._held.pop(claim.uid, None)
                self._notes.append(f"{error}; the next one is taken")
                continue
            except InvalidConfig as error:
                self._held.pop(claim.uid, None)
                if place < len(usable):
                    continue
                if self._parameters or self._facts is None or not self._facts.config_kinds:
                    raise
                self._unprepared = "no device is prepared without configuration; give check_backend parameters"
                self._notes.append(str(error))
                raise _Skipped(self._unprepared) from error
            self._device, self._claims["one"] = device, claim
            driver = self._facts.driver if self._facts is not None else ""
            build_spec(driver or _DRIVER, claim.uid, self._prepared)
            self._advise_bind_mounts()
            await self._look_for_host_paths()
            break
        return []

    def _advise_bind_mounts(self) -> None:
        """Advise the option that makes a mount of a host's path: CDI allows its absence, and no runtime mounts then."""
        for one in self._prepared:
            for mount in one.edits.mounts:
                if mount.type in ("", "none") and not {"bind", "rbind"}.intersection(mount.options):
                    self._notes.append(
                        f"mount {mount.container_path}: its options {', '.join(mount.options)} have neither "
                        "bind nor rbind; container runtimes refuse such a mount"
                    )

    async def _look_for_host_paths(self) -> None:
        """Advise existing paths: the agent refuses the claim while one is missing, but this may not be the node."""
        try:
            await resolve(self._prepared, root=self._environ.get("PYDRA_HOST_ROOT", "/"))
        except HostPathMissing as error:
            self._notes += [f"{missing}; the agent refuses the claim while it is missing" for missing in error.missing]
        except ClaimError as error:
            self._notes.append(str(error))

    async def _prepare_again(self) -> list[str]:
        again = await self._hold(self._claim("one", self._device))
        return [] if again == self._prepared else [f"first {self._prepared}, then {again}"]

    async def _prepare_after_crash(self) -> list[str]:
        await self._crash()
        return await self._prepare_again()

    async def _unprepare(self) -> list[str]:
        await self._release(self._claim("one", self._device), self._prepared)
        return []

    async def _unprepare_after_crash(self) -> list[str]:
        claim = self._claim("two", self._device)
        await self._hold(claim)
        await self._crash()
        await self._release(claim, ())
        return await self._still_prepares("after-crash")

    async def _concurrent(self) -> list[str]:
        others = [one for one in self._usable() if one.name != self._device.name and not one.consumes_counters]
        if not others or self._device.consumes_counters:
            raise _Skipped("there are no two devices that surely are independent of each other")
        claims = [self._claim("left", self._device), self._claim("right", others[0])]
        errors: list[PydraError] = []

        async def hold(claim: Claim) -> None:
            try:
                await self._hold(claim)
            except PydraError as error:
                errors.append(error)

        for claim in claims:  # the agent plans one after another
            self._held.setdefault(claim.uid, HeldClaim(claim=await self._plan(claim), completed=False))
        async with anyio.create_task_group() as tasks:
            for claim in claims:
                tasks.start_soon(hold, claim)
        for claim in claims:
            await self._release(claim, self._held[claim.uid].prepared)
        if errors and all(isinstance(error, ClaimError) for error in errors):
            for claim in claims:
                await self._hold_alone(claim)
        return [f"refused beside another claim, and not alone: {error}" for error in errors]

    async def _hold_alone(self, claim: Claim) -> None:
        """Prepare and unprepare the claim; what refuses it alone as well has nothing to do with other claims."""
        try:
            prepared = await self._hold(claim)
        except ClaimError as error:
            await self._release(claim, ())
            raise _Skipped(str(error)) from error
        await self._release(claim, prepared)

    async def _cancel(self) -> list[str]:
        claim = self._claim("three", self._device)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await self._hold(claim)
        with anyio.move_on_after(0.001):
            await self._hold(claim)
        await self._release(claim, ())
        return await self._still_prepares("after-cancel")

    async def _still_prepares(self, name: str) -> list[str]:
        claim = self._claim(name, self._device)
        await self._release(claim, await self._hold(claim))
        return []

    async def _crash(self) -> None:
        await self._backend.wait_ready()
        before = self._backend.statistics()
        os.kill(before.pid, signal.SIGKILL)
        with anyio.move_on_after(self._connect_limit):
            while self._backend.statistics().starts == before.starts:
                await self._backend.wait_changed()
            return
        raise BackendUnavailable(self._source.name, f"did not come back within {self._connect_limit:g} s after a crash")

    async def _hints(self) -> list[str]:
        return [f"{event.message}\n{event.details}" for event in self._events if isinstance(event, HintsFailed)]


def _find_agent_settings(backend: str, environ: Mapping[str, str], config: Mapping[str, Any]) -> Settings:
    """Return settings with the directories in which an agent on this node has records. Raises SettingsError."""
    keys = {"kubeletRoot": "PYDRA_KUBELET_ROOT", "pluginsDir": "PYDRA_PLUGINS_DIR", "recordsDir": "PYDRA_RECORDS_DIR"}
    given = {key: environ.get(variable) or config.get(key) for key, variable in keys.items()}
    places = {key: path for key, path in given.items() if path}
    return parse_settings({"backends": [backend], "nodeName": "unknown", **places})


def _is_usable(device: Device) -> bool:
    return device.health.status is not HealthStatus.UNHEALTHY and not device.taints


def _build_claim(name: str, device: Device, configs: tuple[OpaqueConfig, ...]) -> Claim:
    shared = device.allow_multiple_allocations
    allocated = AllocatedDevice(
        request="device",
        pool=_POOL,
        device=device.name,
        share_id=str(uuid.uuid4()) if shared else None,
        consumed_capacity={name: str(_share(one)) for name, one in device.capacity.items()} if shared else {},
        configs=configs,
    )
    return Claim(uid=str(uuid.uuid4()), namespace="default", name=f"conformance-{name}", devices=(allocated,))


def _share(capacity: Capacity) -> Quantity:
    """Return what a claim gets that requests no amount."""
    default = capacity.policy.default if capacity.policy is not None else None
    return capacity.value if default is None else default


def _locate(backend: object) -> BackendSource:
    """Find from where another process can import the object. Raises SettingsError."""
    if isinstance(backend, ModuleType):
        return choose_backend(f"{backend.__name__}:", ())
    module = sys.modules.get(type(backend).__module__)
    for name, value in vars(module).items() if module is not None else ():
        if value is backend:
            return choose_backend(f"{type(backend).__module__}:{name}", ())
    raise SettingsError([f"{backend!r} is not a module, and no variable of its class's module: give module:attribute"])
