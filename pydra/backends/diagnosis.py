"""What happened to a backend's process: from its exit status and last output to a line and a report.

Pure. The line goes to the kubelet and into Events, the report to the log.
"""

from __future__ import annotations

import math
import re
import signal
from enum import Enum

import msgspec

from pydra.backends.wire import Method


class Cause(Enum):
    """Why the process is gone."""

    DIED = "died"
    """It ended by itself, or something other than the agent killed it."""
    WEDGED = "wedged"
    """Killed: a call neither ended within its deadline nor when cancelled, while others went on."""
    SILENT = "silent"
    """Killed: no sign of life; its event loop, or everything in it, stands still."""
    GARBLED = "garbled"
    """Killed: it sent bytes that are no messages."""
    LATE = "late"
    """Killed: it was not ready to be called in time after its start."""


class Flight(msgspec.Struct, frozen=True, kw_only=True):
    """A call that was in flight; `claim` is `namespace/name`, `uid` its claim's, `elapsed` in seconds."""

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

    `status` is its exit status, negative for a signal, None when it could not be learnt; `culprit`
    the id of the call that is known to be at fault; `output` the last of what it wrote to stderr;
    `reason` what else is known (the malformed bytes); `age` in seconds.
    """

    cause: Cause
    status: int | None
    age: float
    flights: tuple[Flight, ...] = ()
    culprit: int | None = None
    output: str = ""
    reason: str = ""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """`what` happened in a few words, `signal` its name or empty, `hung` whether it was killed for standing still.

    `brief` names no claim: it may be told to the users of others. `line` names the calls in flight, `report` has the
    rest of what is known, for the log.
    """

    what: str
    signal: str
    hung: bool
    brief: str
    line: str
    report: str

    def blame(self, flight: Flight) -> str:
        """The line for the author of this call's claim."""
        return f"{self.brief} during {flight} ({flight.elapsed:.1f} s)"


_FRAME = re.compile(r'^  File "(?P<file>[^"\n]*)", line (?P<line>\d+) in (?P<function>.+)$', re.MULTILINE)
_CURRENT = re.compile(r"^Current thread [^\n]*\(most recent call first\):\n", re.MULTILINE)
_STACKS = re.compile(r"^(Fatal Python error: |Current thread |Thread 0x)", re.MULTILINE)
_REPORT_OUTPUT = 16 * 1024


def diagnose(ending: Ending) -> Diagnosis:
    """All that is known about the end, in words."""
    name = signal_name(ending.status) if ending.cause is Cause.DIED else ""
    what = _what(ending, name)
    place = find_place(ending.output) if ending.cause is not Cause.GARBLED else ""
    flights = [flight for flight in ending.flights if flight.method is not Method.WAIT_CHANGED]
    during = ", ".join(f"{flight} ({flight.elapsed:.1f} s)" for flight in flights[:3])
    during += f" and {len(flights) - 3} more" if len(flights) > 3 else ""
    brief = f"its process {what}" + (f" at {place}" if place else "")
    line = brief + (f" during {during}" if during else "")
    hung = ending.cause in (Cause.WEDGED, Cause.SILENT, Cause.LATE)
    return Diagnosis(what=what, signal=name, hung=hung, brief=brief, line=line, report=_report(ending, line))


def signal_name(status: int | None) -> str:
    """`SIGSEGV` for -11; empty when the status is no signal."""
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
    if not frames or frames[0]["file"].endswith("/selectors.py"):  # the event loop at rest tells nothing
        return ""
    own = next((frame for frame in frames if not _is_library(frame["file"])), frames[0])
    return _spell(frames[0]) + (f" called from {_spell(own)}" if own is not frames[0] else "")


def _is_library(file: str) -> bool:
    return file.startswith("<") or ("/lib/python3." in file and "-packages/" not in file)


def _spell(frame: re.Match[str]) -> str:
    return f"{frame['function']} ({'/'.join(frame['file'].split('/')[-2:])}:{frame['line']})"


_KILLED = {
    Cause.WEDGED: "was killed because a call did not end, not even when cancelled",
    Cause.SILENT: "was killed because it gave no sign of life",
    Cause.GARBLED: "was killed because it sent malformed bytes",
    Cause.LATE: "was killed because it was not ready in time",
}


def _what(ending: Ending, name: str) -> str:
    if ending.cause is not Cause.DIED:
        return _KILLED[ending.cause] + (f" ({ending.reason})" if ending.reason else "")
    if name == "SIGKILL":
        return "was killed by SIGKILL, perhaps for want of memory"
    if name:
        return f"died of {name}"
    return "closed its connection" if ending.status is None else f"exited with status {ending.status}"


def _report(ending: Ending, line: str) -> str:
    parts = [f"{line}; it had run for {ending.age:.1f} s"]
    parts += [f"in flight: {flight} for {flight.elapsed:.3f} s" for flight in ending.flights]
    stacks = list(_STACKS.finditer(ending.output))
    output = ending.output[-_REPORT_OUTPUT:].strip()
    if output:
        parts += ["last output, Python stacks included:" if stacks else "last output:", output]
    return "\n".join(parts)
