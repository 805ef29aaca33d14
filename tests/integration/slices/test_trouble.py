"""How the reconciler takes trouble: gates that are off, conflicts, refusals, outages, somebody who fights."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from pydra.devices import Capacity, CounterConsumption, CounterSet, Device, NodeAllocatable, Taint, TaintEffect
from pydra.errors import Invalid, NotFound, Unavailable, Unreadable
from pydra.kube.api_resources import RESOURCE_SLICES, JsonObject, Resource
from pydra.kube.client import KubeClient
from pydra.slices.build import build_device
from pydra.slices.diff import same_content
from pydra.slices.foreign_slices import ForeignSlices, watch_pool
from pydra.slices.reconciler import FieldsKept, PoolPublished, PublishFailed
from pydra.slices.server_limitations import EFFECT_NONE, FieldsDropped
from pydra.slices.write_schedule import Backoff
from pydra_dev.api.feature_gates import ALLOCATABLE, GROUPS, PARTITION_TYPE, PARTITIONS, TAINTS, build_gates
from pydra_dev.api.kinds import KINDS
from pydra_dev.apiserver.faults import Fault
from pydra_dev.apiserver.verbs import Api
from tests.integration.api_handle import ApiHandle, open_api
from tests.integration.recorder import Recorder
from tests.integration.slices.publishing import gpus, publishing

SLICES = next(kind for kind in KINDS if kind.plural == "resourceslices")

GATES: dict[str, tuple[Device, tuple[CounterSet, ...]]] = {
    "DRADeviceTaints": (Device(name="gpu-0", taints=(Taint(key="example.com/sick"),)), ()),
    "DRAConsumableCapacity": (Device(name="gpu-0", allow_multiple_allocations=True), ()),
    "DRADeviceBindingConditions": (
        Device(name="gpu-0", binding_conditions=("example.com/a",), binding_failure_conditions=("example.com/b",)),
        (),
    ),
    "DRAPartitionableDevices": (
        Device(name="part-0", consumes_counters=(CounterConsumption(counter_set="gpu", counters={"memory": 9}),)),
        (CounterSet(name="gpu", counters={"memory": 8}),),
    ),
    "DRAListTypeAttributes": (Device(name="gpu-0", attributes={"one": 1, "peers": ("a", "b")}), ()),
}
HARMLESS = ("DRAConsumableCapacity", "DRAListTypeAttributes")
MEMORY = CounterSet(name="gpu", counters={"memory": 8})


def part(name: str, memory: int) -> Device:
    return Device(name=name, consumes_counters=(CounterConsumption(counter_set="gpu", counters={"memory": memory}),))


def names_in(body: JsonObject) -> list[str]:
    return [device["name"] for device in body["spec"].get("devices") or ()]


@pytest.mark.parametrize("gate", GATES)
async def test_fields_of_a_gate_that_is_off_are_named_and_not_asked_for_again(gate: str) -> None:
    device, counters = GATES[gate]
    async with open_api(gates={gate: False}) as api, publishing(api) as it:
        await it.publish(device, counter_sets=counters)
        dropped = await it.events.next(FieldsDropped)
        assert dropped.gates == (gate,)
        assert dropped.withheld == (() if gate in HARMLESS else (device.name,))
        await it.at_rest()
        assert it.writes() == ["create"]
        [last] = await it.slices()
        await it.client.patch(RESOURCE_SLICES, last["metadata"]["name"], {"spec": {"devices": [{"name": "forged"}]}})
        it.events.clear()
        await it.events.next(PoolPublished)
        assert it.writes() == ["update"], "mended once, to what the server can keep"
        assert not it.events.of(FieldsDropped)


async def test_a_partition_without_its_counters_is_never_there_to_be_given_out() -> None:
    whole, half = part("whole", 8), part("half", 4)
    async with open_api(gates={PARTITIONS: False}) as api, publishing(api) as it:
        seen: set[str] = set()
        it.reflector.subscribe(lambda event: seen.update(names_in(event.object)))
        await it.publish(whole, half, Device(name="plain"), counter_sets=(MEMORY,))
        await it.at_rest()
        assert seen == {"whole", "plain"}, "the whole board is left, which excludes nothing that is published"
        dropped = await it.events.next(FieldsDropped)
        assert dropped.withheld == ("half",)
        await it.publish(half, whole, Device(name="plain"), Device(name="more"), counter_sets=(MEMORY,))
        seen.clear()
        await it.at_rest()
        assert seen == {"half", "plain", "more"}
        asked = [call for call in it.api.embedded.requests.select(resource="resourceslices") if call.dry_run]
        assert len(asked) == 1, "a gate that is known to be off is not asked for at each change"


@pytest.mark.parametrize("gate", GATES)
async def test_a_gate_that_is_turned_on_is_noticed_and_all_is_published(gate: str) -> None:
    device, counters = GATES[gate]
    async with open_api(gates={gate: False}) as api, publishing(api, gate_period=0.05) as it:
        await it.publish(device, counter_sets=counters)
        api.embedded.api.gates = build_gates(36, {gate: True})
        await it.events.next(FieldsKept)
        devices = [one for body in await it.slices() for one in body["spec"].get("devices", ())]
        assert same_content({"devices": [build_device(device)]}, {"devices": devices})
        assert sum("sharedCounters" in body["spec"] for body in await it.slices()) == len(counters)


CPUS = Device(
    name="cpus",
    capacity={"cores": Capacity(8)},
    allow_multiple_allocations=True,
    node_allocatable={"cpu": NodeAllocatable(capacity="cores")},
)
IN_1_36 = {"nodeAllocatableResourceMappings": {"cpu": {"capacityKey": "cores", "allocationMultiplier": "1"}}}
IN_1_37 = {
    "nodeAllocatableResources": {"cpu": {"mapping": {"capacityKey": "cores", "capacityMultiplier": "1"}}},
}


def read_node_allocatable(device: JsonObject) -> JsonObject:
    return {field: value for field, value in device.items() if field.startswith("nodeAllocatable")}


@pytest.mark.parametrize(
    ("version", "gates", "stored"),
    [
        pytest.param("1.36.2", {ALLOCATABLE: True}, IN_1_36, id="1.36"),
        pytest.param("1.37.0", {ALLOCATABLE: True}, IN_1_37, id="1.37"),
        pytest.param("1.36.2", {}, {}, id="1.36 with the gate off"),
        pytest.param("1.37.0", {}, {}, id="1.37 with the gate off"),
    ],
)
async def test_what_devices_use_of_the_node_is_published_in_the_form_of_the_release(
    version: str, gates: dict[str, bool], stored: JsonObject
) -> None:
    async with open_api(version=version, gates=gates) as api, publishing(api) as it:
        await it.publish(CPUS)
        await it.at_rest()
        [body] = await it.slices()
        [device] = body["spec"]["devices"]
        assert read_node_allocatable(device) == stored
        dropped = [one.gates for one in it.events.of(FieldsDropped)]
        assert dropped == ([] if gates else [(ALLOCATABLE,)]), "said once, and not when nothing is lost"
        assert it.writes() == ["create"]


MIG = Device(
    name="mig",
    attributes={"profile": "1g"},
    consumes_counters=(CounterConsumption(counter_set="gpu", counters={"memory": 1}, compatibility_groups=("mig",)),),
)
VGPU = Device(
    name="vgpu",
    attributes={"profile": "half"},
    consumes_counters=(CounterConsumption(counter_set="gpu", counters={"memory": 4}, compatibility_groups=("vgpu",)),),
)


async def test_devices_that_may_not_be_used_at_once_are_published_together_only_if_the_scheduler_knows_it() -> None:
    async with open_api(version="1.37.0") as api, publishing(api, gate_period=0.05) as it:
        await it.publish(MIG, VGPU, counter_sets=(MEMORY,), partition_type="profile")
        dropped = await it.events.next(FieldsDropped)
        assert dropped.gates == (GROUPS, PARTITION_TYPE)
        assert dropped.withheld == ("vgpu",)
        api.embedded.api.gates = build_gates(37, {GROUPS: True, PARTITION_TYPE: True})
        await it.events.next(FieldsKept)
        _, body = await it.slices()
        assert names_in(body) == ["mig", "vgpu"]
        assert body["spec"]["partitionTypeAttribute"] == f"{it.scratch.driver}/profile"
        groups = [device["consumesCounters"][0]["compatibilityGroups"] for device in body["spec"]["devices"]]
        assert groups == [["mig"], ["vgpu"]]


async def test_what_1_36_cannot_say_of_the_node_is_said_after_the_upgrade_to_1_37() -> None:
    resources = {"cpu": NodeAllocatable(capacity="cores", per_pod="100m")}
    async with open_api(version="1.36.2", gates={ALLOCATABLE: True}) as api, publishing(api, gate_period=0.05) as it:
        await it.publish(replace(CPUS, node_allocatable=resources))
        dropped = await it.events.next(FieldsDropped)
        assert str(dropped).endswith(
            "What pods need of the node besides their devices is left out, which Kubernetes accepts from 1.37"
        )
        api.embedded.api.minor = 37
        await it.events.next(FieldsKept)
        [body] = await it.slices()
        [device] = body["spec"]["devices"]
        assert read_node_allocatable(device)["nodeAllocatableResources"]["cpu"]["overhead"] == {"perPod": "100m"}


async def test_a_gate_that_is_turned_on_during_an_outage_is_noticed_at_its_end() -> None:
    gate = "DRADeviceTaints"
    device, _ = GATES[gate]
    async with open_api(gates={gate: False}) as api, publishing(api, gate_period=0.05) as it:
        api.embedded.faults.add(Fault(verb="update", resource="resourceslices", status=503, times=3))
        await it.publish(device)
        api.embedded.api.gates = build_gates(36, {gate: True})
        await it.events.next(PublishFailed)
        await it.events.next(FieldsKept)


@pytest.mark.parametrize("gate", GATES)
async def test_a_gate_that_is_turned_off_is_noticed_though_the_server_keeps_what_is_stored(gate: str) -> None:
    device, counters = GATES[gate]
    async with open_api(gates={gate: True}) as api, publishing(api, gate_period=0.05) as it:
        await it.publish(device, counter_sets=counters)
        api.embedded.api.gates = build_gates(36, {gate: False})
        dropped = await it.events.next(FieldsDropped)
        assert dropped.gates == (gate,)
        assert dropped.withheld == (() if gate in HARMLESS else (device.name,))
        assert [name for body in await it.slices() for name in names_in(body)] == (
            [device.name] if gate in HARMLESS else []
        )


async def test_a_gate_that_was_turned_off_is_noticed_by_the_next_agent_although_nothing_has_to_be_written() -> None:
    device, _ = GATES[TAINTS]
    async with open_api(gates={TAINTS: True}) as api, publishing(api) as it:
        await it.publish(device)
        api.embedded.api.gates = build_gates(36, {TAINTS: False})
        later = Recorder()
        async with anyio.create_task_group() as tasks:
            again = it.another(later, started=200.0)
            again.publish(it.pool(device))
            tasks.start_soon(again.run)
            assert (await later.next(FieldsDropped)).withheld == (device.name,)
            tasks.cancel_scope.cancel()


ON_1_34 = {"version": "1.34.9", "gates": {PARTITIONS: True, TAINTS: True}}


async def test_counters_that_an_older_release_refuses_cost_the_partitions_and_no_whole_device() -> None:
    async with open_api(**ON_1_34) as api, publishing(api) as it:
        await it.publish(part("whole", 8), part("half", 4), Device(name="plain"), counter_sets=(MEMORY,))
        dropped = await it.events.next(FieldsDropped)
        assert (dropped.gates, dropped.withheld) == ((PARTITIONS,), ("half",))
        assert [name for body in await it.slices() for name in names_in(body)] == ["whole", "plain"]
        await it.at_rest()


async def test_an_informational_taint_that_an_older_release_refuses_costs_no_other_taint() -> None:
    note = Taint(key="example.com/note", effect=TaintEffect.NONE)
    async with open_api(**ON_1_34) as api, publishing(api) as it:
        await it.publish(Device(name="gpu-0", taints=(note,)))
        assert (await it.events.next(FieldsDropped)).gates == (EFFECT_NONE,)
        await it.publish(Device(name="gpu-0", taints=(note, Taint(key="example.com/lost"))))
        [[device]] = [body["spec"]["devices"] for body in await it.slices()]
        assert [taint["key"] for taint in device["taints"]] == ["example.com/lost"]
        await it.at_rest()


async def test_a_device_that_only_this_server_refuses_is_left_out_and_no_other() -> None:
    taints = tuple(Taint(key=f"example.com/{number}") for number in range(5))
    async with open_api(**ON_1_34) as api, publishing(api) as it:
        await it.publish(Device(name="gpu-0", taints=taints), Device(name="gpu-1"))
        dropped = await it.events.next(FieldsDropped)
        assert dropped.refused == ("gpu-0 (taints: Too many: 5: must have at most 4 items)",)
        assert [name for body in await it.slices() for name in names_in(body)] == ["gpu-1"]
        await it.publish(Device(name="gpu-0", taints=taints[:4]), Device(name="gpu-1"))
        assert [name for body in await it.slices() for name in names_in(body)] == ["gpu-0", "gpu-1"]
        await it.events.next(FieldsKept)
        await it.at_rest()


@pytest.mark.gates("DRAPartitionableDevices")
async def test_the_same_refusal_has_the_same_text_each_time(api_server: ApiHandle) -> None:
    too_many = CounterSet(name="gpu", counters={f"c{number}": 1 for number in range(33)})
    async with publishing(api_server) as it:
        texts = []
        for count in (1, 2):
            it.events.clear()
            it.reconciler.publish(it.pool(*gpus(count), counter_sets=(too_many,)))
            texts.append(str((await it.events.next(PublishFailed)).error))
        assert texts[0] == texts[1]


class TwoServers:
    """One address with two API servers of different releases behind it: what is written meets the older one."""

    def __init__(self, client: KubeClient, api: Api) -> None:
        self._client = client
        self._api = api

    async def get(self, resource: Resource, name: str, *, namespace: str = "") -> JsonObject:
        return await self._client.get(resource, name, namespace=namespace)

    async def create(
        self, resource: Resource, body: JsonObject, *, namespace: str = "", dry_run: bool = False
    ) -> JsonObject:
        self._api.gates = build_gates(36, {PARTITIONS: dry_run})
        return await self._client.create(resource, body, namespace=namespace, dry_run=dry_run)

    async def delete(self, resource: Resource, name: str, **options: Any) -> None:
        await self._client.delete(resource, name, **options)

    async def replace(self, resource: Resource, name: str, body: JsonObject, **options: Any) -> JsonObject:
        return await self._client.replace(resource, name, body, **options)


async def test_a_gate_that_only_one_of_several_servers_has_off_costs_the_device_at_once() -> None:
    async with open_api() as api:
        server = api.embedded.api
        async with publishing(api, through=lambda client: TwoServers(client, server)) as it:
            await it.publish(part("whole", 8), part("half", 4), counter_sets=(MEMORY,))
            assert (await it.events.next(FieldsDropped)).withheld == ("half",)
            assert [name for body in await it.slices() for name in names_in(body)] == ["whole"]


async def test_a_conflict_is_planned_again(api_server: ApiHandle) -> None:
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
        assert not it.reconciler.is_published
        server.faults.clear()
        await it.publish(*gpus(4))
        assert [len(body["spec"]["devices"]) for body in await it.slices()] == [4]


async def test_a_slice_is_gone_only_if_the_api_server_says_so_of_it(api_server: ApiHandle) -> None:
    """Else the scheduler would have two slices of a pool of one, and allocate none of its devices."""
    page = Fault(verb="delete", resource="resourceslices", status=404, body="404 page not found")
    async with publishing(api_server) as it:
        await it.publish(*gpus(200))
        api_server.embedded.faults.add(page)
        await it.publish(*gpus(3))
        assert [len(body["spec"]["devices"]) for body in await it.slices()] == [3]


async def test_a_node_that_is_not_there_yet_is_waited_for(api_server: ApiHandle) -> None:
    server = api_server.embedded
    server.faults.add(Fault(verb="get", resource="nodes", status=404, times=2))
    async with publishing(api_server) as it:
        await it.publish(*gpus(1))
        assert [type(event.error) for event in it.events.of(PublishFailed)] == [NotFound, NotFound]


async def test_answers_of_another_shape_are_waited_out(api_server: ApiHandle) -> None:
    server = api_server.embedded
    node, slice_ = '{"kind": "Node", "metadata": {}}', '{"metadata": {"name": "a"}, "spec": {"devices": 1}}'
    server.faults.add(Fault(verb="get", resource="nodes", status=200, body=node))
    server.faults.add(Fault(verb="create", resource="resourceslices", status=200, body=slice_))
    async with publishing(api_server, uniform=lambda _low, _high: 0.0) as it:
        await it.publish(*gpus(1))
        assert [type(event.error) for event in it.events.of(PublishFailed)] == [Unreadable, Unreadable]


async def test_after_an_outage_what_was_wanted_meanwhile_is_there_within_seconds(api_server: ApiHandle) -> None:
    server = api_server.embedded
    async with publishing(api_server) as it:
        await it.publish(*gpus(1))
        it.events.clear()
        async with server.down():
            it.reconciler.publish(it.pool(*gpus(2)))
            await it.events.until(lambda: len(it.events.of(PublishFailed)) >= 2)
            assert isinstance(it.events.of(PublishFailed)[0].error, Unavailable)
        await it.events.next(PoolPublished, deadline=20.0)
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
        await it.mended(deadline=20.0)
        assert len(await it.slices()) == 2


async def test_somebody_who_keeps_fighting_causes_no_storm(api_server: ApiHandle) -> None:
    repairs = Backoff(free=3, pause=3600.0, limit=3600.0, quiet=7200.0)
    async with publishing(api_server, repairs=repairs) as it:
        await it.publish(*gpus(1))
        [body] = await it.slices()
        name = body["metadata"]["name"]
        for fight in range(1, 5):
            it.events.clear()
            forged = await it.client.patch(RESOURCE_SLICES, name, {"spec": {"devices": [{"name": f"forged-{fight}"}]}})
            if fight <= 3:
                await it.events.next(PoolPublished)
                assert it.writes() == ["update"]
        await it.caught_up(forged)
        assert it.writes() == [], "the fourth time in a row has to wait"
        assert (await it.slices())[0]["spec"]["devices"] == [{"name": "forged-4"}]

        await it.publish(*gpus(2))
        assert it.writes() == ["update"], "what the driver wants does not wait for the fight"


async def test_slices_that_others_write_into_the_pool_are_named_until_they_are_gone(api_server: ApiHandle) -> None:
    async with publishing(api_server) as it, anyio.create_task_group() as tasks:
        await it.publish(*gpus(1))
        foreign: JsonObject = {
            "metadata": {"name": f"{it.scratch.node}-foreign"},
            "spec": {
                "driver": it.scratch.driver,
                "pool": {"name": it.scratch.node, "generation": 999, "resourceSliceCount": 1},
                "nodeName": "node-of-an-attacker",
                "devices": [{"name": "gpu-0"}],
            },
        }
        elsewhere = {**foreign["spec"], "pool": {**foreign["spec"]["pool"], "name": "node-of-an-attacker"}}
        await it.client.create(RESOURCE_SLICES, {"metadata": {"name": f"{it.scratch.node}-own"}, "spec": elsewhere})
        await it.client.create(RESOURCE_SLICES, foreign)
        look = partial(watch_pool, driver=it.scratch.driver, node=it.scratch.node, report=it.events, period=0.05)
        tasks.start_soon(look, it.client)
        found = await it.events.next(ForeignSlices)
        assert found.slices == (f"{it.scratch.node}-foreign (of node node-of-an-attacker)",)
        it.events.clear()
        for name in (f"{it.scratch.node}-foreign", f"{it.scratch.node}-own"):
            await it.client.delete(RESOURCE_SLICES, name)
        assert (await it.events.next(ForeignSlices)).slices == ()
        tasks.cancel_scope.cancel()
