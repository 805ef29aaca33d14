"""What is heard of simulated GPUs becomes a diagnosis: of the right GPU or partition, until it is over."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pydra import HealthStatus
from pydra_nvidia.hardware_reader import HardwareReader
from pydra_nvidia.hardware_types import Placement
from pydra_nvidia.health.diagnosis import Diagnosis
from pydra_nvidia.health.incident_store import IncidentStore
from pydra_nvidia.health.monitor import HealthMonitor
from pydra_nvidia.nvml.hung_queries import SuspendedQueries
from pydra_nvidia.nvml.session import NvmlSession
from pydra_nvidia.settings import parse_settings
from pydra_nvidia.simulation.simulation import open_simulation

DEADLINE = 60.0
QUIET = 300.0
PARTITIONED = {
    "model": "h100-80gb",
    "mig": True,
    "instances": [{"profile": "1g.10gb", "start": 0}, {"profile": "3g.40gb", "start": 4}],
}


class Ward:
    """A monitor, its machine, and a clock that only the test moves."""

    def __init__(self, path: Path, *gpus: dict[str, Any], **settings: str) -> None:
        scenario = path / "scenario.json"
        machine = {"host": {"onlyGpus": True}, "gpus": gpus or [{"model": "h100-80gb", "count": 2}]}
        scenario.write_text(json.dumps(machine))
        self.simulation = open_simulation(str(scenario), str(path / "machine"))
        self.inject = self.simulation.inject
        variables = {f"PYDRA_NVIDIA_{name.upper()}": value for name, value in settings.items()}
        self.settings = parse_settings(variables, self.simulation.settings)
        boards = self.simulation.machine.read().boards.values()
        self.uuids = [board.uuid for board in sorted(boards, key=lambda board: board.minor)]
        self.memory = path / "health.json"
        self.now = 1000.0
        self.session = NvmlSession(self.simulation.load)
        self.hardware = HardwareReader(self.session, self.simulation.tree, settings=self.settings)
        self.monitor = self.admit()

    def admit(self, **options: Any) -> HealthMonitor:
        """A new process's monitor."""
        memory = IncidentStore(str(self.memory))
        queries = SuspendedQueries(f"{self.memory}.queries")
        return HealthMonitor(self.session, memory, queries, settings=self.settings, clock=lambda: self.now, **options)

    async def look(self) -> Diagnosis:
        reading = await self.hardware.read()
        return await asyncio.to_thread(self.monitor.diagnose, reading)

    async def until(self, holds: Callable[[Diagnosis], bool]) -> Diagnosis:
        """Look whenever something is heard."""
        async with asyncio.timeout(DEADLINE):
            while not holds(found := await self.look()):
                await self.monitor.wait_event(1.0)
        return found

    async def xid(self, minor: int, code: int, **where: int) -> Diagnosis:
        """It happens, and is heard."""
        before = self.count()
        self.inject.xid(minor, code, **where)
        await self.until(lambda _: self.count() > before)
        return await self.look()  # the last one may have ended as it was heard

    def count(self) -> int:
        """The XIDs that are remembered."""
        return sum(one["count"] for one in json.loads(self.memory.read_text())) if self.memory.exists() else 0

    def close(self) -> None:
        self.session.close()


async def test_an_xid_concerns_its_gpu_until_it_has_been_quiet_for_long(tmp_path: Path) -> None:
    ward = Ward(tmp_path)
    assert await ward.look() == Diagnosis()
    found = await ward.xid(1, 48)
    assert list(found.gpus) == [ward.uuids[1]]
    assert found.gpus[ward.uuids[1]].health.reason == "48"
    ward.now += QUIET - 1
    assert await ward.look() == found
    await ward.xid(1, 48)
    ward.now += QUIET - 1
    assert list((await ward.look()).gpus) == [ward.uuids[1]], "the last counts"
    ward.now += 1
    assert await ward.look() == Diagnosis()
    (sample,) = ward.monitor.samples(ward.hardware.last)
    assert (sample.name, sample.value, sample.device, sample.labels) == ("xids_total", 2, "gpu-1", {"xid": "48"})
    ward.close()


async def test_an_xid_is_logged_with_its_meaning_and_its_repetitions_are_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ward = Ward(tmp_path)
    await ward.look()
    for _ in range(3):
        await ward.xid(1, 31)
        ward.now += 2  # else the repetition is not written, for which `xid` waits
    assert [one.getMessage() for one in caplog.records] == [
        f"gpu-1 ({ward.uuids[1]}) reports XID 31: GPU memory page fault"
    ]
    ward.close()


async def test_an_xid_lasts_as_long_as_the_driver_wants_a_recovery(tmp_path: Path) -> None:
    ward = Ward(tmp_path)
    await ward.look()
    await ward.xid(0, 119)
    ward.inject.recovery_action(0, 2)
    ward.now += 10 * QUIET
    assert (await ward.look()).gpus[ward.uuids[0]].health.reason == "119"
    ward.inject.recovery_action(0, 0)
    assert await ward.look() == Diagnosis()
    ward.close()


async def test_an_xid_of_a_partition_concerns_its_place(tmp_path: Path) -> None:
    ward = Ward(tmp_path, PARTITIONED)
    reading = await ward.hardware.read()
    assert reading.gpus[0].mig is not None
    ids = {one.placement.start: one.id for one in reading.gpus[0].mig.instances}
    await ward.look()
    found = await ward.xid(0, 94, gi=ids[4], ci=0)
    assert not found.gpus
    assert list(found.partitions) == [(ward.uuids[0], Placement(4, 4))]
    ward.close()


