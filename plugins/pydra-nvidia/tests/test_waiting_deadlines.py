"""One end for everything that waits in a call: the agent's."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator

import pytest

from pydra.backends.contract import call_deadline
from pydra_nvidia.waiting import call_time, left, time_for


@pytest.fixture
def give() -> Iterator[object]:
    """Give the call so many seconds, as the agent does."""
    token = call_deadline.set(math.inf)

    def give(seconds: float) -> None:
        call_deadline.set(time.monotonic() + seconds)

    yield give
    call_deadline.reset(token)


def test_without_a_budget_every_wait_has_its_own_time() -> None:
    assert left(5) == 5
    with call_time():
        assert left(5) == 5


def test_a_wait_gets_no_more_than_what_is_left_of_the_call() -> None:
    with time_for(1000):
        assert left(5) == 5
        assert 990 < left(2000) <= 1000
    assert left(2000) == 2000


def test_a_block_in_a_block_can_only_have_less() -> None:
    with time_for(10):
        with time_for(1000):
            assert left(500) <= 10
        with time_for(1):
            assert left(500) <= 1
        assert left(500) > 1


def test_time_that_is_used_up_is_nothing_and_never_less() -> None:
    with time_for(0):
        assert left(5) == 0


async def test_threads_of_a_call_have_its_budget() -> None:
    with time_for(1):
        assert await asyncio.to_thread(left, 100) <= 1


@pytest.mark.parametrize(("given", "call"), [(4000, 3998), (40, 38), (3, 2.7)], ids=["long", "as set", "hardly any"])
def test_a_call_ends_before_the_agent_cancels_it(give: object, given: float, call: float) -> None:
    give(given)  # type: ignore[operator]
    with call_time():
        assert left(1e6) == pytest.approx(call, abs=0.5)
