"""Determines which call crashed a backend process, and quarantines repeat offenders.

If one call was in flight when a process ended, it caused the end. If there were several, each becomes a suspect and
is tried again alone, so the one at fault is found and the others succeed. `wait_changed` is always in flight, and never
suspected. The line of a diagnosis goes to the kubelet and into Events, its report to the log.
"""

from __future__ import annotations

import math
import re
import signal
from collections import OrderedDict
from enum import Enum

import msgspec

from pydra.backends.wire import Method
from pydra.claim import Claim
from pydra.errors import format_seconds

MAX_CLAIMS = 1024
"""Claims whose strikes are remembered; the oldest are forgotten first."""

_REPORT_OUTPUT = 16 * 1024


class Cause(Enum):
    """Why the process is gone."""

    DIED = "died"
    """It ended by itself, or something other than the agent killed it."""
    STUCK_CALL = "stuck_call"
    """Killed: a call neither ended within its deadline nor when cancelled, while the event loop ran."""
    STUCK_LOOP = "stuck_loop"
    """Killed: its event loop did not answer."""
    GARBLED = "garbled"
    """Killed: it sent bytes that are not messages, or answers to no call without end."""
    LATE = "late"
    """Killed: it was not ready to be called in time after its start."""


class CallInFlight(msgspec.Struct, frozen=True, kw_only=True):
    """A call without an answer yet; `claim` is `namespace/name`, `elapsed` and `deadline` are in seconds."""

    id: int
    method: Method
    elapsed: float
    deadline: float = math.inf
    claim: str = ""
    uid: str = ""

    def __str__(self) -> str:
        return f"{self.method.value} of claim {self.claim}" if self.claim else self.method.value


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """The end of one process.

    `status` is its exit status, negative for a signal, None when unknown; `culprit` the id of the call that is known
    to be at fault, and `where` the lines of a traceback that say where that call waited; `output` the last of what the
    process wrote to stderr; `reason` what else is known (the malformed bytes); `age` in seconds.
    """

    cause: Cause
    status: int | None
    age: float
    calls: tuple[CallInFlight, ...] = ()
    culprit: int | None = None
    where: str = ""
    output: str = ""
    reason: str = ""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """`what` happened in a few words, `place` where in the code, `signal` its name or empty, `hung` if it was stuck.

    `brief` names no claim: it may be shown to the users of others. `line` names the calls in flight, `report` has the
    rest of what is known, for the log.
    """

    what: str
    place: str
    signal: str
    hung: bool
    brief: str
    line: str
    report: str

    def blame(self, call: CallInFlight) -> str:
        """The line for the author of this call's claim."""
        if self.hung:
            seconds = format_seconds(min(call.elapsed, call.deadline))
            where = f"; it was waiting in {self.place}" if self.place else ""
            return f"{call} did not end within {seconds} s{where}; its process was killed"
        return f"{self.brief} during {call} ({call.elapsed:.1f} s)"


_FRAME = re.compile(r'^ *File "(?P<file>[^"\n]*)", line (?P<line>\d+),? in (?P<function>.+)$', re.MULTILINE)
_CURRENT = re.compile(r"^Current thread [^\n]*\(most recent call first\):\n", re.MULTILINE)
_STACKS = re.compile(r"^(Fatal Python error: |Current thread |Thread 0x)", re.MULTILINE)


def diagnose(ending: Ending) -> Diagnosis:
    """All that is known about the end, in words."""
    name = signal_name(ending.status) if ending.cause is Cause.DIED else ""
    what = _what(ending, name)
    place = find_wait(ending.where) or (find_place(ending.output) if ending.cause is not Cause.GARBLED else "")
    calls = [call for call in ending.calls if call.method is not Method.WAIT_CHANGED]
    during = ", ".join(f"{call} ({call.elapsed:.1f} s)" for call in calls[:3])
    during += f" and {len(calls) - 3} more" if len(calls) > 3 else ""
    brief = f"its process {what}" + (f" at {place}" if place else "")
    line = brief + (f" during {during}" if during else "")
    return Diagnosis(
        what=what,
        place=place,
        signal=name,
        hung=ending.cause in (Cause.STUCK_CALL, Cause.STUCK_LOOP, Cause.LATE),
        brief=brief,
        line=line,
        report=_report(ending, line),
    )


