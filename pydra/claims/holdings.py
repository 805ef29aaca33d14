"""This node's records and the index of devices made from them: right for as long as the lock is held."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import anyio

from pydra.checkpoint.record import Record
from pydra.checkpoint.scan import RecordTrouble
from pydra.claim import Claim
from pydra.claims.device_index import DeviceHolders
from pydra.claims.outside import Checkpoints, NodeLock


class Holdings:
    """What the claims of one driver hold on this node.

    `holders` follows the records: whoever reserves devices for a claim calls `settle` when the claim's
    record has become what it will be.
    """

    def __init__(self, checkpoints: Checkpoints, lock: NodeLock) -> None:
        self.holders = DeviceHolders()
        self._checkpoints = checkpoints
        self._lock = lock
        self._refreshing = anyio.Lock(fast_acquire=True)
        self._reserved: set[str] = set()
        self._renewed: set[str] = set()
        self._indexed = False

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Hold the node's lock for the block; at its begin the index knows what other instances did.

        Raises:
            CheckpointError: another instance does not let go of the lock, or the records cannot be read.
        """
        async with self._lock.hold():
            await self._refresh()
            yield

    def record(self, uid: str) -> Record | None:
        """What was done for the claim on this node."""
        return self._checkpoints.records().get(uid)

    def trouble(self, uid: str) -> RecordTrouble | None:
        """Why the claim has no record that can be read, when it had one that cannot."""
        is_known = uid in self._renewed or self.record(uid) is not None
        return None if is_known else self._checkpoints.unreadable().get(uid)

    def reserve(self, uid: str, claims: Iterable[Claim]) -> None:
        """Take the devices of these for the uid, before anything is written."""
        self._reserved.add(uid)
        self.holders.hold(uid, claims)

    def settle(self, uid: str) -> None:
        """Let the uid hold what its record says, no more."""
        self._reserved.discard(uid)
        record = self.record(uid)
        if record is None:
            self.holders.release(uid)
        else:
            self.holders.hold(uid, (record.claim,))
            if uid in self._checkpoints.unreadable():
                self._renewed.add(uid)

    async def _refresh(self) -> None:
        # One at a time, and nobody goes on before it.
        async with self._refreshing:
            changed = await self._checkpoints.refresh()
            for uid in changed if self._indexed else tuple(self._checkpoints.records()):
                if uid not in self._reserved:
                    self.settle(uid)
            self._indexed = True
