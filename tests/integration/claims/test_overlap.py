"""Two instances over the same directories, as during a rolling update: each goes on where the other stopped."""

from __future__ import annotations

from pathlib import Path

import anyio

from pydra.claims.reports import SweepCounts
from pydra.errors import DeviceInUse
from tests.integration.claims.fakes import ref
from tests.integration.claims.real_node import NOTHING, RealNode

UIDS = [f"c{number}" for number in range(12)]
CLAIMS = {uid: (f"gpu-{uid}",) for uid in UIDS}


def no_step(name: str) -> None:
    """Nothing interferes."""


async def test_what_one_instance_prepared_the_other_answers_refuses_and_unprepares(tmp_path: Path) -> None:
    claims = {"a": ("gpu-0",), "b": ("gpu-0",)}
    old, new = RealNode(tmp_path, claims, no_step), RealNode(tmp_path, claims, no_step)
    async with old.running() as one, new.running() as other:
        first = await one.prepare([ref("a")])
        assert await other.prepare([ref("a")]) == first
        assert isinstance((await other.prepare([ref("b")]))["b"], DeviceInUse)
        assert await other.unprepare([ref("a")]) == {"a": None}
        assert isinstance((await one.prepare([ref("b")]))["b"], tuple)
        assert isinstance((await other.prepare([ref("a")]))["a"], DeviceInUse)
        assert await other.unprepare([ref("b")]) == {"b": None}
    assert old.traces() == NOTHING


async def test_two_instances_serve_at_once_and_nothing_fails(tmp_path: Path) -> None:
    old, new = RealNode(tmp_path, CLAIMS, no_step), RealNode(tmp_path, CLAIMS, no_step)
    failures: list[object] = []

    async with old.running() as one, new.running() as other:

        async def live(uid: str, number: int) -> None:
            first, second = (one, other) if number % 2 else (other, one)
            prepared = (await first.prepare([ref(uid)]))[uid]
            repeated = (await second.prepare([ref(uid)]))[uid]
            if not isinstance(prepared, tuple) or repeated != prepared:
                failures.append((prepared, repeated))
            failures.extend(error for error in (await second.unprepare([ref(uid)])).values() if error)

        async def sweep() -> None:
            for node, preparer in ((old, one), (new, other)):
                counts = (await node.sweep(preparer).sweep()).counts
                if counts.failed or counts.claims_unprepared:
                    failures.append(counts)

        async with anyio.create_task_group() as pods:
            for number, uid in enumerate(UIDS):
                pods.start_soon(live, uid, number)
            pods.start_soon(sweep)
        assert failures == []
        assert old.traces() == NOTHING
        assert (await new.sweep(other).sweep()).counts == SweepCounts()
