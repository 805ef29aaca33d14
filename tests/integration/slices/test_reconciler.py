"""The reconciler against an API server: what it writes, what it leaves alone, and how it takes trouble.

The number of writes is asserted wherever the embedded server can be asked for it.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from pydra.devices import (
    Capacity,
    CounterConsumption,
    CounterSet,
    Device,
    Pool,
    Taint,
)
from pydra.embedded.faults import Fault
from pydra.embedded.kinds import KINDS
from pydra.errors import Invalid, NotFound, Unavailable
from pydra.kube.client import KubeClient
from pydra.kube.resources import NODES, RESOURCE_SLICES
from pydra.kube.watch import Reflector
from pydra.slices.events import FieldsDropped, PoolInvalid, PoolPublished, PublishFailed, SliceWritten
from pydra.slices.pace import Pace
from pydra.slices.reconciler import SETTLE_SECONDS, SliceReconciler, slice_selector
from tests.integration.api_handle import ApiHandle, Scratch, open_api
from tests.integration.kube.opened import open_client
from tests.integration.recorder import Recorder

JsonObject = dict[str, Any]
SLICES = next(kind for kind in KINDS if kind.plural == "resourceslices")


class Publishing:
    """A reconciler that runs for a node and driver of this test alone, and the API beside it."""

    def __init__(self, api: ApiHandle, client: KubeClient, scratch: Scratch, **options: Any) -> None:
        self.api = api
        self.client = client
        self.scratch = scratch
        self.events = Recorder()
        selector = slice_selector(scratch.driver, scratch.node)
        self.reflector = Reflector(client, RESOURCE_SLICES, field_selector=selector)
        self.reconciler = SliceReconciler(
            client,
            self.reflector,
            driver=scratch.driver,
            node=scratch.node,
            report=self.events,
            **{"settle": 0.0, **options},
        )

    def pool(self, *devices: Device, **fields: Any) -> Pool:
        return Pool(name=self.scratch.node, devices=devices, **fields)

    async def publish(self, *devices: Device, **fields: Any) -> PoolPublished:
        self.events.clear()
        self.reconciler.publish(self.pool(*devices, **fields))
        return await self.events.next(PoolPublished)

    async def mended(self, deadline: float = 5.0) -> PoolPublished:
        published = await self.events.next(PoolPublished, deadline)
        self.events.clear()
        return published

    async def slices(self) -> list[JsonObject]:
        listed = await self.client.list(
            RESOURCE_SLICES, field_selector=slice_selector(self.scratch.driver, self.scratch.node)
        )
        return sorted(listed.items, key=lambda item: str(item["metadata"]["name"]))

    async def wipe(self) -> None:
        """As the kubelet does when it starts."""
        async with self.api.connect() as raw:
            selector = f"spec.nodeName={self.scratch.node}"
            await raw.request("DELETE", "/apis/resource.k8s.io/v1/resourceslices", params={"fieldSelector": selector})

    def writes(self) -> list[str]:
        """What was written since the last `clear`, by the events of the reconciler."""
        return [event.kind.value for event in self.events.of(SliceWritten)]

    async def at_rest(self) -> None:
        """A further look, which somebody's label makes it take, finds nothing to write."""
        before = len(self.events.of(SliceWritten))
        [first, *_] = await self.slices()
        label = {"metadata": {"labels": {"touched": secrets.token_hex(4)}}}
        touched = await self.client.patch(RESOURCE_SLICES, first["metadata"]["name"], label)
        with anyio.fail_after(5):
            while self.reflector.resource_version < int(touched["metadata"]["resourceVersion"]):
                await anyio.lowlevel.checkpoint()
        await anyio.wait_all_tasks_blocked()  # it looks as soon as an event comes, and is unsettled if it finds work
        assert self.reconciler.settled
        assert len(self.events.of(SliceWritten)) == before


@asynccontextmanager
async def publishing(api: ApiHandle, **options: Any) -> AsyncIterator[Publishing]:
    async with (
        api.connect() as raw,
        api.scratch(raw) as scratch,
        open_client(api) as client,
        anyio.create_task_group() as tasks,
    ):
        await client.create(NODES, {"metadata": {"name": scratch.node}})
        try:
            publishing = Publishing(api, client, scratch, **options)
            tasks.start_soon(publishing.reflector.run)
            tasks.start_soon(publishing.reconciler.run)
            yield publishing
            tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await client.delete(NODES, scratch.node)


def gpus(count: int, **fields: Any) -> tuple[Device, ...]:
    return tuple(Device(name=f"gpu-{number}", **fields) for number in range(count))


