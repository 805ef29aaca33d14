"""How the reconciler takes trouble: gates that are off, conflicts, refusals, outages, somebody who fights."""

from __future__ import annotations

import pytest

from pydra.devices import CounterConsumption, CounterSet, Device, Taint
from pydra.embedded.faults import Fault
from pydra.embedded.kinds import KINDS
from pydra.errors import Invalid, NotFound, Unavailable
from pydra.kube.resources import RESOURCE_SLICES
from pydra.slices.events import FieldsDropped, PoolPublished, PublishFailed
from pydra.slices.pace import Pace
from tests.integration.api_handle import ApiHandle, open_api
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
    pace = Pace(free=3, pause=3600.0, limit=3600.0, quiet=7200.0)
    async with publishing(api_server, repair_pace=pace) as it:
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
