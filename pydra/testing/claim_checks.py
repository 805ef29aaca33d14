"""Conformance checks that prepare and unprepare claims."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import anyio
from msgspec.structs import replace

from pydra.backends.supervisor_events import BackendFacts, Trouble
from pydra.backends.wire import Method
from pydra.cdi.host_path_checks import resolve
from pydra.cdi.spec import build_spec
from pydra.claim import Claim, ClaimStep, PreparedDevice, StepStage
from pydra.devices import Device, HealthStatus, Inventory
from pydra.errors import (
    ClaimError,
    ContractError,
    DeviceInUse,
    EditConflict,
    HostPathMissing,
    InvalidConfig,
    PydraError,
)
from pydra.testing.available_devices import find_pair, list_kinds, list_usable
from pydra.testing.check_recorder import NotChecked, Probe, Recorder
from pydra.testing.compare_answers import (
    find_differences,
    find_not_restored,
    find_plan_changes,
    find_undone_by_nothing,
)
from pydra.testing.interruptions import cancel_everywhere, crash_in_prepare, crash_in_restore, crash_in_unprepare
from pydra.testing.leaks import Leaks
from pydra.testing.process_failures import BackendEvents
from pydra.testing.reading_checks import ReadingChecks
from pydra.testing.rules import Rule
from pydra.testing.session import ABSENT, Session

_DRIVER = "conformance.example.com"


class ClaimChecks:
    """The checks, on the devices of `free`, of which one called `device` is prepared; empty for the first."""

    def __init__(
        self,
        session: Session,
        facts: BackendFacts,
        events: BackendEvents,
        recorder: Recorder,
        reading: ReadingChecks,
        *,
        leaks: Leaks,
        free: Inventory,
        device: str,
        host_root: str,
        cancel_limit: float,
    ) -> None:
        """`cancel_limit` is how many seconds a call may take to end after it was cancelled."""
        self._session = session
        self._facts = facts
        self._recorder = recorder
        self._events = events
        self._reading = reading
        self._leaks = leaks
        self._free = free
        self._device = device
        self._host_root = host_root
        self._cancel_limit = cancel_limit
        self._prepared: tuple[PreparedDevice, ...] = ()
        self._steps: tuple[ClaimStep, ...] = ()
        self._late: list[str] = []

    async def run(self) -> None:
        """Make all of them, in order, if there is a device for them."""
        usable = self._list_wanted()
        if usable:
            self._session.device = usable[0]
        for rule, probe in self._probes():
            if usable:
                await self._make(rule, probe)
            elif rule is Rule.PREPARE and self._device:
                names = ", ".join(one.name for one in list_usable(self._free))
                found = f"no healthy device is called {self._device}; there are: {names or 'none'}"
                self._recorder.conclude(rule, [found])
            else:
                self._recorder.skip(rule, self._explain_absence())

    def skip(self, why: str) -> None:
        """Make none of them."""
        for rule, _ in self._probes():
            self._recorder.skip(rule, why)

    async def restore(self) -> list[str]:
        """Tell whether the backend restores a claim that it holds, if claims are prepared at all."""
        problems = []
        if self._prepared and not self._events.hopeless:
            with self._events.until_hopeless():
                problems = await crash_in_restore(self._session)
        return self._events.describe(Trouble.RESTORE) or problems

    def _probes(self) -> list[tuple[Rule, Probe]]:
        session = self._session
        probes: list[tuple[Rule, Probe]] = [
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
        if session.has(Method.APPLY):
            probes.append((Rule.SHARED, self._shared))
        return probes

    async def _make(self, rule: Rule, probe: Probe) -> None:
        """Make a check so that its failure is not that of those that follow.

        Without an answer of prepare, and without unprepare, there is nothing to follow.
        """
        await self._recorder.make(rule, probe)
        if not self._recorder.has_failed(rule) or self._events.hopeless:
            return
        if rule in (Rule.PREPARE, Rule.UNPREPARE):
            self._events.hopeless = f"{rule.value} failed"
        elif rule in (Rule.CONCURRENT, Rule.CANCEL):  # what they left in the process would fail the next calls
            with suppress(PydraError):
                await self._session.crash()

    def _explain_absence(self) -> str:
        unused = " that no claim uses" if self._free != self._reading.inventory else ""
        named = f" is called {self._device}" if self._device else ""
        meant = [one for one in self._free.devices if self._device in ("", one.name)]
        unhealthy = [one for one in meant if one.health.status is HealthStatus.UNHEALTHY]
        why = f"; {unhealthy[0].name}: {unhealthy[0].health.message}" if unhealthy else ""
        return f"no healthy device{unused}{named}{why}"

    def _list_wanted(self) -> list[Device]:
        return [one for one in list_usable(self._free) if self._device in ("", one.name)]

    # One claim

    async def _absent(self) -> list[str]:
        """Advise UnknownDevice: it happens only with a device that disappeared after it was published."""
        claim = self._session.claim("absent", replace(self._session.device, name=ABSENT))
        try:
            await self._session.hold(claim)
        except ClaimError:
            self._session.forget(claim)
            return []
        self._recorder.notes.append(
            f"prepare of device {ABSENT} succeeded; a device may have gone since the scheduler chose it: "
            "raise pydra.UnknownDevice, so the pod's Events show it"
        )
        await self._session.release(claim, ())
        return []

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
                self._recorder.notes.append(f"{error}; the next one is taken")
                continue
            except InvalidConfig as error:
                self._session.forget(claim)
                if place < len(usable):
                    continue
                if self._session.configs or not self._facts.config_kinds:
                    raise
                self._events.hopeless = "no device is prepared without configuration; give check_backend parameters"
                self._recorder.notes.append(str(error))
                raise NotChecked(self._events.hopeless) from error
            self._session.device = device
            self._session.remember("one", claim)
            self._recorder.found = device.name
            self._steps = self._session.records[claim.uid].claim.steps
            break
        self._name_other_kinds()
        return []

    def _name_other_kinds(self) -> None:
        """Say which devices were not tried although the backend may treat them differently, such as partitions."""
        kinds = [one.name for one in list_kinds(self._free)]
        others = [name for name in kinds if name != self._session.device.name]
        if len(kinds) > 1 and not self._device:
            shown = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
            self._recorder.lines.append(f"devices of other kinds are not prepared: {shown}; check one with --device")

    async def _edits(self) -> list[str]:
        try:
            self._build_spec(self._session.claim("one"), self._prepared)
        except ContractError as error:
            return list(error.violations)
        self._advise_bind_mounts()
        await self._look_for_host_paths()
        return []

    def _build_spec(self, claim: Claim, prepared: Sequence[PreparedDevice]) -> None:
        build_spec(self._facts.driver or _DRIVER, claim.uid, prepared)

    def _advise_bind_mounts(self) -> None:
        """Advise the option that makes a mount of a host's path: CDI allows its absence, and no runtime mounts then."""
        for one in self._prepared:
            for mount in one.edits.mounts:
                if mount.type in ("", "none") and not {"bind", "rbind"}.intersection(mount.options):
                    self._recorder.notes.append(
                        f"mount {mount.container_path}: its options {', '.join(mount.options)} have neither "
                        "bind nor rbind; container runtimes refuse such a mount"
                    )

    async def _look_for_host_paths(self) -> None:
        """Advise existing paths: the agent refuses the claim while one is missing, but this may not be the node."""
        try:
            await resolve(self._prepared, root=self._host_root)
        except HostPathMissing as error:
            self._recorder.notes += [f"{one}; the agent refuses the claim while it is missing" for one in error.missing]
        except ClaimError as error:
            self._recorder.notes.append(str(error))

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
        if not self._recorder.has_failed(Rule.STABLE):
            self._recorder.notes += [
                f"after unprepare, discover does not answer as before: {change}"
                for change in await self._reading.find_changes()
            ]
        self._recorder.notes += find_undone_by_nothing(self._steps, self._session.observations())
        if not self._steps:
            return []
        again = await self._session.backend.plan(self._session.claim("one"), until=self._session.deadline())
        return find_not_restored(self._steps, again.steps)

    async def _unprepare_again(self) -> list[str]:
        await self._unprepare()
        await self._leaks.look(
            Method.PREPARE, "prepare and unprepare", lambda place: self._session.use(f"leak-{place}")
        )
        return []

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

    async def _cancel(self) -> list[str]:
        problems, self._late = await cancel_everywhere(self._session, self._cancel_limit)
        called = (Method.APPLY, Method.PREPARE, Method.UNPREPARE, Method.UNDO)
        waits = {method: self._session.waits(method) for method in called if self._session.has(method)}
        self._recorder.found = "waits: " + ", ".join(f"{method.value} {count}" for method, count in waits.items())
        return problems

    async def _deadline(self) -> list[str]:
        return self._late

    # Several devices, or claims

    async def _together(self) -> list[str]:
        if self._recorder.has_failed(Rule.EDITS):
            raise NotChecked("the container edits of one device break CDI's rules")
        pair = find_pair(self._free, self._device)
        if pair is None:
            raise NotChecked("there are no two devices that one claim could have")
        claim = self._session.build_claim("together", *pair)
        prepared = await self._hold_alone(claim)
        try:
            self._build_spec(claim, prepared)
        except EditConflict as error:
            how = "give both the same value, made of all devices of the claim, or a name that has the device's"
            return [f"{conflict}; {how}" for conflict in error.conflicts]
        return []

    async def _shared(self) -> list[str]:
        """Apply a step for a second claim while another one has it."""
        pair = find_pair(self._free, self._device)
        if pair is None:
            raise NotChecked("there are no two devices that two claims could have")
        claims = [self._session.build_claim(name, one) for name, one in zip(("first", "second"), pair, strict=True)]
        try:
            return await self._share_steps(*claims)
        finally:
            await self._release_all(claims)

    async def _share_steps(self, first: Claim, second: Claim) -> list[str]:
        try:
            await self._session.hold(first)
            planned = await self._session.plan(second)
        except ClaimError as error:
            raise NotChecked(str(error)) from error
        shared = {one.key for one in self._session.records[first.uid].claim.steps} & {one.key for one in planned.steps}
        if not shared:
            raise NotChecked("the plans of two claims have no step with the same key")
        try:
            await self._session.hold(second)
        except ClaimError as error:
            steps = self._session.records[second.uid].claim.steps
            failed = next((one for one in steps if one.stage is not StepStage.DONE), None)
            if failed is None or failed.key not in shared:
                raise NotChecked(str(error)) from error
            return [f"apply of step {failed.label} fails for a claim while another one has the step: {error}"]
        return []

    async def _concurrent(self) -> list[str]:
        # Devices with counters may depend on each other in ways that no counter says, such as a mode of the machine.
        first = self._session.device
        others = [one for one in list_usable(self._free) if one.name != first.name and not one.consumes_counters]
        if not others or first.consumes_counters:
            raise NotChecked("there are no two devices that surely are independent of each other")
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
        await self._release_all(claims)
        if errors and all(isinstance(error, ClaimError) for error in errors):
            for claim in claims:
                await self._hold_alone(claim)
        return [*changed, *(f"refused beside another claim, and not alone: {error}" for error in errors)]

    async def _release_all(self, claims: Sequence[Claim]) -> None:
        for claim in claims:
            if claim.uid in self._session.records:
                await self._session.release(claim, self._session.records[claim.uid].prepared)

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
            raise NotChecked(str(error)) from error
        await self._session.release(claim, prepared)
        return prepared