def signal_name(status: int | None) -> str:
    """`SIGSEGV` for -11; empty when the status is not a signal."""
    if status is None or status >= 0:
        return ""
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


def find_place(output: str) -> str:
    """Where the current thread was in the last stack: innermost frame, and the first outside Python's own library."""
    stacks = list(_CURRENT.finditer(output))
    frames = []
    end = stacks[-1].end() if stacks else 0
    while stacks and (frame := _FRAME.match(output, end)):
        frames.append(frame)
        end = frame.end() + 1
    if frames and frames[0]["file"].endswith("/selectors.py"):  # the event loop at rest says nothing
        return ""
    return _spell_place(frames)


def find_wait(trace: str) -> str:
    """The place that a traceback, innermost frame last, ends at; spelled as `find_place` does."""
    return _spell_place(list(_FRAME.finditer(trace))[::-1])


def _spell_place(frames: list[re.Match[str]]) -> str:
    """From frames, innermost first."""
    if not frames:
        return ""
    own = next((frame for frame in frames if not _is_library(frame["file"])), frames[0])
    return _spell(frames[0]) + (f" called from {_spell(own)}" if own is not frames[0] else "")


def _is_library(file: str) -> bool:
    return file.startswith("<") or ("/lib/python3." in file and "-packages/" not in file)


def _spell(frame: re.Match[str]) -> str:
    return f"{frame['function']} ({'/'.join(frame['file'].split('/')[-2:])}:{frame['line']})"


