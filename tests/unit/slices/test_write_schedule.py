"""How soon to write again."""

from __future__ import annotations

import pytest

from pydra.errors import Conflict, Gone, Invalid, KubeError, NotFound, Unavailable
from pydra.slices.write_schedule import DEFERRALS, PUBLISHES, REPAIRS, Backoff, retry_pause

BACKOFF = Backoff(free=2, pause=1.0, limit=8.0, quiet=100.0)


def rounds(backoff: Backoff, until: float, now: float = 0.0) -> list[float]:
    """When the rounds are, if somebody makes another one necessary at once."""
    times = []
    while (now := backoff.next_at(now)) <= until:
        times.append(now)
        backoff = backoff.after(now)
    return times


def test_rounds_come_at_once_and_then_ever_slower_up_to_a_limit() -> None:
    assert rounds(BACKOFF, until=40.0) == [0.0, 0.0, 1.0, 3.0, 7.0, 15.0, 23.0, 31.0, 39.0]


def test_a_round_that_comes_late_waits_for_nothing() -> None:
    backoff = BACKOFF.after(0.0).after(0.0).after(1.0)
    assert backoff.next_at(50.0) == 50.0


def test_after_a_quiet_time_all_is_forgotten() -> None:
    backoff = BACKOFF
    for now in (0.0, 0.0, 1.0, 3.0):
        backoff = backoff.after(now)
    backoff = backoff.after(200.0)
    assert (backoff.rounds, backoff.next_at(200.0)) == (1, 200.0)


def test_a_fight_of_an_hour_costs_about_a_round_a_minute() -> None:
    assert len(rounds(REPAIRS, until=3600.0)) < 75


def test_three_accidents_in_a_row_are_mended_at_once() -> None:
    assert rounds(REPAIRS, until=0.1) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("backoff", [REPAIRS, PUBLISHES, DEFERRALS], ids=["repair", "publish", "yield"])
def test_a_fight_is_not_forgotten_between_its_rounds(backoff: Backoff) -> None:
    assert backoff.quiet > backoff.limit


PAUSES = {
    "an outage is left within two seconds": (Unavailable("x"), 99, (1.0, 2.0)),
    "the first failure waits little": (Unavailable("x"), 1, (0.05, 0.1)),
    "a server that asks for time gets it": (Unavailable("x", retry_after=30.0), 1, (30.0, 30.1)),
    "a conflict is tried again soon": (Conflict("x"), 1, (0.025, 0.05)),
    "an absent node is looked for every two seconds": (NotFound("x"), 99, (1.0, 2.0)),
    "what is invalid is not hammered": (Invalid("x"), 1, (5.0, 10.0)),
    "nor ever": (Invalid("x"), 99, (150.0, 300.0)),
    "what is forbidden waits for an admin": (KubeError("x", status=403), 99, (30.0, 60.0)),
    "anything else too": (Gone("x"), 1, (0.5, 1.0)),
}


@pytest.mark.parametrize(("error", "failures", "pause"), PAUSES.values(), ids=PAUSES)
def test_each_failure_has_its_pause(error: KubeError, failures: int, pause: tuple[float, float]) -> None:
    assert retry_pause(error, failures) == pytest.approx(pause)