async def test_an_xid_of_a_partition_made_since_is_known_by_what_was_seen_last(tmp_path: Path) -> None:
    ward = Ward(tmp_path, {"model": "h100-80gb", "mig": True})
    await ward.look()
    ward.inject.create_mig(0, "1g.10gb", 2)
    seen = await ward.hardware.reread([0])
    ward.monitor.see(seen)
    assert seen.gpus[0].mig is not None
    found = await ward.xid(0, 94, gi=seen.gpus[0].mig.instances[0].id, ci=0)
    assert list(found.partitions) == [(ward.uuids[0], Placement(2, 1))]
    ward.close()


async def test_a_partition_that_nobody_knows_is_the_whole_gpu(tmp_path: Path) -> None:
    ward = Ward(tmp_path, PARTITIONED)
    await ward.look()
    assert list((await ward.xid(0, 94, gi=6, ci=0)).gpus) == [ward.uuids[0]]
    ward.close()


async def test_a_gpu_is_lost_alone_and_well_when_a_reset_has_brought_it_back(tmp_path: Path) -> None:
    ward = Ward(tmp_path)
    await ward.look()
    ward.inject.lose(0)
    found = await ward.until(lambda found: bool(found.gpus) and ward.count() > 0)
    assert list(found.gpus) == [ward.uuids[0]]
    assert found.gpus[ward.uuids[0]].health.taint == "gpu.nvidia.com/gpu-lost"
    ward.inject.reset(0, force=True)
    assert await ward.look() == Diagnosis()
    assert json.loads(ward.memory.read_text()) == []
    ward.close()


async def test_what_a_lost_gpu_reported_counts_on_when_it_answers_again_without_a_reset(tmp_path: Path) -> None:
    ward = Ward(tmp_path, PARTITIONED)
    await ward.look()
    ward.inject.lose(0)
    await ward.until(lambda found: bool(found.gpus) and ward.count() > 0)
    ward.inject.answer(0)
    found = await ward.look()
    assert found.gpus[ward.uuids[0]].health.taint == "gpu.nvidia.com/xid"
    assert found.gpus[ward.uuids[0]].health.reason == "79"
    ward.close()


async def test_the_event_of_a_gpu_that_is_known_to_be_lost_concerns_no_other(tmp_path: Path) -> None:
    ward = Ward(tmp_path)
    await ward.look()
    ward.inject.lose(0)
    lost = await ward.hardware.read()
    assert [one.uuid for one in lost.gpus] == ward.uuids[1:]
    ward.monitor.see(lost)  # faster than the event
    await ward.until(lambda _: ward.count() > 0)
    assert [one["gpu"] for one in json.loads(ward.memory.read_text())] == [ward.uuids[0]]
    ward.close()


async def test_another_process_goes_on_with_what_this_one_knew(tmp_path: Path) -> None:
    ward = Ward(tmp_path)
    await ward.look()
    found = await ward.xid(0, 62)
    ward.monitor = ward.admit()
    assert await ward.look() == found
    assert ward.monitor.samples(ward.hardware.last) == ()
    ward.close()


async def test_a_gpu_that_tells_no_events_says_so(tmp_path: Path) -> None:
    ward = Ward(tmp_path, {"model": "h100-80gb"})
    scenario = {
        "gpus": [{"model": "h100-80gb"}],
        "faults": [{"op": "nvmlDeviceRegisterEvents", "do": "raise", "code": "NOT_SUPPORTED"}],
    }
    (tmp_path / "scenario.json").write_text(json.dumps(scenario))
    (assessment,) = (await ward.look()).gpus.values()
    assert assessment.health.status is HealthStatus.HEALTHY
    assert [taint.key for taint in assessment.taints] == ["gpu.nvidia.com/unmonitored"]
    ward.close()


async def test_an_event_that_comes_while_the_gpus_are_read_makes_them_read_again(tmp_path: Path) -> None:
    ward = Ward(tmp_path)
    await ward.look()
    old = await ward.hardware.read()
    ward.inject.event(0, 0x2)
    assert not (await asyncio.to_thread(ward.monitor.diagnose, old)).gpus
    assert await ward.monitor.wait_event(0.0)
    ward.close()


async def test_nvml_that_never_says_whether_there_are_events_ends_the_process_and_is_not_asked_by_the_next(
    tmp_path: Path,
) -> None:
    ward = Ward(tmp_path)
    await ward.look()
    ended = asyncio.Event()
    ward.monitor = ward.admit(hung=0.1, end=ended.set)
    await ward.look()
    fault = {"op": "nvmlEventSetWait_v2", "do": "hang", "seconds": 3, "count": 1}
    (tmp_path / "scenario.json").write_text(
        json.dumps({"gpus": [{"model": "h100-80gb", "count": 2}], "faults": [fault]})
    )
    await ward.monitor.wait_event(0.0)
    assert ended.is_set()
    ward.monitor = ward.admit()
    taints = [taint.key for assessment in (await ward.look()).gpus.values() for taint in assessment.taints]
    assert taints == ["gpu.nvidia.com/unmonitored"] * 2
    ward.close()


async def test_without_health_nothing_is_watched(tmp_path: Path) -> None:
    ward = Ward(tmp_path, health="false")
    ward.inject.recovery_action(0, 1)
    assert await ward.look() == Diagnosis()
    ward.inject.xid(1, 79)
    assert not await ward.monitor.wait_event(0.1)
    ward.close()


async def test_a_gpu_whose_mig_mode_somebody_else_has_changed_is_still_heard(tmp_path: Path) -> None:
    ward = Ward(tmp_path)
    await ward.look()
    ward.inject.set_mig_mode(0, True, force=True)
    await ward.look()
    found = await ward.xid(0, 79)
    assert found.gpus[ward.uuids[0]].health.status is HealthStatus.UNHEALTHY
    ward.close()
