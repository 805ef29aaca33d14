"""Health: from a plugin's stream to the pod's status."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from grpclib import GRPCError, Status

from kubelet_world import World, open_world, running_plugin
from pydra_dev.kubelet.observations import HealthChanged

UNKNOWN, HEALTHY, UNHEALTHY = 0, 1, 2


async def shown_health(world: World, pod: str = "p") -> list[dict[str, Any]]:
    statuses = (await world.pod(pod)).get("status", {}).get("containerStatuses") or [{}]
    entries = statuses[0].get("allocatedResourcesStatus") or []
    return [resource for entry in entries for resource in entry["resources"]]


async def wait_health(world: World, health: str, pod: str = "p") -> None:
    async def shown() -> bool:
        return [one["health"] for one in await shown_health(world, pod)] == [health]

    await world.wait_until(shown)


async def start_pod(world: World, name: str = "p") -> str:
    uid = await world.make_claim(f"{name}-claim")
    await world.make_pod(name, f"{name}-claim")
    await world.wait_phase(name, "Running")
    return uid


def change(plugin: Any, health: int) -> None:
    plugin.health = {"d0": health}
    plugin.health_changed.set()
    plugin.health_changed = anyio.Event()


@pytest.mark.parametrize(("minor", "version"), [(36, "v1alpha1"), (37, "v1")])
async def test_health_goes_into_the_pods_status_and_follows_the_device(minor: int, version: str) -> None:
    versions = ["v1.DRAPlugin", "v1alpha1.DRAResourceHealth", "v1.DRAResourceHealth"]
    async with (
        open_world(minor=minor) as world,
        running_plugin(world, versions=versions, health_versions=("v1", "v1alpha1"), health={"d0": HEALTHY}) as plugin,
        world.kubelet(),
    ):
        uid = await start_pod(world)
        await wait_health(world, "Healthy")
        assert plugin.streams == [version]
        (shown,) = await shown_health(world)
        assert shown == {
            "resourceID": f"gpu.example.com/claim={uid}",
            "health": "Healthy",
            "message": "d0 told so",
        }
        for health, word in ((UNHEALTHY, "Unhealthy"), (HEALTHY, "Healthy")):
            change(plugin, health)
            await wait_health(world, word)


async def test_a_device_without_cdi_is_named_by_driver_pool_and_device() -> None:
    async with (
        open_world() as world,
        running_plugin(world, cdi=False, health_versions=("v1alpha1",), health={"d0": HEALTHY}),
        world.kubelet(),
    ):
        await start_pod(world)
        await wait_health(world, "Healthy")
        assert (await shown_health(world))[0]["resourceID"] == "gpu.example.com/node-1/d0"


async def test_health_is_unknown_when_the_plugin_goes_and_known_when_it_comes_back() -> None:
    async with (
        open_world() as world,
        running_plugin(world, health_versions=("v1alpha1",), health={"d0": HEALTHY}) as plugin,
        world.kubelet(),
    ):
        await start_pod(world)
        await wait_health(world, "Healthy")
        await plugin.stop()
        await wait_health(world, "Unknown")
        await plugin.start()
        await wait_health(world, "Healthy")


async def test_health_that_is_not_repeated_within_its_lease_is_unknown() -> None:
    async with (
        open_world(health_lease=0.3) as world,
        running_plugin(world, health_versions=("v1alpha1",), health={"d0": HEALTHY}) as plugin,
        world.kubelet(),
    ):
        await start_pod(world)
        change(plugin, HEALTHY)
        await wait_health(world, "Healthy")
        await wait_health(world, "Unknown")
        change(plugin, HEALTHY)
        await wait_health(world, "Healthy")


async def test_three_pods_follow_the_health_of_one_device() -> None:
    async with (
        open_world() as world,
        running_plugin(world, health_versions=("v1alpha1",), health={"d0": HEALTHY}) as plugin,
        world.kubelet(),
    ):
        async with anyio.create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(start_pod, world, f"p{number}")
            change(plugin, UNHEALTHY)
        for number in range(3):
            await wait_health(world, "Unhealthy", f"p{number}")


async def test_a_kubelet_without_the_gate_shows_no_health() -> None:
    async with (
        open_world(minor=35) as world,
        running_plugin(world, health_versions=("v1alpha1",), health={"d0": HEALTHY}),
        world.kubelet(),
    ):
        await start_pod(world)
        await world.wait_step(HealthChanged)
        assert await shown_health(world) == []


async def test_a_plugin_without_health_is_asked_again_up_to_1_36() -> None:
    failures = [GRPCError(Status.UNIMPLEMENTED, "none") for _ in range(2)]
    async with (
        open_world() as world,
        running_plugin(world, health_versions=("v1alpha1",), health_failures=failures) as plugin,
        world.kubelet(),
    ):
        await world.wait_until(lambda: len(plugin.streams) == 3)


async def test_from_1_37_on_a_plugin_without_health_is_asked_once() -> None:
    failures: list[Exception] = [GRPCError(Status.UNIMPLEMENTED, "none")]
    async with (
        open_world(minor=37) as world,
        running_plugin(
            world,
            versions=["v1.DRAPlugin", "v1.DRAResourceHealth"],
            health_versions=("v1",),
            health_failures=failures,
        ) as plugin,
        world.kubelet(),
    ):
        await world.wait_until(lambda: len(plugin.streams) == 1)
        for number in range(3):  # many times as long as the pause before another attempt would be
            await start_pod(world, f"p{number}")
        assert plugin.streams == ["v1"]


async def test_from_1_37_on_the_newest_instance_alone_is_watched_and_handed_over_without_a_gap() -> None:
    versions = ["v1.DRAPlugin", "v1.DRAResourceHealth"]
    attributes: dict[str, Any] = {"versions": versions, "health_versions": ("v1",), "health": {"d0": HEALTHY}}
    async with open_world(minor=37) as world, running_plugin(world, **attributes) as old, world.kubelet():
        await start_pod(world)
        await wait_health(world, "Healthy")
        async with running_plugin(world, instance="-2", **{**attributes, "health": {"d0": UNHEALTHY}}) as new:
            await wait_health(world, "Unhealthy")
            assert (old.streams, new.streams) == (["v1"], ["v1"])
            change(old, HEALTHY)
        told = [device[2] for step in world.steps if isinstance(step, HealthChanged) for device in step.devices]
        assert "Unknown" not in told


async def test_from_1_37_on_there_is_no_way_back_to_an_older_instance() -> None:
    versions = ["v1.DRAPlugin", "v1.DRAResourceHealth"]
    async with (
        open_world(minor=37) as world,
        running_plugin(world, versions=versions, health_versions=("v1",), health={"d0": HEALTHY}) as old,
        world.kubelet(),
    ):
        await start_pod(world)
        await wait_health(world, "Healthy")
        async with running_plugin(world, instance="-2", versions=["v1.DRAPlugin"]) as new:
            await world.wait_until(lambda: new.statuses == [(True, "")])
            change(old, UNHEALTHY)
            await start_pod(world, "p2")
            assert [one["health"] for one in await shown_health(world)] == ["Healthy"]
