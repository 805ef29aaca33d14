"""Determines which call crashed a backend process, and quarantines claims whose calls crash it again.

If one call was in flight when a process ended, it caused the end. If there were several, each becomes a suspect and
is tried again alone, so the one at fault is found and the others succeed. `wait_changed` is in flight from the first
`discover` on: it is never suspected, but at fault if the stack shows it.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from enum import Enum
from typing import Any

import msgspec

from pydra.backends.crash_diagnosis import CallInFlight, Cause, Diagnosis, Ending, is_in_wait_changed
from pydra.backends.wire import Call, Method
from pydra.claim import AllocatedDevice, Claim
from pydra.errors import BackendDied, BackendError, BackendTimeout, ContractError

MAX_CLAIMS = 1024
"""Claims whose crashes are remembered; the oldest are forgotten first."""

_UNDOING = (Method.UNPREPARE, Method.UNDO)


class Involvement(Enum):
    """How a call that was in flight was involved in the end of the process, which decides what happens to it."""

    AT_FAULT = "at_fault"
    """It crashed the process, and fails."""
    SUSPECT = "suspect"
    """It may have crashed the process: it is called again, alone."""
    BYSTANDER = "bystander"
    """Another call crashed the process: it is called again."""


class Quarantined(msgspec.Struct, frozen=True, kw_only=True):
    """A device of a claim that crashed the backend's process `crashes` times; `line` is the last diagnosis.

    `again` is the pause in seconds after which it is tried again; 0: never.
    """

    pool: str
    device: str
    uid: str
    claim: str
    crashes: int
    line: str
    again: float = 0.0

    def explain(self, backend: str) -> str:
        """Return the message for the claim's author."""
        who = f"claim {self.claim} (uid {self.uid}) ended the process of backend {backend}"
        if self.again:
            return (
                f"{who} {self.crashes} times while it was undone, and is only tried again {self.again:g} s after that; "
                f"the last time {self.line}. Have the backend upgraded"
            )
        return (
            f"{who} {self.crashes} times and is not tried again; the last time {self.line}. Delete the claim, or have "
            "the backend upgraded"
        )


class _Crashes(msgspec.Struct, kw_only=True):
    claim: Claim
    is_undoing: bool
    count: int = 0
    line: str = ""
    last: float = 0.0


def attribute_crash(ending: Ending) -> dict[int, Involvement]:
    """Decide the involvement of each call in flight, by its id; `wait_changed` has none unless it is at fault."""
    if is_in_wait_changed(ending):
        return {
            call.id: Involvement.AT_FAULT if call.method is Method.WAIT_CHANGED else Involvement.BYSTANDER
            for call in ending.calls
        }
    calls = [call for call in ending.calls if call.method is not Method.WAIT_CHANGED]
    if ending.cause is Cause.STUCK_CALL and ending.failed_call is not None:
        return {
            call.id: Involvement.AT_FAULT if call.id == ending.failed_call else Involvement.BYSTANDER for call in calls
        }
    if len(calls) == 1:
        return {calls[0].id: Involvement.AT_FAULT}
    return {call.id: Involvement.SUSPECT for call in sorted(calls, key=_order)}


def _order(call: CallInFlight) -> tuple[bool, int]:
    return (not call.uid, call.id)  # claims before telemetry


