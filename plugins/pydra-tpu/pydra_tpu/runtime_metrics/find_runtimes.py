"""Looks for runtimes on their loopback ports, and asks those that are there."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pydra_tpu.runtime_metrics.samples import RuntimeAnswer

LOOPBACK = "127.0.0.1"


async def ask_runtimes(ports: Sequence[int], deadline: float) -> tuple[RuntimeAnswer, ...]:
    """What each runtime answers within `deadline` seconds, in the order of `ports`; nothing where none listens."""
    listening = await asyncio.gather(*(is_listening(LOOPBACK, port, deadline) for port in ports))
    if not any(listening):
        return ()
    # Imported only here: 4 MB that a node without a workload has no use for.
    from pydra_tpu.runtime_metrics.client import ask_runtime  # noqa: PLC0415

    found = [port for port, listens in zip(ports, listening, strict=True) if listens]
    return tuple(await asyncio.gather(*(ask_runtime(LOOPBACK, port, deadline) for port in found)))


async def is_listening(host: str, port: int, deadline: float) -> bool:
    """Whether somebody takes connections there."""
    try:
        async with asyncio.timeout(deadline):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True
