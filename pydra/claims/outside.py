"""What the claims' shells need of the outside, as Protocols; `agent.py` brings what has these shapes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Protocol, TypeAlias

import msgspec

from pydra.cdi.store import CdiStore
from pydra.checkpoint.record import Record
from pydra.checkpoint.scan import RecordTrouble
from pydra.claim import Claim, PreparedDevice
from pydra.claims.outcome import ClaimRef

FetchClaim: TypeAlias = Callable[[ClaimRef], Awaitable[Mapping[str, Any]]]
"""The ResourceClaim of this namespace and name. Raises KubeError: NotFound, Unavailable and the others."""


class Span(Protocol):
    """Opens a tracing span around a block."""

    def __call__(self, name: str, **attributes: str) -> AbstractContextManager[None]:
        """A child of the span that is open in this task, if one is."""
        ...


ReadPresent: TypeAlias = Callable[[Sequence[PreparedDevice]], Awaitable[tuple[PreparedDevice, ...]]]
"""The devices without the optional edits that the host lacks. Raises HostPathMissing when something else is absent."""


class ClaimBackend(Protocol):
    """The hardware code, behind its supervisor; every failure is a PydraError."""

    async def prepare(self, claim: Claim, /, *, until: float) -> Sequence[PreparedDevice]:
        """One entry for each of the claim's devices."""
        ...

    async def unprepare(self, claim: Claim, prepared: Sequence[PreparedDevice], /, *, until: float) -> None:
        """Undo it; `prepared` is empty when nothing is known of what was done."""
        ...


class Checkpoints(Protocol):
    """The records of this driver's claims. Raises CheckpointError."""

    async def refresh(self) -> Collection[str]:
        """See what another instance wrote; the uids whose records changed."""
        ...

    def records(self) -> Mapping[str, Record]:
        """The records by claim uid, as they are on disk."""
        ...

    def unreadable(self) -> Mapping[str, RecordTrouble]:
        """The claims by uid whose records cannot be read."""
        ...

    async def write(
        self, record: Record, /, *, before: Callable[[], None] | None = None, after: Callable[[], None] | None = None
    ) -> None:
        """Durable when it returns. `before` and `after` it, work on files is done in the same thread.

        When `before` fails, nothing is written; the error of `after` is raised when the record is durable.
        """
        ...

    async def remove(self, uid: str, /) -> None:
        """Durable when it returns; nothing happens when there is none."""
        ...


class NodeLock(Protocol):
    """What only one instance of the agent on this node may hold; all tasks of the holder share it."""

    def hold(self) -> AbstractAsyncContextManager[None]:
        """Hold it for the block. Raises CheckpointError when it cannot be had within the lock's own deadline."""
        ...


class CdiFiles(Protocol):
    """The CDI files of this driver's claims, by claim uid."""

    def write_now(self, uid: str, spec: bytes, /) -> None:
        """Write or replace the claim's file, atomically. Blocks."""
        ...

    async def ensure(self, uid: str, spec: bytes, /) -> bool:
        """Write the file unless it says the same already; whether it was written."""
        ...

    async def remove(self, uid: str, /) -> None:
        """Remove the claim's file; nothing happens when there is none."""
        ...

    def remove_now(self, uid: str, /) -> None:
        """Remove the claim's file; nothing happens when there is none. Blocks."""
        ...

    async def read(self) -> Mapping[str, bytes]:
        """All files of this driver."""
        ...


class StoredCdiFiles:
    """The files of a `CdiStore`."""

    def __init__(self, store: CdiStore) -> None:
        self.write_now = store.write
        self.remove_now = store.remove
        self.read = store.read
        self._store = store

    async def ensure(self, uid: str, spec: bytes, /) -> bool:
        """Write the file unless it says the same already; whether it was written."""
        return self._store.ensure(uid, spec)

    async def remove(self, uid: str, /) -> None:
        """Remove the claim's file; nothing happens when there is none."""
        self._store.remove(uid)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How long each wait for the outside may take, in seconds.

    `fetch_known`: the wait for the API server when a record can answer in its place.
    """

    fetch: float = 10.0
    fetch_known: float = 2.0
    prepare: float = 40.0
    unprepare: float = 40.0
