"""What this node holds, claim by claim: the JSON of plans to entries and back, and a cache of them in memory.

The agent's records are the memory. They come with `restore` and with every `plan`; between these, this process knows
what it prepared and unprepared itself. Nothing here is written anywhere.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from msgspec.structs import replace

from pydra import Claim, ClaimError, HeldClaim, PreparedDevice, Sample
from pydra_nvidia.devices import GpuName, MigName, Partition, Target, VfioName, parse_name
from pydra_nvidia.steps import CreateMig, Entry, Hold, Step

_log = logging.getLogger(__name__)


class PlanUnknown(ClaimError):
    """What a claim holds cannot be told from its plan."""

    reason = "PlanUnknown"


class UnreadClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A held claim whose plan is not known. It keeps the GPUs of its devices; `claim.devices` may be incomplete."""

    claim: Claim
    reason: str

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of its devices; with admin access it only looks, and keeps nothing."""
        return tuple(sorted({one.device for one in self.claim.devices if not one.admin_access}))


class _Plan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What `plan` answers. Devices that the first version prepared have the same in their state."""

    holds: tuple[Hold, ...] = ()
    steps: tuple[Step, ...] = ()


def build_plan(entry: Entry) -> Any:
    """The entry as JSON, without the claim's names, which the agent keeps beside it."""
    return msgspec.to_builtins(_Plan(holds=entry.holds, steps=entry.steps))


def build_state(entry: Entry, target: Target) -> Any:
    """What a prepared device remembers: the partition that was made for it, with the UUID that it got; else nothing."""
    if not isinstance(target, Partition):
        return None
    for step in entry.steps:
        if isinstance(step, CreateMig) and _place(step) == (target.gpu.uuid, target.profile_id, target.placement.start):
            return msgspec.to_builtins(_Plan(steps=(replace(step, uuid=target.uuid),)))
    return None


def parse_entry(claim: Claim, prepared: Iterable[PreparedDevice] = ()) -> Entry:
    """What is done for the claim, or may have been begun, with the UUIDs that its partitions got.

    A claim without a plan was prepared by the first version, which kept the steps in the prepared devices.

    Raises:
        PlanUnknown: there is neither, or a later version wrote it.
    """
    states = [state for device in prepared if (state := _parse_state(device.state)) is not None]
    if claim.plan is not None:
        try:
            plan = msgspec.convert(claim.plan, _Plan)
        except msgspec.ValidationError as error:
            raise PlanUnknown(f"the plan of {describe_claim(claim)} cannot be read: {error}") from error
    elif states:
        plan = _Plan(holds=tuple(hold for state in states for hold in state.holds), steps=states[0].steps)
    else:
        raise PlanUnknown(f"{describe_claim(claim)} has no plan")
    uuids = {_place(step): step.uuid for state in states for step in state.steps if isinstance(step, CreateMig)}
    steps = tuple(
        replace(step, uuid=uuids.get(_place(step), step.uuid)) if isinstance(step, CreateMig) else step
        for step in plan.steps
    )
    return Entry(uid=claim.uid, namespace=claim.namespace, name=claim.name, holds=plan.holds, steps=steps)


