"""Keeps a backend's process up to date about the claims that the node holds, from `restore` on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TypeAlias

import anyio

from pydra.backends.crash_attribution import CrashAttribution
from pydra.backends.error_codec import parse_fault
from pydra.backends.process import BackendProcess
from pydra.backends.restarted_process import RestartedProcess
from pydra.backends.supervisor_events import BackendEvent, BackendFacts, Trouble, build_trouble
from pydra.backends.wire import Call, Failure, Method, Reply, build_held
from pydra.backoff import find_pause
from pydra.claim import HeldClaim
from pydra.errors import BackendError, PydraError

HeldClaims: TypeAlias = Callable[[], AbstractAsyncContextManager[Sequence[HeldClaim]]]

_log = logging.getLogger(__name__)
_RETRY_CAP_SECONDS = 30.0


class HeldClaimsSync:
    """The held claims, and which of them the process does not have as they are.

    They are sent before each call, so that the call can rely on them, and when the event loop is next idle, since a
    backend's own tasks may read them. `restore` may take `seconds`.
    """

    def __init__(
        self,
        process: RestartedProcess,
        attribution: CrashAttribution,
        *,
        ids: Iterator[int],
        seconds: float,
        report: Callable[[BackendEvent], None],
    ) -> None:
        self._process = process
        self._attribution = attribution
        self._ids = ids
        self._seconds = seconds
        self._report = report
        self._claims: dict[str, HeldClaim] = {}
        self._wanted = False  # whether the backend reads held claims
        self._source: HeldClaims | None = None
        self.unsent: set[str] = set()

    def note(self, uid: str, held: HeldClaim | None) -> None:
        """Note that the node holds the claim like this from now on, or does not hold it any more."""
        if not self.unsent:
            asyncio.get_running_loop().call_soon(self._send_soon)
        if held is not None:
            self._claims[uid] = held
        else:
            self._claims.pop(uid, None)
        self.unsent.add(uid)

    def begin(self, facts: BackendFacts) -> None:
        """Note that the process is a new one, of this backend."""
        self._wanted = facts.reads_held
        self.unsent = set(self._claims)

    def send(self, process: BackendProcess, *, complete: bool = False) -> None:
        """Send what has changed since the last time; `complete`: there are no other claims."""
        unsent, self.unsent = self.unsent, set()
        if self._wanted:
            claims = {uid: self._claims[uid] for uid in sorted(unsent) if uid in self._claims}
            for message in build_held(claims, sorted(unsent - claims.keys()), complete=complete):
                process.send_held(message)

    def _send_soon(self) -> None:
        process = self._process.restored
        if process is not None and self.unsent:
            self.send(process)

    def restore_from(self, source: HeldClaims) -> None:
        """Set the source of the held claims: entered for each new process, left when `restore` has ended."""
        self._source = source
        self._process.note_change()

    async def run(self) -> None:
        """Pass the held claims to each new process, before any other call."""
        failures = 0
        while True:
            process, source = self._process.open, self._source
            if process is None or process.restored or source is None:
                await self._process.wait_change()
                continue
            try:
                async with source() as claims:
                    await self._restore(process, claims)
            except PydraError as error:
                self._process.note_restore_failed()  # also if it ended the process, which is reported as that
                if process is self._process.open:
                    failures += 1
                    delay = find_pause(failures, first=1.0, cap=_RETRY_CAP_SECONDS)
                    self._report_failed(error, delay)
                    await anyio.sleep(delay)
            else:
                failures = 0

    async def _restore(self, process: BackendProcess, held: Sequence[HeldClaim]) -> None:
        call = Call(id=next(self._ids), method=Method.RESTORE, until=anyio.current_time() + self._seconds)
        self._claims = {one.claim.uid: one for one in held}
        self.unsent = set(self._claims)
        self.send(process, complete=True)
        try:
            match await process.in_flight.call(call, deadline=self._seconds):
                case Reply():
                    self._process.note_restored(process)
                case Failure(fault=fault):
                    raise parse_fault(fault, self._process.name, Method.RESTORE.value)
                case PydraError() as error:
                    raise error
        finally:
            self._attribution.forget_call(call.id)

    def _report_failed(self, error: PydraError, delay: float) -> None:
        name = self._process.name
        details = error.details if isinstance(error, BackendError) else ""
        event = build_trouble(name, Trouble.RESTORE, error, details=details)
        fields = {"backend": name, **({"details": details} if details else {})}
        _log.error("backend %s: %s; tried again in %.1f s", name, event.message, delay, extra={"fields": fields})
        self._process.note_not_restored(event.message)
        self._report(event)
