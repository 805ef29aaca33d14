"""Determines which call crashed a backend process, and quarantines claims whose calls crash it again.

If one call was in flight when a process ended, it caused the end. If there were several, each becomes a suspect and
is tried again alone, so the one at fault is found and the others succeed. `wait_changed` is in flight from the first
`discover` on: it is never suspected, but at fault if the stack shows it. The line of a diagnosis goes to the kubelet
and into Events, its report to the log.
"""

from __future__ import annotations

import math
import re
import signal
from collections import OrderedDict
from enum import Enum
from typing import Any

import msgspec

from pydra.backends.wire import Call, Method
from pydra.claim import Claim
from pydra.errors import BackendDied, BackendError, BackendTimeout, ContractError
from pydra.message_text import format_seconds

MAX_CLAIMS = 1024
"""Claims whose crashes are remembered; the oldest are forgotten first."""

_REPORT_OUTPUT = 16 * 1024


class Cause(Enum):
    """Why the process ended."""

    DIED = "died"
    """It ended by itself, or something other than the agent killed it."""
    STUCK_CALL = "stuck_call"
    """Killed: a call timed out and did not end when cancelled, while the event loop ran."""
    STUCK_LOOP = "stuck_loop"
    """Killed: its event loop did not answer."""
    GARBLED = "garbled"
    """Killed: it sent bytes that are not messages, or too many unsolicited answers."""
    LATE = "late"
    """Killed: it was not ready to be called in time after its start."""
    OVER_MEMORY = "over_memory"
    """Killed: it used more memory than its limit."""


class CallInFlight(msgspec.Struct, frozen=True, kw_only=True):
    """A call without an answer yet; `claim` is `namespace/name`, `elapsed` and `deadline` are in seconds.

    `doing` names what it does, such as a step; empty: its method.
    """

    id: int
    method: Method
    doing: str = ""
    elapsed: float
    deadline: float = math.inf
    claim: str = ""
    uid: str = ""

    def __str__(self) -> str:
        doing = self.doing or self.method.value
        return f"{doing} of claim {self.claim}" if self.claim else doing


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """The end of one process.

    `status` is its exit status, negative for a signal, None if unknown; `failed_call` the id of the call that is known
    to be at fault, and `where` the part of a traceback that shows where that call waited; `output` the last lines that
    the process wrote to stderr; `reason` what else is known (the malformed bytes); `age` is in seconds.
    """

    cause: Cause
    status: int | None
    age: float
    calls: tuple[CallInFlight, ...] = ()
    failed_call: int | None = None
    where: str = ""
    output: str = ""
    reason: str = ""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """`place` in the code; `signal` its name or empty; `how` that, or `hang`, `memory` or `exit`.

    `brief` names no claim: it may be shown to users of other claims. `line` names the calls in flight, and `report` has
    all the rest, for the log.
    """

    place: str
    signal: str
    how: str
    brief: str
    line: str
    report: str

    def describe_for(self, call: CallInFlight) -> str:
        """Return the line for the author of this call's claim."""
        if self.how == "hang" and call.method is not Method.WAIT_CHANGED:  # which has no deadline
            seconds = format_seconds(min(call.elapsed, call.deadline))
            where = f"; it was waiting in {self.place}" if self.place else ""
            return f"{call} timed out after {seconds} s{where}; its process was killed"
        return f"{self.brief} during {call} ({call.elapsed:.1f} s)"


_WAIT_CHANGED = re.compile(r' *File "[^"\n]*/pydra/backends/child/calls\.py", line \d+ in _wait_changed')
_FRAME = re.compile(r'^ *File "(?P<file>[^"\n]*)", line (?P<line>\d+),? in (?P<function>.+)$', re.MULTILINE)
_STATUS = re.compile(r"status: (?P<text>.*)\n")
_CURRENT = re.compile(r"^Current thread [^\n]*\(most recent call first\):\n", re.MULTILINE)
_STACKS = re.compile(r"^(Fatal Python error: |Current thread |Thread 0x)", re.MULTILINE)


def diagnose(ending: Ending) -> Diagnosis:
    """Describe the end as text."""
    name = signal_name(ending.status) if ending.cause is Cause.DIED else ""
    what = _what(ending, name)
    place = find_wait(ending.where) or (find_place(ending.output) if ending.cause is not Cause.GARBLED else "")
    hints = is_in_wait_changed(ending)
    calls = [call for call in ending.calls if (call.method is Method.WAIT_CHANGED) is hints]
    during = ", ".join(f"{call} ({call.elapsed:.1f} s)" for call in calls[:3])
    during += f" and {len(calls) - 3} more" if len(calls) > 3 else ""
    brief = f"its process {what}" + (f" at {place}" if place else "")
    line = brief + (f" during {during}" if during else "")
    return Diagnosis(
        place=place,
        signal=name,
        how=name or _HOW.get(ending.cause, "exit"),
        brief=brief,
        line=line,
        report=_report(ending, line),
    )


def signal_name(status: int | None) -> str:
    """Return `SIGSEGV` for -11; empty if the status is not a signal."""
    if status is None or status >= 0:
        return ""
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


def find_place(output: str) -> str:
    """Find the current thread's place in the last stack: innermost frame, and first outside Python's library."""
    frames = _find_current_frames(output)
    if frames and frames[0]["file"].endswith("/selectors.py"):  # an idle event loop is not the place
        return ""
    return _spell_place(frames)


def is_in_wait_changed(ending: Ending) -> bool:
    """Return whether the thread that crashed or blocked the event loop was in `wait_changed`, by its stack."""
    frames = _find_current_frames(ending.output) if ending.cause in (Cause.DIED, Cause.STUCK_LOOP) else []
    return any(_WAIT_CHANGED.fullmatch(frame[0]) for frame in frames)


