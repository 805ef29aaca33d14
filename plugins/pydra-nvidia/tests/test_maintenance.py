"""Maintenance: no backend has the GPUs open then, and everything goes on when it is over."""

from __future__ import annotations

import asyncio
import fcntl
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pydra import AllocatedDevice, Claim, HealthStatus, Inventory, TaintEffect
from pydra_nvidia.composition import open_backend
from pydra_nvidia.health.diagnosis import MAINTENANCE
from pydra_nvidia.machine_access import find_machine
from pydra_nvidia.nvml.maintenance_gate import LOCK, REQUEST, UNSAID, Gate, InMaintenance
from pydra_nvidia.nvml.session import NvmlSession
from pydra_nvidia.simulation.simulation import Simulation, open_simulation
from small_agent import SmallAgent

DEADLINE = 60.0
PART = "gpu-0-mig-1g10gb-19-0"


def claim(uid: str, *devices: str) -> Claim:
    allocated = (AllocatedDevice(request=f"r{n}", pool="node", device=one) for n, one in enumerate(devices))
    return Claim(uid=uid, namespace="default", name=f"claim-{uid}", devices=tuple(allocated))


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not holds():  # noqa: ASYNC110 - it is in other threads
            await asyncio.sleep(0.01)


class TestGate:
    """The two files."""

    def test_nobody_has_asked_at_first(self, tmp_path: Path) -> None:
        gate = Gate(str(tmp_path / "none"))
        assert gate.asked() is None
        gate.check()
        assert not gate.withdraw()

    def test_a_request_lasts_until_its_time_or_until_it_is_taken_back(self, tmp_path: Path) -> None:
        gate = Gate(str(tmp_path))
        request = gate.ask(600)
        assert gate.asked() is not None
        with pytest.raises(InMaintenance, match=r"until 20\d\d-.* UTC .*maintenance.*pydra-nvidia resume") as raised:
            gate.check()
        assert raised.value.retryable
        assert request.until == pytest.approx(time.time() + 600, abs=60)
        assert gate.withdraw()
        gate.check()
        gate.ask(-1)
        gate.check()

    @pytest.mark.parametrize("text", ["", "new driver\n", "\xff", "nan\n", "inf\n", "1795800000000\n"])
    def test_a_file_without_a_time_counts_from_when_it_was_touched(self, tmp_path: Path, text: str) -> None:
        gate, path = Gate(str(tmp_path)), tmp_path / REQUEST
        path.write_text(text)
        request = gate.asked()
        assert request is not None
        assert request.until == path.stat().st_mtime + UNSAID
        assert "UTC" in request.explain()
        os.utime(path, (time.time() - UNSAID, time.time() - UNSAID))
        assert gate.asked() is None

    def test_who_has_nvml_open_is_waited_for(self, tmp_path: Path) -> None:
        ours, theirs = Gate(str(tmp_path)), Gate(str(tmp_path))
        with ours.inside():
            assert not theirs.wait_left(0)
        assert theirs.wait_left(0)

    def test_nobody_enters_while_it_is_asked_or_while_somebody_has_the_lock(self, tmp_path: Path) -> None:
        gate = Gate(str(tmp_path))
        gate.ask(600)
        with pytest.raises(InMaintenance):
            gate.enter()
        assert gate.wait_left(0), "nothing is left of the attempt"
        gate.withdraw()
        with open(tmp_path / LOCK) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with pytest.raises(InMaintenance, match="another process has locked"):
                gate.enter()
        gate.enter()
        gate.leave()

    def test_without_a_directory_to_lock_in_nvml_is_opened_all_the_same(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with Gate(str(tmp_path / "file")).inside():
            pass


def test_a_session_is_not_opened_while_it_is_asked_and_tells_when_it_is(tmp_path: Path) -> None:
    gate, machine = Gate(str(tmp_path / "run")), open_simulation("t4", str(tmp_path))
    session = NvmlSession(machine.load, gate)
    gate.ask(600)
    with pytest.raises(InMaintenance):
        session.run_here(lambda nvml: nvml.call("nvmlDeviceGetCount"))
    assert not session.is_open
    gate.withdraw()
    assert session.run_here(lambda nvml: nvml.call("nvmlDeviceGetCount")) == 4
    assert not gate.wait_left(0)
    session.close()
    assert gate.wait_left(0)


def test_a_session_that_cannot_begin_keeps_nobody_waiting(tmp_path: Path) -> None:
    gate, machine = Gate(str(tmp_path / "run")), open_simulation("t4", str(tmp_path))
    machine.inject.unload_driver()
    with pytest.raises(Exception, match="DRIVER_NOT_LOADED"):
        NvmlSession(machine.load, gate).run_here(lambda nvml: nvml.call("nvmlDeviceGetCount"))
    assert gate.wait_left(0)


class Node:
    """A backend over a simulated HGX H100, its gate as the admin has it, and what was published first."""

    def __init__(self, backend: Any, simulation: Simulation, path: Path) -> None:
        self.backend = backend
        self.agent = SmallAgent(backend)
        self.simulation = simulation
        self.inject = simulation.inject
        self.gate = Gate(str(path / "run"))

    async def request_maintenance(self) -> None:
        self.gate.ask(600)
        assert await asyncio.to_thread(self.gate.wait_left, DEADLINE)
        assert self.simulation.machine.clients() == {}

    async def look(self, holds: Callable[[Inventory], bool]) -> Inventory:
        """What is published once it is so; found as the agent finds it."""
        async with asyncio.timeout(DEADLINE):
            while not holds(found := await self.backend.discover()):
                await self.backend.wait_changed()
        return found

    def instances(self) -> int:
        return sum(len(gpu.instances) for gpu in self.simulation.machine.read().state.gpus.values())


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    simulation = open_simulation("hgx-h100", str(tmp_path))
    variables = {"SCENARIO": "hgx-h100", "STATE": str(tmp_path), "POLL_PERIOD": "0.02", "DYNAMIC_MIG": "true"}
    async with open_backend(
        find_machine({f"PYDRA_NVIDIA_{name}": value for name, value in variables.items()})
    ) as backend:
        await backend.restore(())
        yield Node(backend, simulation, tmp_path)


async def test_the_driver_is_replaced_during_maintenance(node: Node) -> None:
    before = await node.backend.discover()
    await node.request_maintenance()
    during = await node.look(lambda found: found != before)
    assert [one.name for one in during.devices] == [one.name for one in before.devices]
    assert {one.health.status for one in during.devices} == {HealthStatus.UNKNOWN}
    assert {(taint.key, taint.effect) for one in during.devices for taint in one.taints} == {
        (MAINTENANCE, TaintEffect.NO_SCHEDULE)
    }
    assert "has requested maintenance of its GPUs until" in during.devices[0].health.message
    node.inject.unload_driver()
    assert await node.look(lambda _: True) == during
    node.inject.load_driver("590.44.01")
    assert node.simulation.machine.clients() == {}
    node.gate.withdraw()
    after = await node.look(lambda found: found != during)
    assert {one.attributes["driverVersion"] for one in after.devices} != {
        one.attributes["driverVersion"] for one in before.devices
    }
    assert not [one.name for one in after.devices if one.taints or one.health.status is not HealthStatus.HEALTHY]


async def test_a_gpu_that_was_ill_stays_ill_during_maintenance(node: Node) -> None:
    await node.backend.discover()
    node.inject.xid(0, 79)

    def ill(found: Inventory) -> set[str]:
        return {one.name for one in found.devices if one.health.status is HealthStatus.UNHEALTHY}

    before = ill(await node.look(lambda found: bool(ill(found))))
    await node.request_maintenance()
    during = await node.look(lambda found: all(MAINTENANCE in {one.key for one in dev.taints} for dev in found.devices))
    assert ill(during) == before


async def test_claims_are_refused_meanwhile_and_served_when_it_is_over(node: Node) -> None:
    await node.backend.discover()
    await node.request_maintenance()
    with pytest.raises(InMaintenance) as raised:
        await node.agent.prepare(claim("a", PART))
    assert raised.value.retryable
    assert node.agent.records == {}
    node.gate.withdraw()
    await node.agent.prepare(claim("a", PART))
    await node.agent.unprepare("a")
    assert node.instances() == 0


async def test_what_a_claim_left_meanwhile_is_undone_when_it_is_over(node: Node) -> None:
    await node.backend.discover()
    await node.agent.prepare(claim("a", PART))
    await node.request_maintenance()
    await node.agent.unprepare("a")
    assert node.instances() == 1
    assert node.simulation.machine.clients() == {}
    assert [one.left_over for one in node.agent.held()] == [True]
    node.gate.withdraw()
    await node.agent.retry()
    assert (node.instances(), node.agent.records) == (0, {})


async def test_a_claim_that_was_planned_before_is_refused_and_ends_with_nothing_left(node: Node) -> None:
    planned = await node.agent.plan(claim("a", PART))
    await node.request_maintenance()
    with pytest.raises(InMaintenance):
        await node.agent.carry_out(planned)
    assert node.agent.records == {}


async def test_what_has_begun_is_finished_before(node: Node) -> None:
    await node.backend.discover()
    planned = await node.agent.plan(claim("a", PART))
    reached, go_on = threading.Event(), threading.Event()

    def hold(_nvml: object) -> None:
        reached.set()
        assert go_on.wait(DEADLINE)

    held = asyncio.create_task(node.backend._session.run(hold))
    await asyncio.to_thread(reached.wait, DEADLINE)
    preparing = asyncio.create_task(node.agent.carry_out(planned))
    await until(lambda: node.backend._at_work == 1)
    node.gate.ask(600)
    await until(lambda: node.backend._maintenance is not None)
    go_on.set()
    await held
    with suppress(InMaintenance):  # the step that has begun ends, and no other begins
        await preparing
    assert await asyncio.to_thread(node.gate.wait_left, DEADLINE)


async def test_nothing_is_published_of_hardware_that_nobody_has_seen_yet(node: Node, tmp_path: Path) -> None:
    node.gate.ask(600)
    variables = {"PYDRA_NVIDIA_SCENARIO": "hgx-h100", "PYDRA_NVIDIA_STATE": str(tmp_path)}
    async with open_backend(find_machine(variables)) as backend:
        await backend.restore(())
        with pytest.raises(InMaintenance):
            await backend.discover()
        node.gate.withdraw()
        assert (await backend.discover()).devices


async def test_numbers_of_before_are_not_reported_as_those_of_now(node: Node) -> None:
    await node.backend.discover()
    assert any(one.device == "gpu-0" for one in await node.backend.measure())
    await node.request_maintenance()
    told = {(one.name, one.device): one.value for one in await node.backend.measure()}
    assert told["maintenance", ""] == 1
    assert not [device for name, device in told if device and name != "xids_total"]
    node.gate.withdraw()
    await until(lambda: node.backend._maintenance is None)
    told = {(one.name, one.device): one.value for one in await node.backend.measure()}
    assert told["maintenance", ""] == 0
    assert ("temperature_celsius", "gpu-0") in told


async def test_the_time_of_a_request_runs_out(node: Node) -> None:
    before = await node.backend.discover()
    await node.request_maintenance()
    await node.look(lambda found: found != before)
    node.gate.ask(0.01)
    assert await node.look(lambda found: found == before) == before