_KILLED = {
    Cause.STUCK_CALL: "was killed because a call did not end, not even when cancelled",
    Cause.STUCK_LOOP: "was killed because its event loop was blocked",
    Cause.GARBLED: "was killed because it broke the protocol",
    Cause.LATE: "was killed because it was not ready in time",
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
        parts += ["the call that did not end was waiting at (innermost last):", ending.where.rstrip()]
    stacks = list(_STACKS.finditer(ending.output))
    output = ending.output[-_REPORT_OUTPUT:].strip()
    if output:
        parts += ["last output, Python stacks included:" if stacks else "last output:", output]
    return "\n".join(parts)


class Verdict(Enum):
    """What becomes of a call that was in flight when the process ended."""

    AT_FAULT = "at_fault"
    """It fails: it ended the process."""
    SUSPECT = "suspect"
    """It is called again, alone."""
    BYSTANDER = "bystander"
    """It is called again: another call is known to be at fault."""


class Quarantined(msgspec.Struct, frozen=True, kw_only=True):
    """A device of a claim that ended the backend's process `strikes` times; `line` is the last diagnosis."""

    pool: str
    device: str
    uid: str
    claim: str
    strikes: int
    line: str

    def explain(self, backend: str) -> str:
        """For the claim's author."""
        return (
            f"claim {self.claim} (uid {self.uid}) ended the process of backend {backend} {self.strikes} times and is "
            f"not tried again; the last time {self.line}. Delete the claim, or have the backend upgraded"
        )


class _Strikes(msgspec.Struct, kw_only=True):
    claim: Claim
    count: int = 0
    line: str = ""


def find_verdicts(ending: Ending) -> dict[int, Verdict]:
    """The verdict on each call in flight, by its id; none for `wait_changed`."""
    calls = [call for call in ending.calls if call.method is not Method.WAIT_CHANGED]
    if ending.cause is Cause.STUCK_CALL and ending.culprit is not None:
        return {call.id: Verdict.AT_FAULT if call.id == ending.culprit else Verdict.BYSTANDER for call in calls}
    if len(calls) == 1:
        return {calls[0].id: Verdict.AT_FAULT}
    return {call.id: Verdict.SUSPECT for call in sorted(calls, key=_order)}


def _order(call: CallInFlight) -> tuple[bool, int]:
    return (not call.uid, call.id)  # claims do not wait for telemetry


class CrashAttribution:
    """Remembers strikes by claim uid and coroutine, and the suspects that still have to be tried.

    What a claim did in `prepare` does not count for its `unprepare`: undoing must stay possible. `suspects` are the
    ids of the calls to be tried, each alone. `remembers` is false while no process has ended by a call: then no method
    here has anything to say to a call.
    """

    def __init__(self, strikes: int) -> None:
        self._limit = strikes
        self._strikes: OrderedDict[tuple[str, Method], _Strikes] = OrderedDict()
        self.suspects: OrderedDict[int, None] = OrderedDict()
        self._suspected: OrderedDict[tuple[str, Method], None] = OrderedDict()
        self.remembers = False

    def note_end(self, ending: Ending) -> dict[int, Verdict]:
        """The verdicts on the calls in flight; suspects are queued to be tried, each alone."""
        self.remembers = True
        verdicts = find_verdicts(ending)
        calls = {call.id: call for call in ending.calls}
        for call_id, verdict in verdicts.items():
            if verdict is Verdict.SUSPECT:
                self.suspects[call_id] = None
                if calls[call_id].uid:
                    self._suspected[calls[call_id].uid, calls[call_id].method] = None
        while len(self._suspected) > MAX_CLAIMS:
            self._suspected.popitem(last=False)
        return verdicts

    def begin(self, call_id: int, claim: Claim, method: Method) -> Quarantined | None:
        """A new call for a claim: why it is refused, or None.

        Tried alone when its claim is suspected or has strikes, however long ago its last call ended: a call that hangs
        may take its own time and that of all others in flight, and without this the same claims would meet again.
        """
        key = (claim.uid, method)
        strikes = self._strikes.get(key)
        if strikes is not None and strikes.count >= self._limit:
            return _list_quarantined(strikes)[0]
        if strikes is not None or key in self._suspected:
            self.suspects[call_id] = None
        return None

    def may_call(self, call_id: int, *, busy: bool = False) -> bool:
        """Whether this call may go now: while there are suspects, only the first, and when no other call is `busy`."""
        if not self.suspects:
            return True
        return not busy and next(iter(self.suspects)) == call_id

    def note_answer(self, claim: Claim | None, method: Method, *, succeeded: bool) -> None:
        """The process survived a call of this claim. A quarantine for `prepare` outlives `unprepare`."""
        if claim is None:
            return
        self._suspected.pop((claim.uid, method), None)
        if succeeded:
            self._strikes.pop((claim.uid, method), None)
        self.remembers = bool(self._strikes or self._suspected)

    def forget_call(self, call_id: int) -> None:
        """The call is over, whatever came of it: the next suspect may go."""
        self.suspects.pop(call_id, None)

    def strike(self, claim: Claim, method: Method, line: str) -> Quarantined | None:
        """Note that the claim ended the process; the quarantine, when it is now in one."""
        strikes = self._strikes.setdefault((claim.uid, method), _Strikes(claim=claim))
        strikes.claim, strikes.line = claim, line
        strikes.count += 1
        self._suspected.pop((claim.uid, method), None)
        self._strikes.move_to_end((claim.uid, method))
        while len(self._strikes) > MAX_CLAIMS:
            self._strikes.popitem(last=False)
        return _list_quarantined(strikes)[0] if strikes.count >= self._limit else None

    def quarantined(self) -> tuple[Quarantined, ...]:
        """The devices of quarantined claims, until release: no other claim should meet what was left there."""
        full = (one for one in self._strikes.values() if one.count >= self._limit)
        devices = {(entry.pool, entry.device, entry.uid): entry for one in full for entry in _list_quarantined(one)}
        return tuple(devices[key] for key in sorted(devices))

    def release(self, uid: str) -> bool:
        """Forget a claim: it no longer exists. True when its devices are free of it now."""
        freed = any(one.uid == uid for one in self.quarantined())
        for method in Method:
            self._strikes.pop((uid, method), None)
            self._suspected.pop((uid, method), None)
        return freed

    def reset(self) -> None:
        """Forget every claim: the backend is another one."""
        self._strikes.clear()
        self._suspected.clear()
        self.remembers = False


def _list_quarantined(strikes: _Strikes) -> list[Quarantined]:
    claim = strikes.claim
    return [
        Quarantined(
            pool=device.pool,
            device=device.device,
            uid=claim.uid,
            claim=f"{claim.namespace}/{claim.name}",
            strikes=strikes.count,
            line=strikes.line,
        )
        for device in claim.devices
    ]
