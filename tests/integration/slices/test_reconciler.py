"""What the reconciler writes to an API server, and what it leaves alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from pydra.devices import Capacity, CounterConsumption, CounterSet, Device, Taint
from pydra.kube.api_resources import NODES, RESOURCE_SLICES
from pydra.slices.reconciler import PoolPublished, SliceReconciler, SliceWritten
from pydra.slices.server_limitations import FieldsDropped
from pydra.slices.write_schedule import BATCH_SECONDS, Backoff
from tests.integration.api_handle import ApiHandle
from tests.integration.recorder import Recorder
from tests.integration.slices.publishing import JsonObject, Publishing, gpus, publishing


async def test_a_pool_is_published_and_belongs_to_its_node(api_server: ApiHandle) -> None:
    async with publishing(api_server) as it:
        published = await it.publish(
            Device(name="gpu-0", attributes={"model": "x"}, capacity={"memory": Capacity("80Gi")})
        )
        assert published.slices == 1
        assert it.writes() == ["create"]
        [body] = await it.slices()
        node = await it.client.get(NODES, it.scratch.node)
        assert body["metadata"]["name"].startswith(f"00000-{it.scratch.driver}"[:58])
        assert body["metadata"]["ownerReferences"] == [
            {
                "apiVersion": "v1",
                "kind": "Node",
                "name": it.scratch.node,
                "uid": node["metadata"]["uid"],
                "controller": True,
            }
        ]
        assert body["spec"] == {
            "driver": it.scratch.driver,
            "nodeName": it.scratch.node,
            "pool": {"name": it.scratch.node, "generation": 1, "resourceSliceCount": 1},
            "devices": [
                {"name": "gpu-0", "attributes": {"model": {"string": "x"}}, "capacity": {"memory": {"value": "80Gi"}}}
            ],
        }
        assert it.reconciler.is_published


OLD = Taint(key="example.com/old", time_added="2026-01-01T01:00:00.9+01:00")


@pytest.mark.parametrize(
    "device",
    [
        Device(
            name="gpu-0", capacity={"memory": Capacity("1024Mi"), "share": Capacity("1000m"), "one": Capacity("1e0")}
        ),
        pytest.param(
            Device(name="gpu-0", taints=(Taint(key="example.com/sick"), OLD)),
            marks=pytest.mark.gates("DRADeviceTaints"),
        ),
    ],
    ids=["quantities", "taints"],
)
async def test_nothing_is_written_at_rest(device: Device, api_server: ApiHandle) -> None:
    async with publishing(api_server) as it:
        await it.publish(device)
        await it.at_rest()
        it.reconciler.publish(it.pool(device))
        await it.at_rest()
        assert it.writes() == ["create"]
        assert not it.events.of(FieldsDropped), "what the server fills in and rewrites is the same"


async def test_an_agent_that_starts_again_finds_its_slices_and_writes_nothing(api_server: ApiHandle) -> None:
    async with publishing(api_server) as it:
        await it.publish(*gpus(3))
        before = await it.slices()
        events = Recorder()
        second = SliceReconciler(
            it.client, it.reflector, driver=it.scratch.driver, node=it.scratch.node, started=200.0, report=events
        )
        second.publish(it.pool(*gpus(3)))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(second.run)
            await events.next(PoolPublished)
            tasks.cancel_scope.cancel()
        assert not events.of(SliceWritten)
        assert await it.slices() == before


async def test_slices_of_a_former_agent_stay_until_something_is_published(api_server: ApiHandle) -> None:
    async with publishing(api_server) as it:
        await it.publish(*gpus(1))
        silent = Recorder()
        other = SliceReconciler(
            it.client, it.reflector, driver=it.scratch.driver, node=it.scratch.node, started=200.0, report=silent
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(other.run)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        assert not silent.events
        assert len(await it.slices()) == 1


async def test_a_changed_device_is_one_update(api_server: ApiHandle) -> None:
    async with publishing(api_server) as it:
        await it.publish(*gpus(200))
        published = await it.publish(*gpus(199), Device(name="new"))
        assert it.writes() == ["update"]
        assert published.slices == 2
        assert [body["spec"]["pool"]["generation"] for body in await it.slices()] == [1, 1]


async def test_a_growing_pool_is_a_new_generation_everywhere(api_server: ApiHandle) -> None:
    async with publishing(api_server) as it:
        await it.publish(*gpus(128))
        await it.publish(*gpus(300))
        assert it.writes() == ["update", "create", "create"]
        pools = [(body["spec"]["pool"]["generation"], len(body["spec"]["devices"])) for body in await it.slices()]
        assert pools == [(2, 128), (2, 128), (2, 44)]


async def test_slices_are_made_again_though_the_watch_has_not_shown_yet_that_they_were_deleted(
    api_server: ApiHandle,
) -> None:
    async with publishing(api_server) as it:
        await it.publish(*gpus(200))
        it.watching.cancel()
        for _ in range(2):  # the second time it has not shown the creation, either
            await it.publish(*gpus(1))
            await it.publish(*gpus(200))
        assert len(await it.slices()) == 2


async def test_an_empty_pool_leaves_one_slice(api_server: ApiHandle) -> None:
    async with publishing(api_server) as it:
        await it.publish(*gpus(200))
        assert (await it.publish()).slices == 1
        assert len(await it.slices()) == 1


async def test_a_wipe_is_mended_in_one_round(api_server: ApiHandle) -> None:
    async with publishing(api_server, batch_delay=BATCH_SECONDS) as it:
        await it.publish(*gpus(300))
        await it.at_rest()
        it.events.clear()
        await it.wipe()
        await it.events.next(PoolPublished, deadline=20.0)
        assert it.writes() == ["create", "create", "create"]
        assert [len(body["spec"]["devices"]) for body in await it.slices()] == [128, 128, 44]
        assert {body["spec"]["pool"]["resourceSliceCount"] for body in await it.slices()} == {3}


async def test_a_deleted_slice_comes_back(api_server: ApiHandle) -> None:
    async with publishing(api_server) as it:
        await it.publish(*gpus(1))
        await it.at_rest()
        it.events.clear()
        [body] = await it.slices()
        await it.client.delete(RESOURCE_SLICES, body["metadata"]["name"])
        await it.mended(deadline=20.0)
        [again] = await it.slices()
        assert again["spec"] == body["spec"]
        assert again["metadata"]["uid"] != body["metadata"]["uid"]


async def test_an_edit_by_hand_is_undone_but_others_labels_stay(api_server: ApiHandle) -> None:
    async with publishing(api_server) as it:
        await it.publish(*gpus(2))
        it.events.clear()
        [body] = await it.slices()
        edit = {"metadata": {"labels": {"mine": "too"}}, "spec": {"devices": [{"name": "forged"}]}}
        await it.client.patch(RESOURCE_SLICES, body["metadata"]["name"], edit)
        await it.events.next(PoolPublished, deadline=20.0)
        assert it.writes() == ["update"]
        [again] = await it.slices()
        assert again["spec"]["devices"] == [{"name": "gpu-0"}, {"name": "gpu-1"}]
        assert again["metadata"]["labels"] == {"mine": "too"}


async def test_a_label_set_by_others_is_no_reason_to_write(api_server: ApiHandle) -> None:
    async with publishing(api_server) as it:
        await it.publish(*gpus(1))
        [body] = await it.slices()
        await it.client.patch(RESOURCE_SLICES, body["metadata"]["name"], {"metadata": {"labels": {"mine": "too"}}})
        await it.at_rest()
        assert it.writes() == ["create"]


async def test_a_node_that_was_registered_again_owns_the_slices_again(api_server: ApiHandle) -> None:
    async with publishing(api_server) as it:
        await it.publish(*gpus(1))
        await it.at_rest()
        it.events.clear()
        await it.client.delete(NODES, it.scratch.node)
        node = await it.client.create(NODES, {"metadata": {"name": it.scratch.node}})
        await it.wipe()  # as garbage collection does; nobody else does it on the embedded server
        await it.mended()
        with anyio.fail_after(20):  # a real collector may come between
            while [_owner(body) for body in await it.slices()] != [node["metadata"]["uid"]]:
                await it.events.next(PoolPublished, deadline=20)
                it.events.clear()


def _owner(body: JsonObject) -> Any:
    return body["metadata"]["ownerReferences"][0]["uid"]


@pytest.mark.gates("DRADeviceTaints")
async def test_a_taint_keeps_its_time_when_its_device_changes(api_server: ApiHandle) -> None:
    async with publishing(api_server) as it:
        sick = Device(name="gpu-0", taints=(Taint(key="example.com/sick"),))
        await it.publish(sick)
        [before] = await it.slices()
        await it.publish(sick, Device(name="gpu-1"))
        [after] = await it.slices()
        [taint] = after["spec"]["devices"][0]["taints"]
        assert taint["timeAdded"] == before["spec"]["devices"][0]["taints"][0]["timeAdded"]


@pytest.mark.gates("DRAPartitionableDevices")
async def test_partitions_and_their_counters_come_in_slices_of_their_own(api_server: ApiHandle) -> None:
    counters = tuple(CounterSet(name=f"gpu-{n}", counters={"memory": "80Gi"}) for n in range(9))
    parts = tuple(
        Device(
            name=f"part-{n}", consumes_counters=(CounterConsumption(counter_set=f"gpu-{n}", counters={"memory": 1}),)
        )
        for n in range(9)
    )
    async with publishing(api_server) as it:
        assert (await it.publish(*parts, counter_sets=counters)).slices == 3
        sizes = [
            (len(b["spec"].get("sharedCounters", ())), len(b["spec"].get("devices", ()))) for b in await it.slices()
        ]
        assert sizes == [(8, 0), (1, 0), (0, 9)]


@asynccontextmanager
async def another_instance(it: Publishing, *, started: float, **options: Any) -> AsyncIterator[Publishing]:
    """A second instance of the agent for the same driver and node, with a cache and a reconciler of its own."""
    async with anyio.create_task_group() as tasks:
        other = Publishing(it.api, it.client, it.scratch, started=started, **options)
        tasks.start_soon(other.reflector.run)
        tasks.start_soon(other.reconciler.run)
        yield other
        tasks.cancel_scope.cancel()


async def test_of_two_instances_that_disagree_the_one_that_started_later_wins(api_server: ApiHandle) -> None:
    async with publishing(api_server, started=100.0) as old:
        await old.publish(*gpus(2))
        async with another_instance(old, started=200.0) as new:
            old.events.clear()
            await new.publish(*gpus(3))
            [body] = await new.slices()
            await old.caught_up(body)
            old.reconciler.publish(old.pool(*gpus(1)))
            await anyio.wait_all_tasks_blocked()
            assert old.writes() == []
            assert new.writes() == ["update"]
            assert len((await new.slices())[0]["spec"]["devices"]) == 3


async def test_an_instance_whose_slices_an_older_one_replaced_publishes_them_again(api_server: ApiHandle) -> None:
    async with publishing(api_server, started=200.0) as new:
        await new.publish(*gpus(3))
        async with another_instance(new, started=100.0) as old:
            new.events.clear()
            await old.publish(*gpus(2))
            await new.events.next(PoolPublished)
            [body] = await new.slices()
            assert len(body["spec"]["devices"]) == 3
            old.events.clear()
            await old.caught_up(body)
            assert old.writes() == []


async def test_an_instance_publishes_again_when_the_one_that_started_later_has_ended(api_server: ApiHandle) -> None:
    deferrals = Backoff(free=1, pause=0.1, limit=0.2, quiet=60.0)
    async with publishing(api_server, started=100.0, deferrals=deferrals) as old:
        await old.publish(*gpus(2))
        async with another_instance(old, started=200.0) as new:
            await new.publish(*gpus(3))
            old.events.clear()
        await old.mended()
        assert len((await old.slices())[0]["spec"]["devices"]) == 2


async def test_a_start_after_which_nothing_changed_leaves_the_slices_of_the_instance_before(
    api_server: ApiHandle,
) -> None:
    async with publishing(api_server, started=100.0) as old:
        await old.publish(*gpus(2))
        before = await old.slices()
        async with another_instance(old, started=200.0) as new:
            await new.publish(*gpus(2))
            assert new.writes() == []
            assert await new.slices() == before