class HeldEntries:
    """Entries by the uid of their claim, and what ended claims left: see `steps.Entry`."""

    def __init__(self) -> None:
        self.unread: Mapping[str, UnreadClaim] = {}
        """By uid. As long as there is one, nothing is called ownerless."""
        self._entries: dict[str, Entry] = {}
        self._parsed: dict[str, tuple[HeldClaim, Entry]] = {}  # comparing takes half as long as parsing
        self._leaving: set[str] = set()
        self._ended: set[str] = set()
        self._taken_back: set[str] = set()
        self._prepared: set[str] = set()

    def restore(self, held: Sequence[HeldClaim]) -> None:
        """From now on these claims are held, and no others. What ended claims left stays."""
        self._ended.clear()
        self._taken_back.clear()
        self._prepared = {one.claim.uid for one in held if one.completed}
        self._take(held, besides="")

    def refresh(self, held: Sequence[HeldClaim], uid: str) -> None:
        """The same, while claims are prepared and unprepared: `held` has all but the one with this uid.

        A record outlives `unprepare` by a moment: what has ended here is not held again.
        """
        uids = {one.claim.uid for one in held}
        self._ended &= uids
        self._taken_back &= uids
        self._take([one for one in held if one.claim.uid not in self._ended | self._taken_back], besides=uid)

    def entries(self) -> Mapping[str, Entry]:
        """All of them by uid, and what is ownerless."""
        return self._entries.copy()

    def samples(self) -> tuple[Sample, ...]:
        """How many devices claims hold, by type; those with admin access are held by others."""
        names = (
            parse_name(hold.device) for entry in self._entries.copy().values() for hold in entry.holds if not hold.admin
        )
        counts = Counter(map(type, names))
        return tuple(
            Sample(
                name="prepared_devices",
                value=counts[kind],
                help="Devices that are prepared for claims, by type.",
                labels={"device_type": device_type},
            )
            for device_type, kind in (("gpu", GpuName), ("mig", MigName), ("vfio", VfioName))
        )

    def read(self, uid: str) -> Entry | None:
        """What is known of the claim."""
        return self._entries.get(uid)

    def prepared(self) -> Mapping[str, Entry]:
        """By uid, the claims that are prepared, and that nothing is being done for or undone."""
        return {uid: entry for uid, entry in self._entries.items() if uid in self._prepared}

    def mark_prepared(self, uid: str) -> None:
        """All of the claim's entry is done."""
        self._prepared.add(uid)

    def find_left(self, planned: Entry) -> Entry:
        """What of the plan is still to be undone: what a failed prepare has not done, or has taken back, is not."""
        if planned.uid in self._taken_back:
            return replace(planned, holds=(), steps=())
        known = self._entries.get(planned.uid)
        return planned if known is None or any(step not in planned.steps for step in known.steps) else known

    def staying(self, uid: str) -> tuple[Entry, ...]:
        """The other claims that are not being undone: what they share with this one must stay."""
        return tuple(
            entry
            for entry in self._entries.copy().values()
            if entry.uid != uid and entry.uid not in self._leaving and not entry.ownerless
        )

    @contextmanager
    def leaving(self, uid: str) -> Generator[None]:
        """The claim is being undone. Of two that leave at once, neither keeps for the other what both had."""
        self._leaving.add(uid)
        self._prepared.discard(uid)
        try:
            yield
        finally:
            self._leaving.discard(uid)

    def write(self, entry: Entry) -> None:
        """This is what is done for the claim, or about to be."""
        self._ended.discard(entry.uid)
        self._taken_back.discard(entry.uid)
        self._prepared.discard(entry.uid)
        self._entries[entry.uid] = entry

    def remove(self, uid: str) -> None:
        """Nothing is done for the claim any more; nothing to forget is fine."""
        self._ended.add(uid)
        self._taken_back.discard(uid)
        self._prepared.discard(uid)
        self._entries.pop(uid, None)
        self.unread = {other: one for other, one in self.unread.items() if other != uid}

    def mark_taken_back(self, uid: str) -> None:
        """The same, after a failed prepare: the agent unprepares the claim next, and there is nothing to undo."""
        self.remove(uid)
        self._taken_back.add(uid)

    def _take(self, held: Sequence[HeldClaim], besides: str) -> None:
        known = self._entries
        found = {uid: entry for uid, entry in known.items() if entry.ownerless or uid == besides}
        unread: dict[str, UnreadClaim] = {}
        parsed: dict[str, tuple[HeldClaim, Entry]] = {}
        for one in held:
            before = self._parsed.get(one.claim.uid)
            try:
                entry = before[1] if before is not None and before[0] == one else parse_entry(one.claim, one.prepared)
            except PlanUnknown as error:
                unread[one.claim.uid] = UnreadClaim(claim=one.claim, reason=str(error))
            else:
                parsed[entry.uid] = one, entry
                found[entry.uid] = self.find_left(entry)
        for uid in unread.keys() - self.unread.keys():
            names = ", ".join(unread[uid].devices)
            effect = f"no other claim gets the GPUs of its devices ({names})" if names else "no GPU is kept for it"
            _log.warning("%s; %s", unread[uid].reason, effect)
        self._entries, self.unread, self._parsed = found, unread, parsed


def describe_claim(claim: Claim) -> str:
    """As messages name it; a record that cannot be read may tell the uid only."""
    return f"claim {claim.namespace}/{claim.name}" if claim.name else f"the claim with uid {claim.uid}"


def _parse_state(state: Any) -> _Plan | None:
    try:
        return None if state is None else msgspec.convert(state, _Plan)
    except msgspec.ValidationError:
        return None


def _place(step: CreateMig) -> tuple[str, int, int]:
    return (step.gpu, step.profile, step.placement.start)
