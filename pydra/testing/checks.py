"""The conformance checks, each of which returns the problems that it found."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from glob import iglob
from typing import Any

import anyio
from msgspec.structs import replace

from pydra.backends.claim_config import build_header
from pydra.backends.discovery import BackendSource
from pydra.backends.error_codec import MAX_REASON, is_reason
from pydra.backends.supervisor_events import BackendEnded, BackendEvent, BackendFacts, BackendTrouble, Trouble
from pydra.backends.timeouts import ProcessTimeouts
from pydra.backends.wire import Method
from pydra.cdi.host_path_checks import resolve
from pydra.cdi.spec import build_spec
from pydra.checkpoint.record_files import StoredRecord, list_stored
from pydra.claim import Claim, OpaqueConfig, PreparedDevice
from pydra.claims.device_use import PublishedPool, may_meet
from pydra.devices import Device, Inventory
from pydra.errors import (
    BackendError,
    CheckpointError,
    ClaimError,
    ContractError,
    DeviceInUse,
    EditConflict,
    HostPathMissing,
    InvalidConfig,
    PydraError,
    SettingsError,
)
from pydra.inventory.api_rules import validate_inventory
from pydra.plan import ClaimStep
from pydra.samples import find_left_out
from pydra.settings import Settings, parse_settings
from pydra.testing.compare_answers import find_changes, find_differences, find_plan_changes
from pydra.testing.interruptions import cancel_everywhere, crash_in_prepare, crash_in_restore, crash_in_unprepare
from pydra.testing.leaks import Leaks
from pydra.testing.report import Check, fold_alike
from pydra.testing.rules import Rule
from pydra.testing.session import ABSENT, Session
from pydra.testing.undone_steps import find_not_restored, find_undone_by_nothing
from pydra.testing.usable_devices import find_pair, find_unaffordable, list_kinds, list_usable

_DRIVER = "conformance.example.com"
_HINTS = 3
_IDLE_SECONDS = 1.0
_LATE_SECONDS = 30.0
"""For what starts the process, and ends it if it is late: then it is known where the process was."""

_Probe = Callable[[], Awaitable[list[str]]]

Progress = Callable[[str, Check | None], None]
"""Called with the title of each check twice: before it is made, with None, and after it, with the Check."""


class _Skipped(Exception):
    """The check cannot be made; the message says why."""


class Checks:
    """The checks of one run, and what they have found so far."""

    _session: Session

    def __init__(
        self,
        source: BackendSource,
        environ: Mapping[str, str],
        config: Mapping[str, Any],
        progress: Progress,
        timeouts: ProcessTimeouts,
        *,
        device: str,
    ) -> None:
        """`device` is the name of the device to prepare; empty for the first one that is free."""
        self._device = device
        self._progress = progress
        self._timeouts = timeouts
        self._source = source
        self._config = config
        self._environ = environ
        self._agent = _find_agent_settings(source.name, environ, config)
        self._connect_limit = 0.0
        self._events: list[BackendEvent] = []
        self._starting: anyio.CancelScope | None = None
        self._probing: anyio.CancelScope | None = None
        self._checks: list[Check] = []
        self._notes: list[str] = []
        self._lines: list[str] = []
        self._found = ""
        self._hopeless = ""
        self._invalid_settings: SettingsError | None = None
        self._inventory: Inventory | None = None
        self._stored: tuple[StoredRecord, ...] = ()
        self._prepared: tuple[PreparedDevice, ...] = ()
        self._steps: tuple[ClaimStep, ...] = ()
        self._leaks = Leaks()
        self._late: list[str] = []

    async def run(self, session: Session, *, connect: float, prepare: bool) -> tuple[Check, ...]:
        """Make the checks, in order; `connect` is the limit of a start in seconds."""
        self._session, self._connect_limit = session, connect
        await self._probe(Rule.CONNECT, self._connect)
        facts = session.facts
        if self._invalid_settings is not None or (facts is not None and facts.settings):
            await self._probe(Rule.SETTINGS, self._settings)
        if facts is None:
            return tuple(self._checks)
        self._stored = self._list_records(facts)
        if self._stored and session.has(Method.RESTORE):
            # `restore` would end what no claim of this run explains: the work of running pods.
            self._skip(Rule.CALLED, self._explain_records())
            return tuple(self._checks)
        session.backend.restore_from(session.hold_all)
        await self._read(facts)
        await self._touch(prepare)
        await self._conclude(facts)
        return tuple(self._checks)

    def _list_records(self, facts: BackendFacts) -> tuple[StoredRecord, ...]:
        """List the records of claims that an agent has prepared here with this backend.

        Any driver's records count if no name is known. A directory that cannot be read is one of an unknown claim.
        """
        environ, config = self._environ, self._config
        renamed = dict(one.split("=", 1) for one in environ.get("PYDRA_DRIVER", "").split(",") if "=" in one)
        renamed = {**config.get("drivers", {}), **renamed}
        names = {facts.driver, renamed.get(self._source.configured_name, "")} - {""} or {"*"}
        patterns = [pattern for name in names for pattern in self._agent.claim_directories(name)]
        return tuple(one for pattern in patterns for path in sorted(iglob(pattern)) for one in _read_records(path))

    def _explain_records(self) -> str:
        path = self._stored[0].path
        return f"an agent has prepared claims on this node ({path}); check the backend on a node without"

    def hear(self, event: BackendEvent) -> None:
        """Handle an event of the supervisor. The first failure to start is enough: the agent would keep trying."""
        self._events.append(event)
        match event:
            case BackendEnded() | BackendTrouble(trouble=Trouble.START) if self._starting is not None:
                self._starting.cancel()
            case BackendTrouble(trouble=Trouble.RESTORE):  # no call is made before it succeeds
                self._give_up("restore failed")
            case BackendTrouble(trouble=Trouble.HINTS, ended=True):  # it would do so again
                self._give_up("wait_changed ended the process")

    def _give_up(self, why: str) -> None:
        self._hopeless = why
        if self._probing is not None:
            self._probing.cancel()

    async def undo(self, session: Session) -> None:
        """Unprepare what a failed check still holds; the report already has the failure."""
        for held in tuple(session.records.values()) if self._hopeless != "restore failed" else ():
            with suppress(PydraError):
                await session.release(held.claim)

    async def _read(self, facts: BackendFacts) -> None:
        await self._probe(Rule.DRIVER, self._driver)
        if facts.misspelt:
            await self._probe(Rule.NAMES, self._misspelt_names)
        if facts.reasons:
            await self._probe(Rule.REASONS, self._reasons)
        await self._probe(Rule.DISCOVER, self._discover)
        if self._inventory is None:
            self._skip(Rule.STABLE, "discover failed")
        else:
            await self._probe(Rule.STABLE, self._discover_again)
            await self._probe(Rule.COUNTERS, self._counters)
            if Method.WAIT_CHANGED in facts.methods:
                await self._probe(Rule.IDLE, self._idle)
        if Method.MEASURE in facts.methods:
            await self._probe(Rule.MEASURE, self._measure)
        for kind in facts.config_kinds:
            await self._probe(Rule.CONFIG, lambda kind=kind: self._misspelt(kind), kind)  # type: ignore[misc]
        if facts.config_kinds:
            await self._probe(Rule.CONFIG_TYPES, self._untyped)
            await self._probe(Rule.CONFIG_RULES, self._failing_rules)

    async def _touch(self, prepare: bool) -> None:
        session = self._session
        probes: list[tuple[Rule, _Probe]] = [
            (Rule.UNKNOWN, self._absent),
            (Rule.UNPREPARE_NOTHING, self._unprepare_nothing),
            (Rule.PREPARE, self._prepare),
            (Rule.EDITS, self._edits),
            (Rule.PREPARE_AGAIN, self._prepare_again),
            (Rule.PREPARE_AFTER_CRASH, self._prepare_after_crash),
            (Rule.UNPREPARE, self._unprepare),
            (Rule.UNDONE, self._undone),
            (Rule.UNPREPARE_AGAIN, self._unprepare_again),
            (Rule.TOGETHER, self._together),
            (Rule.CONCURRENT, self._concurrent),
            (Rule.CANCEL, self._cancel),
            (Rule.DEADLINE, self._deadline),
            (Rule.UNPREPARE_AFTER_CRASH, lambda: crash_in_prepare(session)),
            (Rule.UNPREPARE_CRASH, lambda: crash_in_unprepare(session)),
        ]
        if session.has(Method.PLAN):
            probes += [
                (Rule.PLAN, self._plan_again),
                (Rule.PLAN_CRASH, self._crash_after_plan),
            ]
        usable = self._list_wanted()
        session.device = usable[0] if usable else session.device
        for rule, probe in probes:
            if not prepare:
                self._skip(rule, "asked to leave the hardware alone")
            elif self._stored and session.has(Method.PLAN):  # it would have to know them, and their steps
                self._skip(rule, self._explain_records())
            elif self._inventory is None:
                self._skip(rule, "discover failed")
            elif not usable and self._device and rule is Rule.PREPARE:
                names = ", ".join(one.name for one in self._usable())
                found = f"no healthy device is called {self._device}; there are: {names or 'none'}"
                self._add(Check(rule=rule.value, title=rule.sentence, problems=(found,)))
            elif not usable:
                unused = " that no claim uses" if self._stored else ""
                self._skip(rule, f"no healthy device{unused}" + (f" is called {self._device}" if self._device else ""))
            else:
                await self._probe_safely(rule, probe)

    async def _probe_safely(self, rule: Rule, probe: _Probe) -> None:
        """Make a check so that its failure is not that of those that follow.

        Without an answer of prepare, and without unprepare, there is nothing to follow.
        """
        await self._probe(rule, probe)
        if not self._checks[-1].problems or self._hopeless:
            return
        if rule in (Rule.PREPARE, Rule.UNPREPARE):
            self._hopeless = f"{rule.value} failed"
        elif rule in (Rule.CONCURRENT, Rule.CANCEL):  # what they left in the process would fail the next calls
            with suppress(PydraError):
                await self._session.crash()

    async def _conclude(self, facts: BackendFacts) -> None:
        """Report what can only be told at the end."""
        if Method.RESTORE in facts.methods:
            await self._probe(Rule.RESTORE, self._restores)
        if Method.WAIT_CHANGED in facts.methods:
            self._conclude_one(Rule.HINTS, self._describe(Trouble.HINTS))
        observed = self._session.observations()
        blocked = {one.place: one.blocked for one in sorted(observed, key=lambda one: one.blocked) if one.blocked}
        self._conclude_one(Rule.BLOCKING, [f"it was blocked for {one:.1f} s: {at}" for at, one in blocked.items()])
        self._conclude_one(Rule.AWAITED, [one.unawaited for one in observed if one.unawaited])
        self._conclude_one(Rule.FORKED, [one.forked for one in observed if one.forked])
        self._conclude_one(Rule.LEAKED_TASKS, self._leaks.tasks)
        self._conclude_one(Rule.LEAKED_THREADS, self._leaks.threads)
        self._conclude_one(Rule.LEAKED_DESCRIPTORS, self._leaks.descriptors)

    def _conclude_one(self, rule: Rule, problems: Iterable[str]) -> None:
        self._add(Check(rule=rule.value, title=rule.sentence, problems=tuple(dict.fromkeys(problems))))

    async def _look_for_leaks(self, method: Method, name: str, call: Callable[[int], Awaitable[object]]) -> None:
        """Repeat a call; whether it fails is for other rules to tell."""
        with anyio.CancelScope() as self._probing, suppress(PydraError):
            await self._leaks.look(self._session, method, name, call)

    def _usable(self) -> list[Device]:
        return list_usable(self._free())

    def _free(self) -> Inventory:
        """Return the inventory without what the agent's claims use, or may use."""
        inventory = self._inventory or Inventory()
        pool = PublishedPool(devices={one.name: one for one in inventory.devices}, counter_sets=inventory.counter_sets)
        held = [one.claim for one in self._stored]
        free = [one for one in inventory.devices if not any(may_meet({one.name}, claim, {"": pool}) for claim in held)]
        return replace(inventory, devices=tuple(free))

    def _list_wanted(self) -> list[Device]:
        return [one for one in self._usable() if self._device in ("", one.name)]

    def _skip(self, rule: Rule, why: str) -> None:
        self._add(Check(rule=rule.value, title=rule.sentence, skipped=why))

    def _add(self, check: Check) -> None:
        self._checks.append(check)
        self._progress(check.title, check)

    async def _probe(self, rule: Rule, probe: _Probe, of: str = "") -> None:
        title, skipped, problems = rule.sentence.format(of), "", list[str]()
        self._progress(title, None)
        with anyio.CancelScope() as self._probing:
            try:
                if self._hopeless and rule is not Rule.RESTORE:
                    raise _Skipped(self._hopeless)
                problems = await probe()
            except _Skipped as why:
                skipped = str(why)
            except BackendError as error:
                self._session.note_timeout(error)
                problems = [f"{error}\n{error.details}".strip()]
            except SettingsError as error:
                problems = list(error.problems)
            except PydraError as error:
                problems = [f"{type(error).__name__}: {error}"]
        if self._probing is not None and self._probing.cancelled_caught:
            skipped = self._hopeless
        self._probing = None
        check = Check(
            rule=rule.value,
            title=title,
            problems=fold_alike(problems, self._names()),
            skipped=skipped,
            notes=fold_alike(self._notes, self._names()),
            found=self._found,
            lines=tuple(self._lines),
        )
        self._add(check)
        self._notes, self._lines, self._found = [], [], ""

    def _names(self) -> list[str]:
        return [one.name for one in self._inventory.devices] if self._inventory is not None else []

    # Reading

    async def _connect(self) -> list[str]:
        with anyio.move_on_after(self._connect_limit + _LATE_SECONDS) as self._starting:
            try:
                self._session.facts = await self._session.backend.wait_ready()
            except SettingsError as error:
                self._invalid_settings = error
                raise _Skipped("its settings are invalid") from error
        self._starting = None
        if self._session.facts is not None:
            return []
        died = [event.diagnosis.report for event in self._events if isinstance(event, BackendEnded)]
        return [*self._describe(Trouble.START), *died] or [f"it was not ready within {self._connect_limit:g} s"]

    async def _driver(self) -> list[str]:
        """Advise a DRIVER: without it, the agent needs a name in its settings."""
        if not self._driver_name():
            name = self._source.configured_name
            self._notes.append(f"DRIVER is absent, so every admin must give one: --driver {name}=NAME")
        return []

    async def _misspelt_names(self) -> list[str]:
        """Advise of names that the agent does not know: they may as well be helpers."""
        known = self._session.facts.misspelt if self._session.facts is not None else {}
        self._notes += [f"{name} means nothing to the agent; did you mean {meant}?" for name, meant in known.items()]
        return []

    async def _settings(self) -> list[str]:
        """Show the settings; the agent refuses invalid ones before anything else."""
        if self._invalid_settings is not None:
            raise self._invalid_settings
        self._lines += [
            f"{one.name} = {one.value} (allowed: {one.allowed}; default: {one.default}; from: {one.source}; "
            f"variable: {one.variable})"
            for one in (self._session.facts.settings if self._session.facts is not None else ())
        ]
        return []

    async def _reasons(self) -> list[str]:
        """Advise valid reasons: otherwise pydra's own reason is used for the error."""
        reasons = self._session.facts.reasons if self._session.facts is not None else {}
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
        inventory = await self._session.backend.discover()
        self._notes += [f"hardware cannot be read: {text}" for text in inventory.unreadable]
        valid = validate_inventory(inventory)
        self._inventory = replace(inventory, devices=valid.devices, counter_sets=valid.counter_sets)
        return [*valid.problems, *valid.dropped]

    async def _discover_again(self) -> list[str]:
        problems = await self._find_changes()
        await self._look_for_leaks(Method.DISCOVER, "discover", lambda _place: self._session.backend.discover())
        return problems

    async def _find_changes(self) -> list[str]:
        inventory = await self._session.backend.discover()
        valid = validate_inventory(inventory)
        again = replace(inventory, devices=valid.devices, counter_sets=valid.counter_sets)
        return find_changes(self._inventory or Inventory(), again)

    async def _idle(self) -> list[str]:
        """Find hints that come one after the other although nothing changes; one may be left from the start."""
        before = await self._session.backend.discover()
        for _ in range(_HINTS + 1):
            with anyio.move_on_after(_IDLE_SECONDS) as waiting:
                await self._session.backend.wait_changed()
            if waiting.cancelled_caught:
                return []
        if await self._session.backend.discover() != before:
            return []
        return [f"it returned {_HINTS} times in a row, each within {_IDLE_SECONDS:g} s, and discover answered the same"]

    async def _counters(self) -> list[str]:
        return find_unaffordable(self._inventory or Inventory())

    async def _measure(self) -> list[str]:
        """Advise known devices; but hardware that is not listed may have samples, such as a partitioned GPU."""
        await self._look_for_leaks(Method.MEASURE, "measure", lambda _place: self._session.backend.measure())
        samples = await self._session.backend.measure()
        measured = {sample.device: None for sample in samples}
        left_out = find_left_out(samples)
        problems = [f"sample {samples[place].name} {why}; the agent leaves it out" for place, why in left_out.items()]
        if self._inventory is None:
            return problems
        known = {device.name for device in self._inventory.devices} | {""}
        text = "there are samples of device {}, which discover does not list"
        self._notes += [text.format(name) for name in measured if name not in known]
        return problems

    async def _misspelt(self, kind: str) -> list[str]:
        parameters = {**build_header(kind), "pydraNoSuchField": 1}
        config = OpaqueConfig(source="FromClaim", position="config[0]", parameters=parameters)
        claim = self._session.claim(f"misspelt-{kind}", Device(name=ABSENT), (config,))
        try:
            await self._session.hold(claim)
        except InvalidConfig as error:
            self._session.forget(claim)
            return [] if "pydraNoSuchField" in str(error) else [f"the error does not name the field: {error}"]
        return ["it was accepted"]

    async def _untyped(self) -> list[str]:
        observed = self._session.observations()
        return sorted({f"{field} takes a value of any type" for one in observed for field in one.untyped})

    async def _failing_rules(self) -> list[str]:
        return sorted({problem for one in self._session.observations() for problem in one.failing_rules})

    async def _absent(self) -> list[str]:
        """Advise UnknownDevice: it happens only with a device that disappeared after it was published."""
        claim = self._session.claim("absent", replace(self._session.device, name=ABSENT))
        try:
            await self._session.hold(claim)
        except ClaimError:
            self._session.forget(claim)
            return []
        self._notes.append(
            f"prepare of device {ABSENT} succeeded; a device may have gone since the scheduler chose it: "
            "raise pydra.UnknownDevice, so the pod's Events show it"
        )
        await self._session.release(claim, ())
        return []

    # Touching

    async def _plan_again(self) -> list[str]:
        claim = self._session.claim("plan")
        first = await self._session.backend.plan(claim, until=self._session.deadline())
        again = await self._session.backend.plan(claim, until=self._session.deadline())
        changed = [
            f"plan must change nothing, and did: {change}"
            for one in self._session.observations()
            if one.method is Method.PLAN
            for change in one.changes
        ]
        return [*dict.fromkeys(changed), *find_plan_changes(first, again)]

    async def _crash_after_plan(self) -> list[str]:
        claim = self._session.claim("planned")
        await self._session.plan(claim)
        await self._session.crash()
        await self._session.release(claim, ())
        await self._session.use("after-plan")
        return []

    async def _restores(self) -> list[str]:
        problems = []
        if self._prepared and not self._hopeless:
            with anyio.CancelScope() as self._probing:  # by an event that is set below
                problems = await crash_in_restore(self._session)
        return self._describe(Trouble.RESTORE) or problems

    def _describe(self, trouble: Trouble) -> list[str]:
        events = (event for event in self._events if isinstance(event, BackendTrouble) and event.trouble is trouble)
        return list(dict.fromkeys(f"{event.message}\n{event.details}".strip() for event in events))

    async def _unprepare_nothing(self) -> list[str]:
        claim = self._session.claim("never")
        await self._session.backend.unprepare(claim, (), until=self._session.deadline())
        return []

    async def _prepare(self) -> list[str]:
        """Prepare the first device that is free and takes the parameters: on a node at work, others are held by claims.

        A device may need configuration that only its claims' authors know; without `parameters` it is not prepared.
        """
        usable = self._list_wanted()
        for place, device in enumerate(usable, start=1):
            claim = self._session.build_claim("one", device)
            try:
                self._prepared = await self._session.hold(claim)
            except DeviceInUse as error:
                if place == len(usable):
                    raise
                self._session.forget(claim)
                self._notes.append(f"{error}; the next one is taken")
                continue
            except InvalidConfig as error:
                self._session.forget(claim)
                if place < len(usable):
                    continue
                if self._session.configs or self._session.facts is None or not self._session.facts.config_kinds:
                    raise
                self._hopeless = "no device is prepared without configuration; give check_backend parameters"
                self._notes.append(str(error))
                raise _Skipped(self._hopeless) from error
            self._session.device = device
            self._session.remember("one", claim)
            self._found = device.name
            self._steps = self._session.records[claim.uid].claim.steps
            break
        self._name_other_kinds()
        return []

    def _name_other_kinds(self) -> None:
        """Say which devices were not tried although the backend may treat them differently, such as partitions."""
        kinds = [one.name for one in list_kinds(self._free())]
        others = [name for name in kinds if name != self._session.device.name]
        if len(kinds) > 1 and not self._device:
            shown = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
            self._lines.append(f"devices of other kinds are not prepared: {shown}; check one with --device")

    async def _edits(self) -> list[str]:
        try:
            self._build_spec(self._session.claim("one"), self._prepared)
        except ContractError as error:
            return list(error.violations)
        self._advise_bind_mounts()
        await self._look_for_host_paths()
        return []

    def _build_spec(self, claim: Claim, prepared: Sequence[PreparedDevice]) -> None:
        build_spec(self._driver_name() or _DRIVER, claim.uid, prepared)

    def _driver_name(self) -> str:
        return self._session.facts.driver if self._session.facts is not None else ""

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
        again = await self._session.hold(self._session.claim("one"))
        return [f"prepare: {one}" for one in find_differences(self._prepared, again)]

    async def _prepare_after_crash(self) -> list[str]:
        await self._session.crash()
        return await self._prepare_again()

    async def _unprepare(self) -> list[str]:
        await self._session.release(self._session.claim("one"), self._prepared)
        return []

    async def _undone(self) -> list[str]:
        """Compare a planned state before each step with what is planned now; advise of the rest, which may be meant."""
        if not any(check.rule == Rule.STABLE.value and check.problems for check in self._checks):
            changes = await self._find_changes()
            self._notes += [f"after unprepare, discover does not answer as before: {change}" for change in changes]
        self._notes += find_undone_by_nothing(self._steps, self._session.observations())
        if not self._steps:
            return []
        again = await self._session.backend.plan(self._session.claim("one"), until=self._session.deadline())
        return find_not_restored(self._steps, again.steps)

    async def _unprepare_again(self) -> list[str]:
        await self._unprepare()
        await self._look_for_leaks(
            Method.PREPARE, "prepare and unprepare", lambda place: self._session.use(f"leak-{place}")
        )
        return []

    async def _together(self) -> list[str]:
        if any(check.rule == Rule.EDITS.value and check.problems for check in self._checks):
            raise _Skipped("the container edits of one device break CDI's rules")
        pair = find_pair(self._free(), self._device)
        if pair is None:
            raise _Skipped("there are no two devices that one claim could have")
        claim = self._session.build_claim("together", *pair)
        prepared = await self._hold_alone(claim)
        try:
            self._build_spec(claim, prepared)
        except EditConflict as error:
            how = "give both the same value, made of all devices of the claim, or a name that has the device's"
            return [f"{conflict}; {how}" for conflict in error.conflicts]
        return []

    async def _concurrent(self) -> list[str]:
        # Devices with counters may depend on each other in ways that no counter says, such as a mode of the machine.
        others = [one for one in self._usable() if one.name != self._session.device.name and not one.consumes_counters]
        if not others or self._session.device.consumes_counters:
            raise _Skipped("there are no two devices that surely are independent of each other")
        claims = [self._session.claim("left"), self._session.claim("right", others[0])]
        errors: list[PydraError] = []

        async def hold(claim: Claim) -> None:
            try:
                await self._session.hold(claim)
            except PydraError as error:
                errors.append(error)

        try:
            for claim in claims:  # the agent plans one after another
                await self._session.plan(claim)
        except ClaimError as error:
            errors.append(error)
        else:
            async with anyio.create_task_group() as tasks:
                for claim in claims:
                    tasks.start_soon(hold, claim)
        changed = [] if errors else [change for claim in claims for change in await self._compare_alone(claim)]
        for claim in claims:
            if claim.uid in self._session.records:
                await self._session.release(claim, self._session.records[claim.uid].prepared)
        if errors and all(isinstance(error, ClaimError) for error in errors):
            for claim in claims:
                await self._hold_alone(claim)
        return [*changed, *(f"refused beside another claim, and not alone: {error}" for error in errors)]

    async def _compare_alone(self, claim: Claim) -> list[str]:
        """Prepare a claim again that has been prepared at the same time as another."""
        beside = self._session.records[claim.uid].prepared
        again = await self._session.hold(claim)
        return [f"prepare beside another claim: {one}" for one in find_differences(beside, again)]

    async def _hold_alone(self, claim: Claim) -> tuple[PreparedDevice, ...]:
        """Prepare and unprepare the claim; what refuses it alone as well has nothing to do with other claims."""
        try:
            prepared = await self._session.hold(claim)
        except ClaimError as error:
            await self._session.release(claim, ())
            raise _Skipped(str(error)) from error
        await self._session.release(claim, prepared)
        return prepared

    async def _cancel(self) -> list[str]:
        problems, self._late = await cancel_everywhere(self._session, self._timeouts.cancel_timeout)
        called = (Method.APPLY, Method.PREPARE, Method.UNPREPARE, Method.UNDO)
        waits = {method: self._session.waits(method) for method in called if self._session.has(method)}
        self._found = ", ".join(f"{method.value} waits {count} times" for method, count in waits.items())
        return problems

    async def _deadline(self) -> list[str]:
        return self._late


def _read_records(path: str) -> tuple[StoredRecord, ...]:
    try:
        return list_stored(path)
    except CheckpointError as error:
        unknown = Claim(uid="", namespace="", name="", devices=())
        return (StoredRecord(claim=unknown, path=path, problem=str(error)),)


def _find_agent_settings(backend: str, environ: Mapping[str, str], config: Mapping[str, Any]) -> Settings:
    """Return settings with the directories in which an agent on this node has records. Raises SettingsError."""
    keys = {"kubeletRoot": "PYDRA_KUBELET_ROOT", "pluginsDir": "PYDRA_PLUGINS_DIR", "recordsDir": "PYDRA_RECORDS_DIR"}
    given = {key: environ.get(variable) or config.get(key) for key, variable in keys.items()}
    places = {key: path for key, path in given.items() if path}
    return parse_settings({"backends": [backend], "nodeName": "unknown", **places})
