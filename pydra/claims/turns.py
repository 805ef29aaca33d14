"""One piece of work at a time for each claim, in the order asked; a repeated question joins the one in work.

The work belongs to the agent's task group, not to who asked: a call that the kubelet gives up on
goes on, and its retry finds it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Generic, TypeAlias, TypeVar, cast

import anyio
from anyio.abc import TaskGroup

from pydra.errors import PydraError

T = TypeVar("T")
Work: TypeAlias = Callable[[Callable[[T | PydraError], None]], Awaitable[None]]
"""Work is given a function for its answer, and may go on after it has answered (to tidy up)."""


class Turn(Generic[T]):
    """One piece of work for a claim; anyone may wait for its answer."""

    def __init__(self, question: Hashable) -> None:
        self.question = question
        self.ended = anyio.Event()
        self._answered = anyio.Event()
        self._answer: T | PydraError | None = None

    @property
    def is_answered(self) -> bool:
        """Whether its answer is known; the work may still go on."""
        return self._answered.is_set()

    def answer(self, answer: T | PydraError) -> None:
        """Give the answer; the first one counts."""
        if not self.is_answered:
            self._answer = answer
            self._answered.set()

    async def wait(self) -> T | PydraError:
        """The answer. Cancelling the wait does not cancel the work."""
        await self._answered.wait()
        return cast("T | PydraError", self._answer)


class Turns:
    """The turns of all claims."""

    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self._last: dict[str, Turn[Any]] = {}

    def take(self, uid: str, question: Hashable, work: Work[T], *, interrupted: PydraError) -> Turn[T]:
        """Ask a question about a claim: a new turn behind the claim's last, or that one when it is for the same.

        `interrupted` is the answer of work that ends without one, because the agent stops.
        """
        before = self._last.get(uid)
        if before is not None and before.question == question and not before.is_answered:
            return before
        turn = self._last[uid] = Turn[T](question)
        self._tasks.start_soon(self._run, uid, turn, before, work, interrupted, name=f"claim {uid}")
        return turn

    async def wait_idle(self) -> None:
        """Return when nothing is in work."""
        while self._last:
            await next(iter(self._last.values())).ended.wait()

    async def _run(
        self, uid: str, turn: Turn[T], before: Turn[Any] | None, work: Work[T], interrupted: PydraError
    ) -> None:
        try:
            if before is not None:
                await before.ended.wait()
            await work(turn.answer)
        finally:
            turn.answer(interrupted)
            turn.ended.set()
            if self._last.get(uid) is turn:
                del self._last[uid]
