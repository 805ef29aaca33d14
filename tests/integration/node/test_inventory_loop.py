"""What the hardware says is published, on a hint, when health changes become due, and also when the backend is down."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import anyio
import anyio.lowlevel
import pytest
from msgspec.structs import replace

from pydra.agent.inventory_loop import DevicesStale, InventoryLoop
from pydra.backends.supervisor import BackendSupervisor
from pydra.devices import Device, Health, HealthStatus, Inventory, Taint, TaintEffect
from pydra.errors import BackendUnavailable
from pydra.inventory.build_pool import Published
from pydra.inventory.health_debounce import HealthPolicy
from pydra.inventory.numa_nodes_and_overhead import Additions

POLICY = HealthPolicy(
    effect=TaintEffect.NO_SCHEDULE,
    unhealthy_after=0.0,
    healthy_after=30.0,
    stale_effect=TaintEffect.NO_SCHEDULE,
    stale_after=60.0,
)
SICK = Health(status=HealthStatus.UNHEALTHY, message="too hot")


class Hardware:
    """A backend whose devices, and moods, the test decides."""

    def __init__(self, *devices: Device) -> None:
        self.devices = devices
        self.down = False
        self.looks = 0
        self.changed = anyio.Event()

    async def discover(self) -> Inventory:
        self.looks += 1
        await anyio.lowlevel.checkpoint()
        if self.down:
            raise BackendUnavailable("sim", "is restarted in 1 s")
        return Inventory(devices=self.devices)

    async def wait_changed(self) -> None:
        await self.changed.wait()
        self.changed = anyio.Event()


class Notes:
    """What was published, and a way to wait for it."""

    def __init__(self) -> None:
        self.found: list[Published] = []
        self.events: list[DevicesStale] = []
        self._arrived = anyio.Event()

    def publish(self, published: Published) -> None:
        self.found.append(published)
        self._arrived.set()
        self._arrived = anyio.Event()

    async def wait_count(self, count: int) -> Published:
        with anyio.fail_after(30):
            while len(self.found) < count:
                await self._arrived.wait()
        return self.found[-1]


@asynccontextmanager
async def looking(
    hardware: Hardware, policy: HealthPolicy, quarantined: dict[str, str]
) -> AsyncIterator[tuple[Notes, InventoryLoop]]:
    notes = Notes()
    runner = InventoryLoop(
        cast("BackendSupervisor", hardware),
        driver="d.example.com",
        pool="node-1",
        policy=policy,
        additions=Additions(),
        rescan_period=60,
        read_held=anyio.lowlevel.checkpoint,
        quarantined=lambda: quarantined,
        publish=notes.publish,
        report=notes.events.append,
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(runner.run)
        yield notes, runner
        tasks.cancel_scope.cancel()


async def test_devices_are_published_at_the_start_and_again_on_a_hint() -> None:
    hardware = Hardware(Device(name="a"))
    async with looking(hardware, POLICY, {}) as (notes, _):
        assert [device.name for device in (await notes.wait_count(1)).pool.devices] == ["a"]
        hardware.devices = (Device(name="a"), Device(name="b"))
        hardware.changed.set()
        assert [device.name for device in (await notes.wait_count(2)).pool.devices] == ["a", "b"]


async def test_a_look_that_finds_nothing_new_publishes_the_very_same_again() -> None:
    hardware = Hardware(Device(name="a"))
    async with looking(hardware, POLICY, {}) as (notes, runner):
        first = await notes.wait_count(1)
        hardware.devices = (Device(name="a"),)
        runner.wake()
        assert await notes.wait_count(2) is first


async def test_nothing_is_published_before_the_hardware_has_answered_once() -> None:
    hardware = Hardware(Device(name="a"))
    hardware.down = True
    async with looking(hardware, POLICY, {}) as (notes, runner):
        with anyio.fail_after(30):
            while hardware.looks < 1:
                await anyio.lowlevel.checkpoint()
        assert notes.found == []
        hardware.down = False
        runner.wake()
        await notes.wait_count(1)


async def test_while_the_backend_is_down_its_devices_stay_and_their_health_is_unknown() -> None:
    hardware = Hardware(Device(name="a"))
    async with looking(hardware, POLICY, {}) as (notes, runner):
        await notes.wait_count(1)
        hardware.down = True
        runner.wake()
        published = await notes.wait_count(2)
        assert [device.name for device in published.pool.devices] == ["a"]
        assert [health.status for health in published.health] == [HealthStatus.UNKNOWN]
        assert published.pool.devices[0].taints == ()


async def test_devices_that_could_not_be_discovered_for_too_long_are_stale_until_they_can() -> None:
    hardware = Hardware(Device(name="a"))
    async with looking(hardware, replace(POLICY, stale_after=0), {}) as (notes, runner):
        await notes.wait_count(1)
        hardware.down = True
        runner.wake()
        assert [str(taint.key) for taint in (await notes.wait_count(2)).pool.devices[0].taints] == [
            "d.example.com/stale"
        ]
        runner.wake()
        await notes.wait_count(3)
        hardware.down = False
        runner.wake()
        assert (await notes.wait_count(4)).pool.devices[0].taints == ()
    stale, current = notes.events
    follows = "; those published before are tainted d.example.com/stale:NoSchedule: backend sim: is restarted in 1 s"
    assert stale.why == f"devices cannot be discovered{follows}"
    assert current.why == ""


async def test_devices_of_an_earlier_run_are_removed_when_they_cannot_be_discovered_for_too_long() -> None:
    hardware = Hardware(Device(name="a"))
    hardware.down = True
    async with looking(hardware, replace(POLICY, stale_after=0), {}) as (notes, _):
        removing = await notes.wait_count(1)
    assert removing.pool.devices == ()
    assert not removing.known
    (stale,) = notes.events
    assert "those that an earlier run published are removed" in stale.why


async def test_a_sick_device_is_called_so_when_its_time_is_over_without_another_hint() -> None:
    hardware = Hardware(Device(name="a"))
    async with looking(hardware, replace(POLICY, unhealthy_after=0.05), {}) as (notes, runner):
        await notes.wait_count(1)
        hardware.devices = (Device(name="a", health=SICK),)
        runner.wake()
        with anyio.fail_after(30):
            while notes.found[-1].pool.devices[0].taints == ():
                await notes.wait_count(len(notes.found) + 1)
        assert notes.found[-1].health[0].message == "too hot"


async def test_a_quarantined_device_is_tainted_at_the_next_look() -> None:
    quarantined: dict[str, str] = {}
    async with looking(Hardware(Device(name="a")), POLICY, quarantined) as (notes, runner):
        assert (await notes.wait_count(1)).pool.devices[0].taints == ()
        quarantined["a"] = "CrashesBackend"
        runner.wake()
        (taint,) = (await notes.wait_count(2)).pool.devices[0].taints
        assert taint.key == "d.example.com/quarantined"


async def test_the_log_says_once_which_devices_became_unhealthy_and_recovered(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="pydra.agent.inventory_loop")
    well = tuple(Device(name=name) for name in ("a", "b", "c", "d", "e"))
    sick = tuple(Device(name=one.name, health=SICK) for one in well[1:])
    hardware = Hardware(*well)
    async with looking(hardware, replace(POLICY, healthy_after=0), {}) as (notes, runner):
        await notes.wait_count(1)
        for count, devices in enumerate([(well[0], *sick), (well[0], *sick), well], start=2):
            hardware.devices = devices
            runner.wake()
            await notes.wait_count(count)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "unhealthy: b, c, d and 1 more: too hot"),
        ("INFO", "no longer unhealthy: b, c, d and 1 more"),
    ]


async def test_the_log_says_once_what_is_left_out_and_why(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="pydra.agent.inventory_loop")
    crowded = Device(name="b", taints=tuple(Taint(key=f"example.com/{number}") for number in range(16)))
    hardware = Hardware(Device(name="GPU_0"), replace(crowded, health=SICK))
    async with looking(hardware, POLICY, {}) as (notes, runner):
        for count in (1, 2):
            published = await notes.wait_count(count)
            runner.wake()
        hardware.devices = (Device(name="a"),)
        await notes.wait_count(3)
    [dropped], [problem] = published.dropped, published.problems
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [one for one in said if not one.startswith("unhealthy")] == [dropped, problem]


async def test_devices_are_not_called_well_because_the_backend_is_down(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="pydra.agent.inventory_loop")
    hardware = Hardware(Device(name="a", health=SICK))
    async with looking(hardware, POLICY, {}) as (notes, runner):
        await notes.wait_count(1)
        for count, down in enumerate([True, False], start=2):
            hardware.down = down
            runner.wake()
            await notes.wait_count(count)
    assert [record.getMessage() for record in caplog.records if "healthy" in record.getMessage()] == [
        "unhealthy: a: too hot"
    ]
