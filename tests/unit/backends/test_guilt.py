"""The guilty are found, bystanders go free, and a condemned claim stays away until something changes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydra.backends.crash_attribution import MAX_CLAIMS, Court, Verdict, judge
from pydra.backends.diagnosis import Cause, Ending, Flight
from pydra.backends.wire import Method
from pydra.claim import AllocatedDevice, Claim

GUILTY, SUSPECT, BYSTANDER = Verdict.GUILTY, Verdict.SUSPECT, Verdict.BYSTANDER


def claim(uid: str, *devices: str) -> Claim:
    return Claim(
        uid=uid,
        namespace="ns",
        name=f"c-{uid}",
        devices=tuple(AllocatedDevice(request="r", pool="node", device=name) for name in devices or ("gpu-0",)),
    )


def flight(call_id: int, method: Method = Method.PREPARE) -> Flight:
    return Flight(id=call_id, method=method, elapsed=1, uid="u" if method is Method.PREPARE else "")


def ending(*flights: Flight, cause: Cause = Cause.DIED, culprit: int | None = None) -> Ending:
    return Ending(cause=cause, status=-11, age=1, flights=flights, culprit=culprit)


WATCH = flight(9, Method.WAIT_CHANGED)


@pytest.mark.parametrize(
    ("end", "verdicts"),
    [
        (ending(WATCH), {}),
        (ending(flight(1), WATCH), {1: GUILTY}),
        (ending(flight(1, Method.DISCOVER)), {1: GUILTY}),
        (ending(flight(1), flight(2), WATCH), {1: SUSPECT, 2: SUSPECT}),
        (ending(flight(1, Method.DISCOVER), flight(2)), {2: SUSPECT, 1: SUSPECT}),
        (ending(flight(1), flight(2), cause=Cause.WEDGED, culprit=2), {1: BYSTANDER, 2: GUILTY}),
        (ending(flight(1), flight(2), cause=Cause.SILENT), {1: SUSPECT, 2: SUSPECT}),
        (ending(flight(1), flight(2), cause=Cause.GARBLED), {1: SUSPECT, 2: SUSPECT}),
    ],
    ids=["idle", "alone", "telemetry", "two", "claims first", "wedged", "silent", "garbled"],
)
def test_who_was_alone_or_known_is_guilty_and_others_are_tried(end: Ending, verdicts: dict[int, Verdict]) -> None:
    assert judge(end) == verdicts
    assert list(judge(end)) == list(verdicts)


@given(st.sets(st.integers(1, 50), min_size=2, max_size=10))
def test_suspects_go_one_at_a_time_and_then_everybody(suspects: set[int]) -> None:
    court = Court(2)
    court.hear(ending(*map(flight, sorted(suspects))))
    for current in sorted(suspects):
        assert court.in_session
        assert [call for call in range(1, 60) if court.may_call(call)] == [current]
        court.dismiss(current)
    assert not court.in_session
    assert all(court.may_call(call) for call in range(60))


def test_a_claim_is_condemned_when_it_has_its_last_strike() -> None:
    court = Court(2)
    bad = claim("u1", "gpu-1", "gpu-0")
    assert not court.convict(bad, Method.PREPARE, "died of SIGSEGV")
    assert court.sentence(bad, Method.PREPARE) is None
    assert court.condemned() == ()
    assert court.convict(bad, Method.PREPARE, "died of SIGABRT")
    sentence = court.sentence(bad, Method.PREPARE)
    assert sentence is not None
    assert "claim ns/c-u1 (uid u1) ended the process of backend sim 2 times" in sentence.explain("sim")
    assert "died of SIGABRT" in sentence.explain("sim")
    assert [(one.pool, one.device, one.uid) for one in court.condemned()] == [
        ("node", "gpu-0", "u1"),
        ("node", "gpu-1", "u1"),
    ]


@pytest.fixture
def court() -> Court:
    court = Court(1)
    court.convict(claim("u1"), Method.PREPARE, "died")
    return court


def test_a_condemned_claim_may_still_be_undone(court: Court) -> None:
    assert court.sentence(claim("u1"), Method.UNPREPARE) is None


def test_undoing_changes_nothing_about_the_sentence(court: Court) -> None:
    court.acquit(claim("u1"), Method.UNPREPARE)  # as after each prepare that failed
    assert [one.uid for one in court.condemned()] == ["u1"]
    assert court.sentence(claim("u1"), Method.PREPARE) is not None


def test_a_pardon_tells_whether_devices_are_free_again(court: Court) -> None:
    assert not court.pardon("u2")
    assert court.pardon("u1")
    assert not court.pardon("u1")


def test_another_claim_of_the_same_name_is_another_claim(court: Court) -> None:
    assert court.sentence(claim("u2"), Method.PREPARE) is None


def test_success_wipes_earlier_strikes() -> None:
    court = Court(2)
    court.convict(claim("u1"), Method.PREPARE, "died")
    court.acquit(claim("u1"), Method.PREPARE)
    assert not court.convict(claim("u1"), Method.PREPARE, "died")


def test_a_pardon_forgets_one_claim_and_an_amnesty_all(court: Court) -> None:
    court.convict(claim("u2"), Method.UNPREPARE, "died")
    court.pardon("u1")
    assert court.sentence(claim("u1"), Method.PREPARE) is None
    assert court.sentence(claim("u2"), Method.UNPREPARE) is not None
    court.amnesty()
    assert court.sentence(claim("u2"), Method.UNPREPARE) is None


def test_what_is_remembered_is_bounded(court: Court) -> None:
    for number in range(MAX_CLAIMS):
        court.convict(claim(f"x{number}"), Method.PREPARE, "died")
    assert court.sentence(claim("u1"), Method.PREPARE) is None
    assert court.sentence(claim("x0"), Method.PREPARE) is not None


def test_a_suspect_that_gave_up_waiting_is_tried_alone_when_it_comes_again() -> None:
    court = Court(2)
    court.hear(ending(flight(1), flight(2), cause=Cause.SILENT))
    for call_id in (1, 2):  # their time was over before they could be tried
        court.dismiss(call_id)
    court.admit(3, claim("u"), Method.PREPARE)
    assert not court.may_call(3, busy=True)
    assert court.may_call(3)
    assert not court.may_call(4)
    court.trust(claim("u"), Method.PREPARE)
    court.dismiss(3)
    court.admit(5, claim("u"), Method.PREPARE)
    assert court.may_call(5, busy=True)


def test_a_claim_that_ended_a_process_once_is_called_alone_until_it_succeeds() -> None:
    court, guilty = Court(2), claim("u")
    court.convict(guilty, Method.PREPARE, "its process died")
    court.admit(1, guilty, Method.PREPARE)
    assert not court.may_call(1, busy=True)
    court.dismiss(1)
    court.acquit(guilty, Method.PREPARE)
    court.admit(2, guilty, Method.PREPARE)
    assert court.may_call(2, busy=True)


@pytest.mark.parametrize("forget", [lambda court: court.pardon("u"), lambda court: court.amnesty()])
def test_distrust_goes_with_the_claim_and_with_the_backend(forget: Callable[[Court], None]) -> None:
    court = Court(2)
    court.hear(ending(flight(1), flight(2)))
    for call_id in (1, 2):
        court.dismiss(call_id)
    forget(court)
    court.admit(3, claim("u"), Method.PREPARE)
    assert court.may_call(3, busy=True)