class CrashAttribution:
    """Remembers crashes by claim uid and coroutine, and the suspects that still have to be tried.

    Crashes in `prepare` do not count for `unprepare`, and what undoes is tried again every `undo_again` seconds: a pod
    cannot end before. `suspects` are the ids of the calls to be tried, each alone. `remembers` is false while there is
    nothing to consider for any call.
    """

    def __init__(self, crashes: int, *, undo_again: float = 300.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = crashes
        self._undo_again = undo_again
        self._clock = clock
        self._crashes: OrderedDict[tuple[str, Method], _Crashes] = OrderedDict()
        self.suspects: OrderedDict[int, None] = OrderedDict()
        self._suspected: OrderedDict[tuple[str, Method], None] = OrderedDict()
        self.remembers = False

    def note_end(self, ending: Ending) -> dict[int, Involvement]:
        """Return the involvement of each call in flight; suspects are queued to be tried, each alone."""
        self.remembers = True
        involvements = attribute_crash(ending)
        calls = {call.id: call for call in ending.calls}
        for call_id, involvement in involvements.items():
            if involvement is Involvement.SUSPECT:
                self.suspects[call_id] = None
                if calls[call_id].uid:
                    self._suspect(calls[call_id].uid, calls[call_id].method)
        return involvements

    def _suspect(self, uid: str, method: Method) -> None:
        self._suspected[uid, method] = None
        while len(self._suspected) > MAX_CLAIMS:
            self._suspected.popitem(last=False)

    def begin(self, call_id: int, claim: Claim, method: Method) -> Quarantined | None:
        """Register a new call for a claim; return why it is refused, or None.

        It is tried alone if its claim is suspected, or the process did not survive its last call, however long ago that
        was: a call that hangs makes all others in flight miss their deadlines, and otherwise the same claims would be
        called together again.
        """
        key = (claim.uid, method)
        crashes = self._crashes.get(key)
        if crashes is not None and crashes.count >= self._limit and not self._may_undo(crashes):
            return self._describe(crashes)
        if key in self._suspected:
            self.suspects[call_id] = None
        return None

    def _may_undo(self, crashes: _Crashes) -> bool:
        return crashes.is_undoing and self._clock() >= crashes.last + self._undo_again

    def may_call(self, call_id: int, *, busy: bool = False) -> bool:
        """Return whether this call may start now: if there are suspects, only the first, and not while `busy`."""
        if not self.suspects:
            return True
        return not busy and next(iter(self.suspects)) == call_id

    def note_answer(self, claim: Claim | None, method: Method, *, succeeded: bool) -> None:
        """Note that the process survived a call of this claim, which need not be alone then; success ends its crashes.

        A call of `unprepare` alone does not end a quarantine for `prepare`; `release` does, when all is undone. A step
        that succeeds does not end the crashes of another: the `prepare` after the last one does.
        """
        if claim is None:
            return
        self._suspected.pop((claim.uid, method), None)
        if succeeded and method is not Method.APPLY:
            self._crashes.pop((claim.uid, method), None)
        if succeeded and method is Method.PREPARE:
            self._crashes.pop((claim.uid, Method.APPLY), None)
        self.remembers = bool(self._crashes or self._suspected)

    def forget_call(self, call_id: int) -> None:
        """Note that the call has ended: the next suspect may start."""
        self.suspects.pop(call_id, None)

    def note_crash(self, claim: Claim, method: Method, line: str) -> Quarantined | None:
        """Note that the claim crashed the process; return the quarantine, if there is one now."""
        crashes = self._crashes.setdefault((claim.uid, method), _Crashes(claim=claim, is_undoing=method in _UNDOING))
        crashes.claim, crashes.line, crashes.last = claim, line, self._clock()
        crashes.count += 1
        self._suspect(claim.uid, method)
        self._crashes.move_to_end((claim.uid, method))
        while len(self._crashes) > MAX_CLAIMS:
            self._crashes.popitem(last=False)
        return self._describe(crashes) if crashes.count >= self._limit else None

    def quarantined(self) -> tuple[Quarantined, ...]:
        """Return the devices of quarantined claims, until release: no other claim should get them."""
        full = (one for one in self._crashes.values() if one.count >= self._limit)
        entries = [self._describe(one, device) for one in full for device in one.claim.devices]
        devices = {(entry.pool, entry.device, entry.uid): entry for entry in entries}
        return tuple(devices[key] for key in sorted(devices))

    def release(self, uid: str) -> bool:
        """Forget a claim, because it was unprepared; return whether that frees devices."""
        freed = any(one.uid == uid for one in self.quarantined())
        for method in Method:
            self._crashes.pop((uid, method), None)
            self._suspected.pop((uid, method), None)
        return freed

    def reset(self) -> None:
        """Forget every claim, because the backend has another version."""
        self._crashes.clear()
        self._suspected.clear()
        self.remembers = False

    def _describe(self, crashes: _Crashes, device: AllocatedDevice | None = None) -> Quarantined:
        """Describe a claim's quarantine, by its first device if none is given; a claim that has ended may have none."""
        claim = crashes.claim
        one = device or next(iter(claim.devices), None)
        return Quarantined(
            pool=one.pool if one else "",
            device=one.device if one else "",
            uid=claim.uid,
            claim=str(claim),
            crashes=crashes.count,
            line=crashes.line,
            again=self._undo_again if crashes.is_undoing else 0.0,
        )


def build_failure(name: str, call: Call, one: CallInFlight, cause: Cause, diagnosis: Diagnosis) -> BackendError:
    """Return the error of the call at fault; the end of the process has its report in the log already."""
    report: dict[str, Any] = {"details": diagnosis.report, "logged": True}
    match cause:
        case Cause.GARBLED:
            return ContractError(name, [f"{call}: {diagnosis.describe_for(one)}"], **report)
        case Cause.STUCK_CALL | Cause.STUCK_LOOP if call.method is not Method.WAIT_CHANGED:
            seconds = min(round(one.elapsed, 1), one.deadline)
            return BackendTimeout(name, str(call), seconds, where=diagnosis.place, **report)
        case _:
            return BackendDied(name, diagnosis.describe_for(one), **report)
