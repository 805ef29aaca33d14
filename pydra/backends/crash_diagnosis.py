"""Describes how and where a backend's process ended.

The line of a diagnosis goes to the kubelet and into Events, its report to the log.
"""

from __future__ import annotations

import math
import re
import signal
from enum import Enum

import msgspec

from pydra.backends.wire import Method
from pydra.message_text import format_seconds, list_names

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
    status: int | None = None
    age: float = 0.0
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
    during = list_names([f"{call} ({call.elapsed:.1f} s)" for call in calls], 3)
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
