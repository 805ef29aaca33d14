"""The words that say how and where a process ended."""

from __future__ import annotations

import pytest

from pydra.backends.crash_diagnosis import CallInFlight, Cause, Ending, diagnose, find_place, signal_name
from pydra.backends.wire import Method

CRASH = """\
library: initialising
Fatal Python error: Segmentation fault

Thread 0x00007f1 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait

Current thread 0x00007f2 (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/opt/site-packages/vendor/pynvml.py", line 3879 in nvmlDeviceGetTemperature
  File "/opt/site-packages/pydra_x/backend.py", line 12 in prepare

Current thread's C stack trace (most recent call first):
  Binary file "/usr/bin/python", at _Py_DumpStack+0x31

Extension modules: msgspec._core (total: 1)
"""

PREPARE = CallInFlight(id=1, method=Method.PREPARE, elapsed=1.25, claim="ns/c", uid="u")
WATCH = CallInFlight(id=2, method=Method.WAIT_CHANGED, elapsed=300.0)


def crash(**changes: object) -> Ending:
    return Ending(**{"cause": Cause.DIED, "status": -11, "age": 60.0, "calls": (WATCH, PREPARE)} | changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("end", "line"),
    [
        (
            crash(output=CRASH),
            "its process died of SIGSEGV at string_at (ctypes/__init__.py:519) called from nvmlDeviceGetTemperature "
            "(vendor/pynvml.py:3879) during prepare of claim ns/c (1.2 s)",
        ),
        (crash(status=-6, calls=(WATCH,)), "its process died of SIGABRT"),
        (crash(status=7), "its process exited with status 7 during prepare of claim ns/c (1.2 s)"),
        (crash(status=-9, calls=()), "its process was killed by SIGKILL, perhaps for lack of memory"),
        (crash(status=None, calls=()), "its process closed its connection"),
        (
            crash(cause=Cause.STUCK_CALL, status=-9, calls=()),
            "its process was killed because a call timed out, and did not end when cancelled",
        ),
        (
            crash(cause=Cause.STUCK_LOOP, status=-9, reason="for 15.0 s", calls=()),
            "its process was killed because its event loop was blocked (for 15.0 s)",
        ),
        (
            crash(cause=Cause.GARBLED, status=-9, reason="a frame claims 4294967295 bytes", calls=()),
            "its process was killed because it broke the protocol (a frame claims 4294967295 bytes)",
        ),
        (
            crash(calls=tuple(CallInFlight(id=n, method=Method.DISCOVER, elapsed=0) for n in range(5))),
            "its process died of SIGSEGV during discover (0.0 s), discover (0.0 s), discover (0.0 s) and 2 more",
        ),
    ],
    ids=["segfault", "abort", "exit", "killed", "closed", "stuck call", "stuck loop", "garbled", "many"],
)
def test_the_line_says_what_where_and_during_which_call(end: Ending, line: str) -> None:
    assert diagnose(end).line == line


def test_the_report_has_every_call_and_the_stacks() -> None:
    report = diagnose(crash(output=CRASH)).report
    assert "it had run for 60.0 s" in report
    assert "in flight: wait_changed for 300.000 s" in report
    assert "in flight: prepare of claim ns/c for 1.250 s" in report
    assert "line 12 in prepare" in report


def test_the_report_is_bounded() -> None:
    assert len(diagnose(crash(output="x" * 1_000_000)).report) < 20_000


@pytest.mark.parametrize(
    ("status", "name"),
    [(-11, "SIGSEGV"), (-6, "SIGABRT"), (-63, "signal 63"), (0, ""), (1, ""), (None, "")],
)
def test_a_signal_has_its_name(status: int | None, name: str) -> None:
    assert signal_name(status) == name


@pytest.mark.parametrize("output", ["", "noise", "Current thread 0x1 (most recent call first):\n  <no Python frame>\n"])
def test_without_a_stack_there_is_no_place(output: str) -> None:
    assert find_place(output) == ""


def test_the_last_stack_counts() -> None:
    earlier = 'Current thread 0x1 (most recent call first):\n  File "/a/b.py", line 1 in old\n'
    later = 'Current thread 0x1 (most recent call first):\n  File "/a/b.py", line 2 in new\n'
    assert find_place(earlier + later) == "new (a/b.py:2)"


def test_what_others_see_names_no_claim_and_the_blame_names_one() -> None:
    mine = CallInFlight(id=1, method=Method.PREPARE, elapsed=2, claim="red/a", uid="u1")
    other = CallInFlight(id=2, method=Method.PREPARE, elapsed=1, claim="blue/b", uid="u2")
    diagnosis = diagnose(crash(calls=(mine, other)))
    assert "red/a" not in diagnosis.brief
    assert "blue/b" not in diagnosis.brief
    assert diagnosis.describe_for(mine) == f"{diagnosis.brief} during prepare of claim red/a (2.0 s)"
    assert diagnosis.line.endswith("during prepare of claim red/a (2.0 s), prepare of claim blue/b (1.0 s)")


@pytest.mark.parametrize(
    ("cause", "how"),
    [
        (Cause.STUCK_CALL, "hang"),
        (Cause.STUCK_LOOP, "hang"),
        (Cause.LATE, "hang"),
        (Cause.DIED, "SIGKILL"),
        (Cause.GARBLED, "exit"),
        (Cause.OVER_MEMORY, "memory"),
    ],
    ids=str,
)
def test_metrics_tell_how_a_process_ended(cause: Cause, how: str) -> None:
    assert diagnose(crash(cause=cause, status=-9)).how == how


def test_a_call_that_hung_says_its_deadline_and_where_it_was_waiting() -> None:
    where = (
        "status: resetting board 3\n"
        '  File "/opt/site-packages/x/backend.py", line 12, in prepare\n'
        '  File "/usr/lib/python3.11/asyncio/locks.py", line 213, in wait\n'
    )
    late = CallInFlight(id=1, method=Method.PREPARE, elapsed=42.1, deadline=40, claim="ns/c", uid="u")
    diagnosis = diagnose(crash(cause=Cause.STUCK_CALL, status=-9, calls=(late,), failed_call=1, where=where))
    assert diagnosis.describe_for(late) == (
        "prepare of claim ns/c timed out after 40 s; it was waiting in wait (asyncio/locks.py:213) "
        "called from prepare (x/backend.py:12) [resetting board 3]; its process was killed"
    )
    assert where.rstrip() in diagnosis.report