def _find_current_frames(output: str) -> list[re.Match[str]]:
    stacks = list(_CURRENT.finditer(output))
    frames: list[re.Match[str]] = []
    end = stacks[-1].end() if stacks else 0
    while stacks and (frame := _FRAME.match(output, end)):
        frames.append(frame)
        end = frame.end() + 1
    return frames


def find_wait(trace: str) -> str:
    """Find the place where a traceback, innermost frame last, ends, formatted as by `find_place`, and the status."""
    place = _spell_place(list(_FRAME.finditer(trace))[::-1])
    status = _STATUS.match(trace)
    return f"{place} [{status['text']}]" if place and status else place


def _spell_place(frames: list[re.Match[str]]) -> str:
    """Format frames, innermost first."""
    if not frames:
        return ""
    own = next((frame for frame in frames if not _is_library(frame["file"])), frames[0])
    return _spell(frames[0]) + (f" called from {_spell(own)}" if own is not frames[0] else "")


def _is_library(file: str) -> bool:
    return file.startswith("<") or ("/lib/python3." in file and "-packages/" not in file)


def _spell(frame: re.Match[str]) -> str:
    return f"{frame['function']} ({'/'.join(frame['file'].split('/')[-2:])}:{frame['line']})"


_HOW = dict.fromkeys((Cause.STUCK_CALL, Cause.STUCK_LOOP, Cause.LATE), "hang") | {Cause.OVER_MEMORY: "memory"}

_KILLED = {
    Cause.STUCK_CALL: "was killed because a call timed out, and did not end when cancelled",
    Cause.STUCK_LOOP: "was killed because its event loop was blocked",
    Cause.GARBLED: "was killed because it broke the protocol",
    Cause.LATE: "was killed because it was not ready in time",
    Cause.OVER_MEMORY: "was killed because it used too much memory",
}


def _what(ending: Ending, name: str) -> str:
    if ending.cause is not Cause.DIED:
        return _KILLED[ending.cause] + (f" ({ending.reason})" if ending.reason else "")
    if name == "SIGKILL":
        return "was killed by SIGKILL, perhaps for lack of memory"
    if name:
        return f"died of {name}"
    return "closed its connection" if ending.status is None else f"exited with status {ending.status}"


def _report(ending: Ending, line: str) -> str:
    parts = [f"{line}; it had run for {ending.age:.1f} s"]
    parts += [f"in flight: {call} for {call.elapsed:.3f} s" for call in ending.calls]
    if ending.where:
        parts += ["the call that timed out was waiting at (innermost last):", ending.where.rstrip()]
    stacks = list(_STACKS.finditer(ending.output))
    output = ending.output[-_REPORT_OUTPUT:].strip()
    if output:
        parts += ["last output, Python stacks included:" if stacks else "last output:", output]
    return "\n".join(parts)


class Involvement(Enum):
    """How a call that was in flight was involved in the end of the process, which decides what happens to it."""

    AT_FAULT = "at_fault"
    """It crashed the process, and fails."""
    SUSPECT = "suspect"
    """It may have crashed the process: it is called again, alone."""
    BYSTANDER = "bystander"
    """Another call crashed the process: it is called again."""


class Quarantined(msgspec.Struct, frozen=True, kw_only=True):
    """A device of a claim that crashed the backend's process `crashes` times; `line` is the last diagnosis."""

    pool: str
    device: str
    uid: str
    claim: str
    crashes: int
    line: str

    def explain(self, backend: str) -> str:
        """Return the message for the claim's author."""
        return (
            f"claim {self.claim} (uid {self.uid}) ended the process of backend {backend} {self.crashes} times and is "
            f"not tried again; the last time {self.line}. Delete the claim, or have the backend upgraded"
        )


class _Crashes(msgspec.Struct, kw_only=True):
    claim: Claim
    count: int = 0
    line: str = ""


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

    Crashes in `prepare` do not count for `unprepare`: undoing must stay possible. `suspects` are the ids of the calls
    to be tried, each alone. `remembers` is false while there is nothing to consider for any call.
    """

    def __init__(self, crashes: int) -> None:
        self._limit = crashes
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
        if crashes is not None and crashes.count >= self._limit:
            return _list_quarantined(crashes)[0]
        if key in self._suspected:
            self.suspects[call_id] = None
        return None

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
        crashes = self._crashes.setdefault((claim.uid, method), _Crashes(claim=claim))
        crashes.claim, crashes.line = claim, line
        crashes.count += 1
        self._suspect(claim.uid, method)
        self._crashes.move_to_end((claim.uid, method))
        while len(self._crashes) > MAX_CLAIMS:
            self._crashes.popitem(last=False)
        return _list_quarantined(crashes)[0] if crashes.count >= self._limit else None

    def quarantined(self) -> tuple[Quarantined, ...]:
        """Return the devices of quarantined claims, until release: no other claim should get them."""
        full = (one for one in self._crashes.values() if one.count >= self._limit)
        devices = {(entry.pool, entry.device, entry.uid): entry for one in full for entry in _list_quarantined(one)}
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


def _list_quarantined(crashes: _Crashes) -> list[Quarantined]:
    claim = crashes.claim
    return [
        Quarantined(
            pool=device.pool,
            device=device.device,
            uid=claim.uid,
            claim=f"{claim.namespace}/{claim.name}",
            crashes=crashes.count,
            line=crashes.line,
        )
        for device in claim.devices
    ]


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
