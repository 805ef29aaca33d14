"""One end for everything that waits in a call."""

from __future__ import annotations

import asyncio

from pydra_nvidia.budget import CALL, RESERVE, doing, left, left_since_begin, time_for, undoing


def test_without_a_budget_every_wait_has_its_own_time() -> None:
    assert (left(5), left_since_begin(5)) == (5, 5)


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
        assert (left(5), left_since_begin(5)) == (0, 0)


def test_waits_of_one_kind_count_from_the_beginning() -> None:
    with time_for(1000):
        first = left_since_begin(100)
        assert left_since_begin(100) <= first <= 100


async def test_threads_of_a_call_have_its_budget() -> None:
    with time_for(1):
        assert await asyncio.to_thread(left, 100) <= 1


def test_undoing_has_the_time_that_doing_left() -> None:
    with doing():
        assert left(1000) <= CALL - RESERVE
        with time_for(0), undoing():
            assert CALL - RESERVE < left(1000) <= CALL
        assert left(1000) <= CALL - RESERVE
