"""Supervisors over the misbehaving backend, with short deadlines, for use inside a test."""

from __future__ import annotations

import ctypes
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from pydra.backends.discovery import BackendSource
from pydra.backends.supervisor import BackendSupervisor
from pydra.backends.supervisor_events import BackendEvent, BackendTrouble, Trouble
from pydra.backends.timeouts import CallDeadlines, ProcessTimeouts, RestartPolicy
from pydra.claim import AllocatedDevice, Claim, OpaqueConfig, PreparedDevice
from pydra.settings import ProcessRights

TROUBLE = Path(__file__).parent / "trouble"
_PATH = [str(TROUBLE), *filter(None, [os.environ.get("PYTHONPATH")])]
ENVIRON = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(_PATH),
    # An agent may run on the machine of the tests.
    "PYDRA_RECORDS_DIR": "/nonexistent",
    "PYDRA_KUBELET_ROOT": "/nonexistent",
}
SOURCE = BackendSource(name="faulty", target="faulty:", distribution="pydra-faulty", version="1.0")

TIMEOUTS = ProcessTimeouts(
    ping_interval=0.05,
    ping_timeout=30.0,
    cancel_timeout=30.0,
    stack_dump_timeout=1.0,
    kill_timeout=5.0,
    exit_timeout=5.0,
)
"""A process that only waits for its turn on a busy machine is not taken for one that hangs."""
SHORT_TIMEOUTS = replace(TIMEOUTS, ping_timeout=0.6, cancel_timeout=0.2)
"""For processes that hang."""
DEADLINES = CallDeadlines(connect=60.0, discover=30.0)


def find_troubles(events: Sequence[BackendEvent], trouble: Trouble) -> list[BackendTrouble]:
    """Return those of one kind."""
    return [one for one in events if isinstance(one, BackendTrouble) and one.trouble is trouble]


class Backend(BackendSupervisor):
    """A supervisor whose calls for claims have a deadline of `seconds` unless the test gives one."""

    seconds = 20.0

    async def prepare(self, claim: Claim, *, until: float | None = None) -> tuple[PreparedDevice, ...]:
        return await super().prepare(claim, until=self._default(until))

    async def unprepare(self, claim: Claim, prepared: Sequence[PreparedDevice], *, until: float | None = None) -> None:
        await super().unprepare(claim, prepared, until=self._default(until))

    async def plan(self, claim: Claim, *, until: float | None = None) -> Claim:
        return await super().plan(claim, until=self._default(until))

    async def apply(self, claim: Claim, step: int, *, until: float | None = None) -> Any:
        return await super().apply(claim, step, until=self._default(until))

    async def undo(self, claim: Claim, step: int, *, until: float | None = None) -> None:
        await super().undo(claim, step, until=self._default(until))

    def _default(self, until: float | None) -> float:
        return anyio.current_time() + self.seconds if until is None else until


RESTARTS = RestartPolicy(first=0.01, cap=0.05)


def claim(device: str, uid: str = "u1", *configs: OpaqueConfig, name: str = "") -> Claim:
    allocated = AllocatedDevice(request="gpu", pool="node", device=device, configs=configs)
    return Claim(uid=uid, namespace="ns", name=name or f"c-{uid}", devices=(allocated,))


@asynccontextmanager
async def supervised(
    directory: Path | None = None,
    *,
    source: BackendSource = SOURCE,
    seconds: float = 20.0,
    deadlines: CallDeadlines = DEADLINES,
    timeouts: ProcessTimeouts = TIMEOUTS,
    restarts: RestartPolicy = RESTARTS,
    refresh: Callable[[BackendSource], BackendSource] = lambda source: source,
    environ: Mapping[str, str] = ENVIRON,
    settings: Mapping[str, Any] = {},
    rights: ProcessRights = ProcessRights(),  # noqa: B008 - frozen
    events: list[BackendEvent] | None = None,
) -> AsyncIterator[Backend]:
    """A supervisor that runs until the block ends."""
    supervisor = Backend(
        source,
        deadlines=deadlines,
        timeouts=timeouts,
        restarts=restarts,
        environ={**environ, "FAULTY_DIR": str(directory)} if directory else environ,
        settings=settings,
        rights=rights,
        refresh=refresh,
        report=events.append if events is not None else lambda event: None,
    )
    supervisor.seconds = seconds
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.run)
        with anyio.fail_after(30):
            yield supervisor
        tasks.cancel_scope.cancel()


def need_libseccomp() -> None:
    """Skip the test where profiles cannot be compiled."""
    try:
        ctypes.CDLL("libseccomp.so.2")
    except OSError:
        pytest.skip("needs libseccomp.so.2 (Debian's package libseccomp2)")


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that other tasks or processes bring about."""
    with anyio.fail_after(30):
        while not condition():
            await anyio.sleep(0.005)
