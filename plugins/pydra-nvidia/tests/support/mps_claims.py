"""A claim with a daemon of MPS, the applier that starts it, and how to find the daemon."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from pydra_nvidia.sharing.apply_mps import StartMpsApplier
from pydra_nvidia.sharing.mps_daemon import MpsDaemons
from pydra_nvidia.sharing.mps_directory import MpsDirectory, find_directory
from pydra_nvidia.sharing.mps_processes import MARK, Process, find_marked
from pydra_nvidia.steps import StartMps

STEP = StartMps(id="u1-abcde", devices=("GPU-1", "GPU-2"), exclusive=("GPU-1", "GPU-2"))
DEFAULT, EXCLUSIVE = 0, 3


def make_applier(bench: Any, reading: Any = None) -> StartMpsApplier:
    async def reread(uuids: object) -> Any:
        return reading

    daemons = MpsDaemons(bench.settings, bench.tree, bench.find_root)
    return StartMpsApplier(bench.session, bench.settings, daemons, reread)


def place_of(bench: Any, step: StartMps = STEP) -> MpsDirectory:
    return find_directory(bench.settings, step.id)


def daemons_of(bench: Any, step: StartMps = STEP) -> tuple[Process, ...]:
    return find_marked(f"{MARK}={place_of(bench, step).path}")


def daemon_of(bench: Any, step: StartMps = STEP) -> Process:
    record = place_of(bench, step).read_record()
    assert record is not None
    return Process(record.started, record.pid)


async def until(true: Callable[[], object], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come about"
        await asyncio.sleep(0.01)
