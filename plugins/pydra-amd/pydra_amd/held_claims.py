"""What this node holds, claim by claim: plans to entries and back, and a cache of them in memory.

The agent's records are the memory. They come with `restore`, every `plan` and every `unprepare`; between these, this
process knows what it unprepared itself.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pydra import Claim, ClaimError, HeldClaim
from pydra_amd.steps import Entry, Hold, Step

_log = logging.getLogger(__name__)


class PlanUnknown(ClaimError):
    """What a claim holds cannot be told from its plan."""

    reason = "PlanUnknown"


class _Plan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    holds: tuple[Hold, ...] = ()
    steps: tuple[Step, ...] = ()


def build_plan(entry: Entry) -> Any:
    """The entry as JSON, without the claim's name, which the agent keeps beside it."""
    return msgspec.to_builtins(_Plan(holds=entry.holds, steps=entry.steps))


def parse_entry(claim: Claim) -> Entry:
    """What the claim's plan says. Raises PlanUnknown: there is none, or a later version wrote it."""
    name = f"{claim.namespace}/{claim.name}"
    if claim.plan is None:
        raise PlanUnknown(f"claim {name} has no plan")
    try:
        plan = msgspec.convert(claim.plan, _Plan)
    except msgspec.ValidationError as error:
        raise PlanUnknown(f"the plan of claim {name} cannot be read: {error}") from error
    return Entry(uid=claim.uid, name=name, holds=plan.holds, steps=plan.steps)


class HeldEntries:
    """Entries by the uid of their claim."""

    def __init__(self) -> None:
        self.unread: Mapping[str, Claim] = {}
        """Held claims whose plan is not known: they keep the GPUs of their devices."""
        self._entries: dict[str, Entry] = {}
        self._ended: set[str] = set()

    def restore(self, held: Sequence[HeldClaim]) -> None:
        """From now on these claims are held, and no others."""
        self._ended.clear()
        self.refresh(held)

    def refresh(self, held: Sequence[HeldClaim]) -> None:
        """The same, while claims come and go: a record outlives `unprepare` by a moment, and what ended stays ended."""
        self._ended &= {one.claim.uid for one in held}
        self._entries, self.unread = self._parse(held)

    def add(self, held: Sequence[HeldClaim]) -> None:
        """These claims are held too, if they are new: in an upgrade another agent prepares claims.

        What is known stays. Calls overtake each other, and what a later one knows is not forgotten for an earlier one.
        """
        known = self._entries.keys() | self.unread.keys()
        entries, unread = self._parse([one for one in held if one.claim.uid not in known])
        self._entries.update(entries)
        self.unread = {**self.unread, **unread}

    def _parse(self, held: Sequence[HeldClaim]) -> tuple[dict[str, Entry], dict[str, Claim]]:
        """Entries, and the claims that have none that can be read."""
        found: dict[str, Entry] = {}
        unread: dict[str, Claim] = {}
        for one in held:
            if one.claim.uid in self._ended:
                continue
            try:
                found[one.claim.uid] = parse_entry(one.claim)
            except PlanUnknown as error:
                unread[one.claim.uid] = one.claim
                if one.claim.uid not in self.unread:
                    _log.warning("%s; no other claim gets the GPUs of its devices", error)
        return found, unread

    def write(self, entry: Entry) -> None:
        """This claim is held from now on."""
        self._ended.discard(entry.uid)
        self._entries[entry.uid] = entry

    def remove(self, uid: str) -> None:
        """Nothing is done for the claim any more; nothing to forget is fine."""
        self._ended.add(uid)
        self._entries.pop(uid, None)
        self.unread = {other: claim for other, claim in self.unread.items() if other != uid}

    @property
    def entries(self) -> tuple[Entry, ...]:
        """What all claims hold whose plan is known."""
        return tuple(self._entries.values())

    def others(self, uid: str) -> tuple[Entry, ...]:
        """What all claims but this one hold."""
        return tuple(entry for other, entry in self._entries.items() if other != uid)
