"""Retries to undo what ended claims have left, with backoff."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from pydra.checkpoint.store import RecordStore
from pydra.claim import ClaimRef
from pydra.claims.preparer import ClaimPreparer

FIRST_SECONDS = 5.0
CAP_SECONDS = 300.0


async def retry_left_over(preparer: ClaimPreparer, store: RecordStore, *, first: float = FIRST_SECONDS) -> None:
    """Try at once, so at each start, and again after growing pauses; never returns.

    What has just been left over is tried after `first` seconds, because it has just failed.
    """
    pause = first
    while True:
        left = [record.claim for _, record in sorted(store.records.items()) if record.left_over]
        tries = [preparer.reconcile(ClaimRef.of(claim)) for claim in left]
        if tries:
            await asyncio.wait(tries)
        preparer.left_over.clear()
        if any(record.left_over for record in store.records.values()):
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await preparer.left_over.wait()  # a new one: the others are tried with it
                    await asyncio.sleep(first)
            pause = min(pause * 2, CAP_SECONDS)
        else:
            pause = first
            await preparer.left_over.wait()
            await asyncio.sleep(first)
