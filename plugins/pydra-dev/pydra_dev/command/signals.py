"""The signals that end a run of `pydra dev`."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable

import anyio

from pydra.errors import PydraError

INTERRUPTED = 130


async def run_with_signals(run: Callable[[], Awaitable[int]], hear: Callable[[int], None], *numbers: int) -> int:
    """Await `run`, and call `hear` with each of these signals meanwhile; what `run` returns or raises."""

    async def listen() -> None:
        with anyio.open_signal_receiver(*map(signal.Signals, numbers)) as signals:
            async for number in signals:
                hear(number)

    failure: Exception | None = None
    code = INTERRUPTED
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listen, name="signals")
        try:
            code = await run()
        except (PydraError, OSError) as error:
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return code
