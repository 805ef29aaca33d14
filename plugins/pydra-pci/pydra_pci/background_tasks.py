"""Work of a backend that goes on beside the calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager


@asynccontextmanager
async def run_beside(work: Mapping[str, Coroutine[None, None, None]]) -> AsyncIterator[None]:
    """Run coroutines, by the names of their tasks, until the block ends. Its own exception is not put in a group."""
    alone: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine, name=name) for name, coroutine in work.items()]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
    except BaseExceptionGroup as several:
        if len(several.exceptions) > 1:
            raise
        (alone,) = several.exceptions
    if alone is not None:
        raise alone
