"""Conformance checks of what a backend declares and reads: nothing is prepared."""

from __future__ import annotations

import anyio
from msgspec.structs import replace

from pydra.backends.claim_config import build_header
from pydra.backends.error_codec import MAX_REASON, is_reason
from pydra.backends.supervisor_events import BackendFacts
from pydra.backends.wire import Method
from pydra.claim import OpaqueConfig
from pydra.devices import Device, Inventory, find_left_out
from pydra.errors import InvalidConfig
from pydra.inventory.api_rules import validate_inventory
from pydra.testing.available_devices import find_unaffordable
from pydra.testing.check_recorder import Recorder
from pydra.testing.compare_answers import find_changes
from pydra.testing.leaks import Leaks
from pydra.testing.rules import Rule
from pydra.testing.session import ABSENT, Session

_HINTS = 3
_IDLE_SECONDS = 1.0


class ReadingChecks:
    """The checks, and the `inventory` that the first `discover` has answered; None before, and if that failed."""

    def __init__(self, session: Session, facts: BackendFacts, recorder: Recorder, leaks: Leaks, name: str) -> None:
        """`name` is by what settings call the backend."""
        self.inventory: Inventory | None = None
        self._session = session
        self._facts = facts
        self._recorder = recorder
        self._leaks = leaks
        self._name = name

    async def run(self) -> None:
        """Make all of them, in order."""
        facts, make = self._facts, self._recorder.make
        await make(Rule.DRIVER, self._driver)
        if facts.misspelt:
            await make(Rule.NAMES, self._misspelt_names)
        if facts.reasons:
            await make(Rule.REASONS, self._reasons)
        await make(Rule.DISCOVER, self._discover)
        if self.inventory is None:
            self._recorder.skip(Rule.STABLE, "discover failed")
        else:
            await make(Rule.STABLE, self._discover_again)
            await make(Rule.COUNTERS, self._counters)
            if Method.WAIT_CHANGED in facts.methods:
                await make(Rule.IDLE, self._idle)
        if Method.MEASURE in facts.methods:
            await make(Rule.MEASURE, self._measure)
        for kind in facts.config_kinds:
            await make(Rule.CONFIG, lambda kind=kind: self._misspelt_field(kind), kind)  # type: ignore[misc]
        if facts.config_kinds:
            await make(Rule.CONFIG_TYPES, self._untyped)
            await make(Rule.CONFIG_RULES, self._failing_rules)

    async def find_changes(self) -> list[str]:
        """Return how `discover` answers now, compared with the first time."""
        inventory = await self._session.backend.discover()
        valid = validate_inventory(inventory)
        again = replace(inventory, devices=valid.devices, counter_sets=valid.counter_sets)
        return find_changes(self.inventory or Inventory(), again)

    async def _driver(self) -> list[str]:
        """Advise a DRIVER: without it, the agent needs a name in its settings."""
        if not self._facts.driver:
            text = f"DRIVER is absent, so every admin must give one: --driver {self._name}=NAME"
            self._recorder.notes.append(text)
        return []

    async def _misspelt_names(self) -> list[str]:
        """Advise of names that the agent does not know: they may as well be helpers."""
        self._recorder.notes += [
            f"{name} means nothing to the agent; did you mean {meant}?" for name, meant in self._facts.misspelt.items()
        ]
        return []

    async def _reasons(self) -> list[str]:
        """Advise valid reasons: otherwise pydra's own reason is used for the error."""
        reasons = self._facts.reasons
        usable = sorted({reason for reason in reasons.values() if is_reason(reason)})
        self._recorder.found = ", ".join(usable)
        self._recorder.notes += [
            f"{name}.reason is {reason!r}; Events and metrics use pydra's reason instead, "
            f"because it is not CamelCase of at most {MAX_REASON} letters and digits, such as GpuBusy"
            for name, reason in reasons.items()
            if not is_reason(reason)
        ]
        return []

    async def _discover(self) -> list[str]:
        inventory = await self._session.backend.discover()
        self._recorder.notes += [f"hardware cannot be read: {text}" for text in inventory.unreadable]
        valid = validate_inventory(inventory)
        self.inventory = replace(inventory, devices=valid.devices, counter_sets=valid.counter_sets)
        self._recorder.device_names = [device.name for device in valid.devices]
        return [*valid.problems, *valid.dropped]

    async def _discover_again(self) -> list[str]:
        problems = await self.find_changes()
        await self._leaks.look(Method.DISCOVER, "discover", lambda _place: self._session.backend.discover())
        return problems

    async def _counters(self) -> list[str]:
        return find_unaffordable(self.inventory or Inventory())

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

    async def _measure(self) -> list[str]:
        """Advise known devices; but hardware that is not listed may have samples, such as a partitioned GPU."""
        await self._leaks.look(Method.MEASURE, "measure", lambda _place: self._session.backend.measure())
        samples = await self._session.backend.measure()
        if self.inventory is not None:
            known = {device.name for device in self.inventory.devices} | {""}
            self._recorder.notes += [
                f"there are samples of device {name}, which discover does not list"
                for name in dict.fromkeys(sample.device for sample in samples)
                if name not in known
            ]
        left_out = find_left_out(samples)
        return [f"sample {samples[place].name} {why}; the agent leaves it out" for place, why in left_out.items()]

    async def _misspelt_field(self, kind: str) -> list[str]:
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
