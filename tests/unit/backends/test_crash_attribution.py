"""Why a process ended is said in words; the call at fault is found; a quarantined claim stays out until released."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydra.backends.crash_attribution import (
    MAX_CLAIMS,
    CallInFlight,
    Cause,
    CrashAttribution,
    Ending,
    Involvement,
    attribute_crash,
    diagnose,
    find_place,
    signal_name,
)
from pydra.backends.wire import Method
from pydra.claim import AllocatedDevice, Claim

AT_FAULT, SUSPECT, BYSTANDER = Involvement.AT_FAULT, Involvement.SUSPECT, Involvement.BYSTANDER


def claim(uid: str, *devices: str) -> Claim:
    return Claim(
        uid=uid,
        namespace="ns",
        name=f"c-{uid}",
        devices=tuple(AllocatedDevice(request="r", pool="node", device=name) for name in devices or ("gpu-0",)),
    )


def in_flight(call_id: int, method: Method = Method.PREPARE) -> CallInFlight:
    return CallInFlight(id=call_id, method=method, elapsed=1, uid="u" if method is Method.PREPARE else "")


def ending(*calls: CallInFlight, cause: Cause = Cause.DIED, failed_call: int | None = None, output: str = "") -> Ending:
    return Ending(cause=cause, status=-11, age=1, calls=calls, failed_call=failed_call, output=output)


def is_refused(attribution: CrashAttribution, asked: Claim, method: Method) -> bool:
    refused = attribution.begin(99, asked, method) is not None
    attribution.forget_call(99)
    return refused


WATCHING = in_flight(9, Method.WAIT_CHANGED)
HINTS = """\
Current thread 0x00007f2 (most recent call first):
  File "/opt/site-packages/pydra_x/backend.py", line 11 in watch
  File "/opt/site-packages/pydra/backends/child/calls.py", line 235 in _wait_changed
  File "/opt/site-packages/pydra/backends/child/calls.py", line 229 in _perform
