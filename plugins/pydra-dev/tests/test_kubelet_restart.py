"""A kubelet that stops, at any moment, and starts again over the same directories."""

from __future__ import annotations

import anyio
import pytest

from kubelet_world import open_world, running_plugin
from pydra_dev.kubelet.kubelet import run_kubelet
from pydra_dev.kubelet.observations import PodEnded


async def test_a_pod_made_while_the_kubelet_was_down_runs_after_it_started() -> None:
    async with open_world() as world, running_plugin(world) as plugin:
        uid = await world.make_claim("c")
        await world.make_pod("p", "c")
        async with world.kubelet():
            await world.wait_phase("p", "Running")
        assert plugin.called("prepare") == [(uid,)]


async def test_running_pods_are_not_prepared_again_and_still_unprepared() -> None:
    async with open_world() as world, running_plugin(world) as plugin:
        uid = await world.make_claim("c")
        await world.make_pod("p", "c")
        async with world.kubelet():
            await world.wait_phase("p", "Running")
        async with world.kubelet():
            await world.delete_pod("p")
            await world.wait_gone("p")
        assert plugin.asked == [("prepare", (uid,)), ("unprepare", (uid,))]


async def test_a_pod_that_has_ended_is_not_started_again() -> None:
    async with open_world() as world, running_plugin(world) as plugin:
        await world.make_claim("c")
        container = {"name": "main", "image": "i", "command": ["sleep", "0"]}
        await world.make_pod("p", "c", containers=[container], restartPolicy="Never")
        async with world.kubelet():
            await world.wait_phase("p", "Succeeded")
        world.steps.clear()
        async with world.kubelet():
            await world.wait_step(PodEnded)
        assert [method for method, _ in plugin.asked] == ["prepare", "unprepare"]


@pytest.mark.parametrize("method", ["prepare", "unprepare"])
async def test_a_call_that_the_restart_cut_off_is_made_again(method: str) -> None:
    async with open_world() as world, running_plugin(world) as plugin:
        uid = await world.make_claim("c")
        await world.make_pod("p", "c")
        async with world.kubelet():
            if method == "unprepare":
                await world.wait_phase("p", "Running")
                await world.delete_pod("p")
            plugin.gate = anyio.Event()
            await world.wait_until(lambda: plugin.called(method) == [(uid,)])
        plugin.gate = None
        async with world.kubelet():
            if method == "prepare":
                await world.wait_phase("p", "Running")
            else:
                await world.wait_gone("p")
        assert plugin.called(method) == [(uid,), (uid,)]


@pytest.mark.parametrize("force", [True, False], ids=["force", "grace"])
async def test_a_pod_deleted_while_the_kubelet_was_down_is_unprepared(force: bool) -> None:
    async with open_world() as world, running_plugin(world) as plugin:
        uid = await world.make_claim("c")
        await world.make_pod("p", "c")
        async with world.kubelet():
            await world.wait_phase("p", "Running")
        await world.delete_pod("p", force=force)
        async with world.kubelet():
            await world.wait_gone("p")
            await world.wait_until(lambda: plugin.called("unprepare") == [(uid,)])


async def test_a_pod_that_came_and_went_while_the_kubelet_was_down_is_never_prepared() -> None:
    async with open_world() as world, running_plugin(world) as plugin:
        await world.make_claim("c")
        await world.make_pod("p", "c")
        await world.delete_pod("p")
        async with world.kubelet():
            await world.wait_gone("p")
        assert plugin.asked == []


async def test_unprepare_needs_neither_the_claim_nor_the_same_instance() -> None:
    async with open_world() as world:
        async with running_plugin(world), world.kubelet():
            uid = await world.make_claim("c")
            await world.make_pod("p", "c")
            await world.wait_phase("p", "Running")
        await world.delete_pod("p", force=True)
        async with running_plugin(world, instance="-2") as second, world.kubelet():
            await world.wait_until(lambda: second.asked == [("unprepare", (uid,))])


async def test_a_damaged_checkpoint_is_not_taken_for_an_empty_one() -> None:
    async with open_world() as world:
        async with running_plugin(world), world.kubelet():
            await world.make_claim("c")
            await world.make_pod("p", "c")
            await world.wait_phase("p", "Running")
        world.damage_checkpoint()
        with pytest.raises(ValueError, match="checksum does not match"):
            await run_kubelet(world.settings, world.client)
