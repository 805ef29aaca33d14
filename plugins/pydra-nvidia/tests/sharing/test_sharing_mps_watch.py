"""Daemons of live claims are looked after; those of nobody are ended when the admin wants that."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from mps_claims import until
from pydra import AllocatedDevice, Claim
from pydra_nvidia.claim_records import read_entries
from pydra_nvidia.settings import Orphans
from pydra_nvidia.sharing.apply_mps import StartMpsApplier
from pydra_nvidia.sharing.mps_daemon import MpsDaemons
from pydra_nvidia.sharing.mps_directory import LOG_LIMIT, find_directory, turn
from pydra_nvidia.sharing.mps_processes import MARK, Process, find_marked, identify, is_alive
from pydra_nvidia.sharing.mps_watch import MpsWatch
from pydra_nvidia.steps import StartMps

STEP = StartMps(
    id="u1-abcde", devices=("GPU-1",), exclusive=("GPU-1",), thread_percentage=30, pinned_mib={"GPU-1": 100}
)
UNKNOWN = Claim(
    uid="u9",
    namespace="default",
    name="claim",
    devices=(AllocatedDevice(request="r", pool="node", device="gpu-0"),),
)
LIMITS = ["set_default_active_thread_percentage 30", "set_default_device_pinned_mem_limit GPU-1 100M"]


class Watched:
    """An applier, a watch over it, and a clock that only the test moves."""

    def __init__(self, bench: Any) -> None:
        async def reread(uuids: object) -> Any:
            raise AssertionError("the record says which devices")

        daemons = MpsDaemons(bench.settings, bench.tree, bench.find_root)
        self.bench = bench
        self.now = 0.0
        self.applier = StartMpsApplier(bench.session, bench.settings, daemons, reread)
        self.watch = MpsWatch(self.applier, bench.settings, bench.agent.held, clock=lambda: self.now)

    async def look(self) -> None:
        await self.watch.look()

    def samples(self) -> dict[str, float]:
        return {sample.name: sample.value for sample in self.watch.samples()}

    def daemon(self) -> Process:
        record = find_directory(self.bench.settings, STEP.id).read_record()
        assert record is not None
        return Process(record.started, record.pid)

    async def kill(self) -> None:
        process = self.daemon()
        os.kill(process.pid, signal.SIGKILL)
        await until(lambda: identify(process.pid) is None)


@pytest.fixture
async def watched(bench: Any, kit: Any) -> Watched:
    bench.install_all()
    watched = Watched(bench)
    await watched.applier.apply(STEP, None, bench.note(kit.entry("u1", STEP)))
    return watched


async def test_a_daemon_that_lives_is_left_alone_and_its_log_kept_short(bench: Any, watched: Watched) -> None:
    before = watched.daemon()
    log = Path(find_directory(bench.settings, STEP.id).log) / "server.log"
    for size, kept in ((LOG_LIMIT // 2, LOG_LIMIT // 2), (LOG_LIMIT + 4096, 0)):
        log.write_bytes(b"x" * size)
        await watched.look()
        assert log.stat().st_size == kept
    assert watched.daemon() == before
    assert watched.samples() == {"mps_daemons": 1, "mps_restarts_total": 0, "mps_restart_failures_total": 0}


async def test_a_dead_daemon_is_started_again_with_its_limits_and_reported(bench: Any, watched: Watched) -> None:
    before = watched.daemon()
    await watched.kill()
    bench.hardware.modes["GPU-1"] = 0  # as after a reset of the GPU
    await watched.look()
    assert watched.daemon() != before
    assert is_alive(watched.daemon())
    assert bench.hardware.modes == {"GPU-1": 3}
    assert bench.log_of(STEP.id) == LIMITS * 2
    await watched.look()
    assert watched.samples() == {"mps_daemons": 1, "mps_restarts_total": 1, "mps_restart_failures_total": 0}


async def test_another_process_of_the_backend_looks_after_it_as_well(bench: Any, watched: Watched) -> None:
    await watched.kill()
    successor = Watched(bench)
    await successor.look()
    await watched.look()
    assert [one.samples()["mps_restarts_total"] for one in (successor, watched)] == [1, 0]
    assert watched.samples()["mps_daemons"] == 1


async def test_a_daemon_that_cannot_be_started_is_tried_again_later_and_later(
    bench: Any, watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    await watched.kill()
    bench.behave(start="refuses")
    attempts = []
    for second in range(100):
        watched.now, before = float(second), watched.samples()["mps_restart_failures_total"]
        await watched.look()
        attempts += [second] * int(watched.samples()["mps_restart_failures_total"] - before)
    assert caplog.text.count("An instance of this daemon is already running") == 5
    assert attempts == [0, 5, 15, 35, 75]
    assert watched.samples() == {"mps_daemons": 0, "mps_restarts_total": 0, "mps_restart_failures_total": 5}
    bench.behave()
    watched.now = 1000.0
    await watched.look()
    assert watched.samples() == {"mps_daemons": 1, "mps_restarts_total": 1, "mps_restart_failures_total": 5}


async def test_a_daemon_that_came_up_without_its_limits_does_not_count_as_running(
    bench: Any, watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    await watched.kill()
    bench.behave(percentage="100.0")
    await watched.look()
    assert "did not take defaultActiveThreadPercentage 30" in caplog.text
    assert watched.samples()["mps_daemons"] == 0
    bench.behave()
    watched.now = 1000.0
    (pid,) = {process.pid for process in find_marked(f"{MARK}={find_directory(bench.settings, STEP.id).path}")}
    os.kill(pid, signal.SIGKILL)
    await until(lambda: identify(pid) is None)
    await watched.look()
    assert watched.samples()["mps_daemons"] == 1
    assert bench.log_of(STEP.id)[-2:] == LIMITS


async def test_a_daemon_that_is_being_stopped_is_not_started_again(bench: Any, watched: Watched) -> None:
    await watched.kill()
    async with turn(bench.settings, STEP.id, 1):
        await watched.look()
    await watched.applier.undo(STEP, None, bench.agent.records["u1"].claim)
    await watched.look()
    assert watched.samples() == {"mps_daemons": 0, "mps_restarts_total": 0, "mps_restart_failures_total": 0}
    assert STEP.id not in os.listdir(f"{bench.settings.state}/mps")


async def test_a_daemon_of_nobody_is_ended_at_the_next_start_and_only_when_the_admin_wants_that(
    bench: Any, watched: Watched
) -> None:
    process = watched.daemon()

    async def ends(orphans: Orphans) -> bool:
        bench.settings = replace(bench.settings, orphans=orphans)
        successor = Watched(bench)
        await successor.look()
        assert is_alive(process), "it may be that of a claim which another instance prepares"
        await successor.watch.end_orphans(read_entries(bench.agent.held()))
        return not is_alive(process)

    assert not await ends(Orphans.REMOVE), "a claim holds it"
    bench.agent.records.clear()
    assert not await ends(Orphans.ADOPT)
    bench.agent.note(UNKNOWN, completed=True)
    assert not await ends(Orphans.REMOVE), "a plan is not known"
    assert bench.hardware.modes == {"GPU-1": 3}
    bench.agent.records.clear()
    assert await ends(Orphans.REMOVE)
    assert bench.hardware.modes == {"GPU-1": 0}
