"""Supervisors over the misbehaving backend, with short deadlines, for use inside a test."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from pydra.backends.discovery import BackendSource
from pydra.backends.events import BackendEvent
from pydra.backends.limits import Deadlines, Patience, RestartPolicy
from pydra.backends.supervisor import BackendSupervisor
from pydra.claim import AllocatedDevice, Claim, OpaqueConfig

TROUBLE = Path(__file__).parent / "trouble"
_PATH = [str(TROUBLE), *filter(None, [os.environ.get("PYTHONPATH")])]
ENVIRON = {**os.environ, "PYTHONPATH": os.pathsep.join(_PATH)}
SOURCE = BackendSource(name="faulty", target="faulty:", distribution="pydra-faulty", version="1.0")

PATIENCE = Patience(heartbeat=0.05, silence=0.6, recall=0.3, stacks=1.0, burial=5.0, leave=5.0)
DEADLINES = Deadlines()
RESTARTS = RestartPolicy(first=0.01, cap=0.05)


def claim(device: str, uid: str = "u1", *configs: OpaqueConfig, name: str = "") -> Claim:
    allocated = AllocatedDevice(request="gpu", pool="node", device=device, configs=configs)
    return Claim(uid=uid, namespace="ns", name=name or f"c-{uid}", devices=(allocated,))


@asynccontextmanager
async def supervised(
    directory: Path | None = None,
    *,
    source: BackendSource = SOURCE,
    deadlines: Deadlines = DEADLINES,
    patience: Patience = PATIENCE,
    restarts: RestartPolicy = RESTARTS,
    refresh: Callable[[BackendSource], BackendSource] = lambda source: source,
    environ: Mapping[str, str] = ENVIRON,
    events: list[BackendEvent] | None = None,
) -> AsyncIterator[BackendSupervisor]:
    """A supervisor that runs until the block ends."""
    supervisor = BackendSupervisor(
        source,
        deadlines=deadlines,
        patience=patience,
        restarts=restarts,
        environ={**environ, "FAULTY_DIR": str(directory)} if directory else environ,
        refresh=refresh,
        report=events.append if events is not None else lambda event: None,
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.run)
        with anyio.fail_after(30):
            yield supervisor
        tasks.cancel_scope.cancel()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that other tasks or processes bring about."""
    with anyio.fail_after(10):
        while not condition():
            await anyio.sleep(0.005)