async def test_a_pool_is_published_and_belongs_to_its_node(api_server: ApiHandle) -> None:
    async with publishing(api_server) as it:
        published = await it.publish(
            Device(name="gpu-0", attributes={"model": "x"}, capacity={"memory": Capacity("80Gi")})
        )
        assert (published.slices, published.devices, published.generation) == (1, 1, 1)
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
        assert it.reconciler.settled


async def test_nothing_is_written_at_rest(api_server: ApiHandle) -> None:
    async with publishing(api_server) as it:
        device = Device(
            name="gpu-0",
            capacity={"memory": Capacity("1024Mi"), "share": Capacity("1000m")},
            taints=(Taint(key="example.com/sick"),),
        )
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
        second = SliceReconciler(it.client, it.reflector, driver=it.scratch.driver, node=it.scratch.node, report=events)
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
        other = SliceReconciler(it.client, it.reflector, driver=it.scratch.driver, node=it.scratch.node, report=silent)
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
        assert (published.slices, published.generation) == (2, 1)


async def test_a_growing_pool_is_a_new_generation_everywhere(api_server: ApiHandle) -> None:
    async with publishing(api_server) as it:
        await it.publish(*gpus(128))
        published = await it.publish(*gpus(300))
        assert it.writes() == ["update", "create", "create"]
        pools = [(body["spec"]["pool"]["generation"], len(body["spec"]["devices"])) for body in await it.slices()]
        assert pools == [(2, 128), (2, 128), (2, 44)]
        assert published.generation == 2


async def test_a_withdrawn_pool_leaves_no_slice_and_an_empty_one_leaves_one(api_server: ApiHandle) -> None:
    async with publishing(api_server) as it:
        await it.publish(*gpus(200))
        assert (await it.publish()).slices == 1
        it.events.clear()
        it.reconciler.publish(None)
        assert (await it.mended()).slices == 0
        assert await it.slices() == []


async def test_a_wipe_is_mended_in_one_round(api_server: ApiHandle) -> None:
    async with publishing(api_server, settle=SETTLE_SECONDS) as it:
        await it.publish(*gpus(300))
        await it.at_rest()
        it.events.clear()
        await it.wipe()
        await it.events.next(PoolPublished, deadline=2.0)
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
        await it.mended(deadline=2.0)
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
        await it.events.next(PoolPublished, deadline=2.0)
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


async def test_a_node_that_was_registered_anew_owns_the_slices_again(api_server: ApiHandle) -> None:
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


async def test_a_taint_keeps_its_time_when_its_device_changes(api_server: ApiHandle) -> None:
    async with publishing(api_server) as it:
        sick = Device(name="gpu-0", taints=(Taint(key="example.com/sick"),))
        await it.publish(sick)
        [before] = await it.slices()
        await it.publish(sick, Device(name="gpu-1"))
        [after] = await it.slices()
        [taint] = after["spec"]["devices"][0]["taints"]
        assert taint["timeAdded"] == before["spec"]["devices"][0]["taints"][0]["timeAdded"]


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


async def test_a_pool_that_contradicts_itself_is_reported_and_changes_nothing(api_server: ApiHandle) -> None:
    async with publishing(api_server) as it:
        await it.publish(*gpus(1))
        it.events.clear()
        it.reconciler.publish(it.pool(Device(name="twice"), Device(name="twice")))
        [invalid] = it.events.of(PoolInvalid)
        assert invalid.problems == ("device 'twice' is there twice",)
        await it.at_rest()
        assert it.writes() == []


GATES: dict[str, tuple[Device, tuple[CounterSet, ...]]] = {
    "DRADeviceTaints": (Device(name="gpu-0", taints=(Taint(key="example.com/sick"),)), ()),
    "DRAConsumableCapacity": (Device(name="gpu-0", allow_multiple_allocations=True), ()),
    "DRADeviceBindingConditions": (
        Device(name="gpu-0", binding_conditions=("example.com/a",), binding_failure_conditions=("example.com/b",)),
        (),
    ),
    "DRAPartitionableDevices": (
        Device(name="part-0", consumes_counters=(CounterConsumption(counter_set="gpu", counters={"memory": 1}),)),
        (CounterSet(name="gpu", counters={"memory": 8}),),
    ),
    "DRAListTypeAttributes": (Device(name="gpu-0", attributes={"one": 1, "peers": ("a", "b")}), ()),
}


