"""The call at fault is found; a quarantined claim stays out until released."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pydra.backends.crash_attribution import MAX_CLAIMS, CrashAttribution, Involvement, attribute_crash
from pydra.backends.crash_diagnosis import CallInFlight, Cause, Ending
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


def test_a_claim_that_has_left_over_steps_without_devices_can_be_quarantined(strict: CrashAttribution) -> None:
    left = replace(claim("u1.left-1"), devices=())
    quarantined = strict.note_crash(left, Method.UNDO, "died of SIGSEGV")
    assert quarantined is not None
    assert "claim ns/c-u1.left-1 (uid u1.left-1) ended the process of backend b 1 times" in quarantined.explain("b")
    assert is_refused(strict, left, Method.UNDO)
    assert [one.uid for one in strict.quarantined()] == ["u1"]


def test_a_quarantined_claim_is_undone_again_after_a_pause_alone_since_its_pod_cannot_end_before() -> None:
    now = 1000.0
    attribution, bad = CrashAttribution(2, undo_again=300, clock=lambda: now), claim("u1")
    for _ in range(2):
        quarantined = attribution.note_crash(bad, Method.UNPREPARE, "died of SIGKILL")
        attribution.note_crash(bad, Method.PREPARE, "died of SIGKILL")
    assert quarantined is not None
    assert "is only tried again 300 s after that" in quarantined.explain("b")
    now += 299
    assert is_refused(attribution, bad, Method.UNPREPARE)
    now += 1
    assert attribution.begin(1, bad, Method.UNPREPARE) is None
    assert not attribution.may_call(2)
    attribution.forget_call(1)
    attribution.note_crash(bad, Method.UNPREPARE, "died of SIGKILL")
    assert is_refused(attribution, bad, Method.UNPREPARE)
    now += 3600
    assert not is_refused(attribution, bad, Method.UNPREPARE)
    assert is_refused(attribution, bad, Method.PREPARE)


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
