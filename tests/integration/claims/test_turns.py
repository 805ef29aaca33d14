"""One piece of work at a time for each claim."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from pydra.claims.turns import Turns
from pydra.errors import PydraError

STOPPED = PydraError("stopped")


class Work:
    """Work that answers and ends when the test says so."""

    def __init__(self) -> None:
        self.started = 0
        self.may_answer = anyio.Event()
        self.may_end = anyio.Event()

    async def __call__(self, answer: Callable[[str | PydraError], None]) -> None:
        self.started += 1
        await self.may_answer.wait()
        answer("done")
        await self.may_end.wait()


async def test_the_same_question_joins_until_it_is_answered() -> None:
    work = Work()
    async with anyio.create_task_group() as tasks:
        turns = Turns(tasks)
        first = turns.take("a", "prepare", work, interrupted=STOPPED)
        assert turns.take("a", "prepare", work, interrupted=STOPPED) is first
        work.may_answer.set()
        assert await first.wait() == "done"
        second = turns.take("a", "prepare", work, interrupted=STOPPED)
        assert second is not first
        await anyio.wait_all_tasks_blocked()
        assert work.started == 1, "the second begins when the first has ended, not when it has answered"
        work.may_end.set()
        assert await second.wait() == "done"
        await turns.wait_idle()
    assert work.started == 2


async def test_another_question_waits_and_another_claim_does_not() -> None:
    one, two, three = Work(), Work(), Work()
    async with anyio.create_task_group() as tasks:
        turns = Turns(tasks)
        turns.take("a", "prepare", one, interrupted=STOPPED)
        turns.take("a", "unprepare", two, interrupted=STOPPED)
        turns.take("b", "prepare", three, interrupted=STOPPED)
        await anyio.wait_all_tasks_blocked()
        assert (one.started, two.started, three.started) == (1, 0, 1)
        for work in (one, two, three):
            work.may_answer.set()
            work.may_end.set()
        await turns.wait_idle()
        assert two.started == 1


async def test_a_question_does_not_join_one_that_is_not_the_last() -> None:
    one, two, again = Work(), Work(), Work()
    async with anyio.create_task_group() as tasks:
        turns = Turns(tasks)
        first = turns.take("a", "prepare", one, interrupted=STOPPED)
        turns.take("a", "unprepare", two, interrupted=STOPPED)
        assert turns.take("a", "prepare", again, interrupted=STOPPED) is not first
        for work in (one, two, again):
            work.may_answer.set()
            work.may_end.set()
        await turns.wait_idle()
        assert again.started == 1


async def test_work_that_is_cancelled_answers_that_it_was() -> None:
    work, late = Work(), Work()
    answers: list[object] = []
    async with anyio.create_task_group() as callers, anyio.create_task_group() as tasks:
        turns = Turns(tasks)
        turn = turns.take("a", "prepare", work, interrupted=STOPPED)
        queued = turns.take("a", "unprepare", late, interrupted=STOPPED)

        async def wait() -> None:
            answers.extend([await turn.wait(), await queued.wait()])

        callers.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert answers == [STOPPED, STOPPED]
    assert late.started == 0