@pytest.mark.parametrize("gate", GATES)
async def test_fields_of_a_gate_that_is_off_are_named_and_not_asked_for_again(gate: str) -> None:
    device, counters = GATES[gate]
    async with open_api(gates={gate: False}) as api, publishing(api) as it:
        await it.publish(device, counter_sets=counters)
        assert {event.gates for event in it.events.of(FieldsDropped)} == {(gate,)}
        await it.at_rest()
        written = len(it.writes())
        [last, *_] = reversed(await it.slices())
        await it.client.patch(RESOURCE_SLICES, last["metadata"]["name"], {"spec": {"devices": [{"name": "forged"}]}})
        it.events.clear()
        await it.events.next(PoolPublished)
        assert it.writes() == ["update"], "mended once, to what the server can keep"
        assert written == len(counters) + 1
        assert not it.events.of(FieldsDropped)


async def test_a_conflict_is_planned_anew(api_server: ApiHandle) -> None:
    async with publishing(api_server) as it:
        await it.publish(*gpus(1))
        api_server.embedded.faults.add(Fault(verb="update", status=409))
        await it.publish(*gpus(2))
        assert it.writes() == ["update"]
        assert len(it.events.of(PublishFailed)) == 1


async def test_a_refused_slice_is_reported_and_not_hammered(api_server: ApiHandle) -> None:
    server = api_server.embedded
    async with publishing(api_server) as it:
        await it.publish(*gpus(200))
        server.faults.add(Fault(verb="update", status=422, times=None))
        it.events.clear()
        it.reconciler.publish(it.pool(*gpus(3)))
        failed = await it.events.next(PublishFailed)
        assert isinstance(failed.error, Invalid)
        assert failed.pause >= 5
        assert it.writes() == ["delete"], "what is obsolete is gone by then"
        assert not it.reconciler.settled
        server.faults.clear()
        await it.publish(*gpus(4))
        assert [len(body["spec"]["devices"]) for body in await it.slices()] == [4]


async def test_a_node_that_is_not_there_yet_is_waited_for(api_server: ApiHandle) -> None:
    server = api_server.embedded
    server.faults.add(Fault(verb="get", resource="nodes", status=404, times=2))
    async with publishing(api_server) as it:
        await it.publish(*gpus(1))
        assert [type(event.error) for event in it.events.of(PublishFailed)] == [NotFound, NotFound]


async def test_after_an_outage_what_was_wanted_meanwhile_is_there_within_seconds(api_server: ApiHandle) -> None:
    server = api_server.embedded
    async with publishing(api_server) as it:
        await it.publish(*gpus(1))
        it.events.clear()
        async with server.down():
            it.reconciler.publish(it.pool(*gpus(2)))
            await it.events.until(lambda: len(it.events.of(PublishFailed)) >= 2)
            assert isinstance(it.events.of(PublishFailed)[0].error, Unavailable)
        await it.events.next(PoolPublished, deadline=3.0)
        assert it.writes() == ["update"]


async def test_slices_lost_during_an_outage_come_back(api_server: ApiHandle) -> None:
    server = api_server.embedded
    async with publishing(api_server) as it:
        await it.publish(*gpus(200))
        await it.at_rest()
        it.events.clear()
        names = [body["metadata"]["name"] for body in await it.slices()]
        async with server.down():
            for name in names:
                server.api.delete(SLICES, name)
            server.compact()
        await it.mended(deadline=4.0)
        assert len(await it.slices()) == 2


async def test_somebody_who_keeps_fighting_causes_no_storm(api_server: ApiHandle) -> None:
    pace = Pace(free=3, pause=0.2, limit=60.0, quiet=300.0)
    async with publishing(api_server, repair_pace=pace) as it:
        await it.publish(*gpus(1))
        fights = 0

        async def fight() -> None:
            nonlocal fights
            async for name in _writes(it):
                fights += 1
                await it.client.patch(RESOURCE_SLICES, name, {"spec": {"devices": [{"name": f"forged-{fights}"}]}})

        it.events.clear()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fight)
            [body] = await it.slices()
            await it.client.patch(RESOURCE_SLICES, body["metadata"]["name"], {"spec": {"devices": []}})
            await anyio.sleep(1.5)
            tasks.cancel_scope.cancel()
        assert 4 <= len(it.writes()) <= 7, "three at once, then after 0.2, 0.4, 0.8 seconds"


async def _writes(it: Publishing) -> AsyncIterator[str]:
    seen = 0
    while True:
        await it.events.until(lambda: len(it.events.of(SliceWritten)) > seen, deadline=60)  # noqa: B023
        seen += 1
        yield it.events.of(SliceWritten)[seen - 1].name