"""
IDLE = 'Current thread 0x1 (most recent call first):\n  File "/usr/lib/python3.11/selectors.py", line 468 in select\n'


@pytest.mark.parametrize(
    ("end", "involvements"),
    [
        (ending(WATCHING), {}),
        (ending(in_flight(1), WATCHING), {1: AT_FAULT}),
        (ending(in_flight(1, Method.DISCOVER)), {1: AT_FAULT}),
        (ending(in_flight(1), in_flight(2), WATCHING), {1: SUSPECT, 2: SUSPECT}),
        (ending(in_flight(1, Method.DISCOVER), in_flight(2)), {2: SUSPECT, 1: SUSPECT}),
        (ending(in_flight(1), in_flight(2), cause=Cause.STUCK_CALL, failed_call=2), {1: BYSTANDER, 2: AT_FAULT}),
        (ending(in_flight(1), in_flight(2), cause=Cause.STUCK_LOOP), {1: SUSPECT, 2: SUSPECT}),
        (ending(in_flight(1), in_flight(2), cause=Cause.GARBLED), {1: SUSPECT, 2: SUSPECT}),
        (ending(in_flight(1), WATCHING, cause=Cause.STUCK_LOOP, output=HINTS), {1: BYSTANDER, 9: AT_FAULT}),
        (ending(in_flight(1), WATCHING, cause=Cause.GARBLED, output=HINTS), {1: AT_FAULT}),
        (ending(in_flight(1), WATCHING, cause=Cause.STUCK_LOOP, output=HINTS + IDLE), {1: AT_FAULT}),
    ],
    ids=[
        *("idle", "alone", "telemetry", "two", "claims first", "stuck call", "stuck loop", "garbled"),
        *("wait_changed blocks", "an earlier stack", "the last stack counts"),
    ],
)
def test_a_call_that_was_alone_or_known_is_at_fault_and_others_are_tried(
    end: Ending, involvements: dict[int, Involvement]
) -> None:
    assert attribute_crash(end) == involvements
    assert list(attribute_crash(end)) == list(involvements)


@given(st.sets(st.integers(1, 50), min_size=2, max_size=10))
def test_suspects_go_one_at_a_time_and_then_every_call(suspects: set[int]) -> None:
    attribution = CrashAttribution(2)
    attribution.note_end(ending(*map(in_flight, sorted(suspects))))
    for current in sorted(suspects):
        assert [call for call in range(1, 60) if attribution.may_call(call)] == [current]
        attribution.forget_call(current)
    assert all(attribution.may_call(call) for call in range(60))


def test_a_claim_is_quarantined_when_it_has_its_last_strike() -> None:
    attribution, bad = CrashAttribution(2), claim("u1", "gpu-1", "gpu-0")
    assert attribution.note_crash(bad, Method.PREPARE, "died of SIGSEGV") is None
    assert not is_refused(attribution, bad, Method.PREPARE)
    assert attribution.quarantined() == ()
    quarantined = attribution.note_crash(bad, Method.PREPARE, "died of SIGABRT")
    assert quarantined is not None
    assert "claim ns/c-u1 (uid u1) ended the process of backend sim 2 times" in quarantined.explain("sim")
    assert "died of SIGABRT" in quarantined.explain("sim")
    assert is_refused(attribution, bad, Method.PREPARE)
    assert [(one.pool, one.device, one.uid) for one in attribution.quarantined()] == [
        ("node", "gpu-0", "u1"),
        ("node", "gpu-1", "u1"),
    ]


@pytest.fixture
def strict() -> CrashAttribution:
    attribution = CrashAttribution(1)
    attribution.note_crash(claim("u1"), Method.PREPARE, "died")
    return attribution


def test_a_quarantined_claim_may_be_unprepared_and_stays_quarantined(strict: CrashAttribution) -> None:
    assert not is_refused(strict, claim("u1"), Method.UNPREPARE)
    strict.note_answer(claim("u1"), Method.UNPREPARE, succeeded=True)  # as after each prepare that failed
    assert [one.uid for one in strict.quarantined()] == ["u1"]
    assert is_refused(strict, claim("u1"), Method.PREPARE)


def test_another_claim_of_the_same_name_is_another_claim(strict: CrashAttribution) -> None:
    assert not is_refused(strict, claim("u2"), Method.PREPARE)


def test_release_says_whether_devices_are_free_again(strict: CrashAttribution) -> None:
    assert not strict.release("u2")
    assert strict.release("u1")
    assert not strict.release("u1")


def test_success_removes_earlier_strikes() -> None:
    attribution = CrashAttribution(2)
    attribution.note_crash(claim("u1"), Method.PREPARE, "died")
    attribution.note_answer(claim("u1"), Method.PREPARE, succeeded=True)
    assert attribution.note_crash(claim("u1"), Method.PREPARE, "died") is None


def test_release_forgets_one_claim_and_reset_all(strict: CrashAttribution) -> None:
    strict.note_crash(claim("u2"), Method.UNPREPARE, "died")
    strict.release("u1")
    assert not is_refused(strict, claim("u1"), Method.PREPARE)
    assert is_refused(strict, claim("u2"), Method.UNPREPARE)
    strict.reset()
    assert not is_refused(strict, claim("u2"), Method.UNPREPARE)


def test_what_is_remembered_is_bounded(strict: CrashAttribution) -> None:
    for number in range(MAX_CLAIMS):
        strict.note_crash(claim(f"x{number}"), Method.PREPARE, "died")
    assert not is_refused(strict, claim("u1"), Method.PREPARE)
    assert is_refused(strict, claim("x0"), Method.PREPARE)


def test_a_suspect_that_gave_up_waiting_is_tried_alone_when_it_comes_again() -> None:
    attribution = CrashAttribution(2)
    attribution.note_end(ending(in_flight(1), in_flight(2), cause=Cause.STUCK_LOOP))
    for call_id in (1, 2):  # their time was over before they could be tried
        attribution.forget_call(call_id)
    attribution.begin(3, claim("u"), Method.PREPARE)
    assert not attribution.may_call(3, busy=True)
    assert attribution.may_call(3)
    assert not attribution.may_call(4)
    attribution.note_answer(claim("u"), Method.PREPARE, succeeded=False)
    attribution.forget_call(3)
    attribution.begin(5, claim("u"), Method.PREPARE)
    assert attribution.may_call(5, busy=True)


def test_a_claim_that_ended_a_process_once_is_called_alone_until_it_succeeds() -> None:
    attribution, bad = CrashAttribution(2), claim("u")
    attribution.note_crash(bad, Method.PREPARE, "its process died")
    attribution.begin(1, bad, Method.PREPARE)
    assert not attribution.may_call(1, busy=True)
    attribution.forget_call(1)
    attribution.note_answer(bad, Method.PREPARE, succeeded=True)
    attribution.begin(2, bad, Method.PREPARE)
    assert attribution.may_call(2, busy=True)


@pytest.mark.parametrize("forget", [lambda one: one.release("u"), lambda one: one.reset()], ids=["release", "reset"])
def test_suspicion_goes_with_the_claim_and_with_the_backend(forget: Callable[[CrashAttribution], None]) -> None:
    attribution = CrashAttribution(2)
    attribution.note_end(ending(in_flight(1), in_flight(2)))
    for call_id in (1, 2):
        attribution.forget_call(call_id)
    forget(attribution)
    attribution.begin(3, claim("u"), Method.PREPARE)
    assert attribution.may_call(3, busy=True)


# The words


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
