"""Hints of a backend that its hardware has changed: a `wait_changed` is in flight in each of its processes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import anyio

from pydra.backends.calls_in_flight import Outcome
from pydra.backends.crash_attribution import CrashAttribution
from pydra.backends.error_codec import parse_fault
from pydra.backends.process import BackendProcess
from pydra.backends.restarted_process import RestartedProcess
from pydra.backends.supervisor_events import BackendEvent, Trouble, build_trouble
from pydra.backends.wire import Call, Failure, Method, Reply
from pydra.backoff import find_pause
from pydra.errors import BackendDied

_log = logging.getLogger(__name__)
_PAUSE_SECONDS = 0.1
_RETRY_CAP_SECONDS = 60.0


class Hints:
    """Passes the hints of one backend to `wait`."""

    def __init__(
        self,
        process: RestartedProcess,
        attribution: CrashAttribution,
        *,
        ids: Iterator[int],
        report: Callable[[BackendEvent], None],
    ) -> None:
        self._process = process
        self._attribution = attribution
        self._ids = ids
        self._report = report
        self._discovered: BackendProcess | None = None  # the last process that `discover` was called in
        self._hinted = anyio.Event()
        self._taken = anyio.Event()
        self._call = anyio.CancelScope()

    async def wait(self) -> None:
        """Wait for a hint to call `discover`."""
        await self._hinted.wait()
        self._hinted = anyio.Event()
        self._taken.set()

    def give(self) -> None:
        """Give a hint that is not the backend's."""
        self._hinted.set()

    def note_discovered(self) -> None:
        """Note that `discover` was called: changes since then are worth a hint."""
        if self._discovered is not self._process.present:
            self._discovered = self._process.present
            self._process.note_change()

    def pause(self) -> None:
        """End the call for a hint, so that another one is alone; the next follows when no suspects are left."""
        self._call.cancel()

    async def run(self) -> None:
        """Keep a `wait_changed` in flight."""
        name, failures = self._process.name, 0
        while True:
            call = Call(id=next(self._ids), method=Method.WAIT_CHANGED)
            process = await self._wait_process(call.id)
            outcome: Outcome | None = None
            with anyio.CancelScope() as self._call:
                outcome = await process.in_flight.call(call, deadline=float("inf"))
            match outcome:
                case Reply():
                    failures = 0
                    await self._pass_on()
                    continue
                case Failure(fault=fault):
                    error = parse_fault(fault, name, Method.WAIT_CHANGED.value)
                    fields = {"backend": name, "details": fault.traceback}
                    _log.warning("%s", error, extra={"fields": fields})
                    self._report(build_trouble(name, Trouble.HINTS, error, details=fault.traceback))
                case BackendDied(details=details) as died:  # the log has it already
                    self._report(build_trouble(name, Trouble.HINTS, died, details=details, ended=True))
                case _:
                    continue
            failures += 1
            await anyio.sleep(find_pause(failures, first=2.0, cap=_RETRY_CAP_SECONDS))

    async def _wait_process(self, call_id: int) -> BackendProcess:
        """Wait for a process that gives hints, while no suspects are tried: another call would make that ambiguous.

        Before the first `discover` has ended there is nothing that could have changed since.
        """
        while True:
            process, facts = self._process.restored, self._process.facts
            if (
                process is not None
                and process is self._discovered
                and facts is not None
                and Method.WAIT_CHANGED in facts.methods
                and self._attribution.may_call(call_id)
            ):
                return process
            await self._process.wait_change()

    async def _pass_on(self) -> None:
        """Pass on a hint, and wait until it was taken: further hints are not collected meanwhile."""
        self._taken = anyio.Event()
        self._hinted.set()
        await self._taken.wait()
        await anyio.sleep(_PAUSE_SECONDS)
