"""The trouble that the embedded API server makes on demand."""

from __future__ import annotations

import aiohttp
import anyio
import pytest

from bodies import slice_body
from pydra_dev.api.feature_gates import build_gates
from pydra_dev.apiserver.faults import Fault
from tests.integration.api_handle import CLASSES, SLICES, ApiHandle, open_api


async def test_a_fault_answers_as_often_as_it_says(api_server: ApiHandle) -> None:
    server = api_server.embedded
    server.faults.add(Fault(verb="list", resource="resourceslices", times=2, status=503))
    async with api_server.connect() as client:
        assert [(await client.get(SLICES)).status for _ in range(3)] == [503, 503, 200]
        assert (await client.get("/version")).status == 200


async def test_too_many_requests_says_when_to_come_back(api_server: ApiHandle) -> None:
    api_server.embedded.faults.add(Fault(status=429, retry_after=7))
    async with api_server.connect() as client:
        answer = await client.get(SLICES)
        assert (answer.status, answer.headers["Retry-After"]) == (429, "7")
        assert answer.body["reason"] == "TooManyRequests"


async def test_an_answer_may_be_no_status_object(api_server: ApiHandle) -> None:
    api_server.embedded.faults.add(Fault(status=502, body="bad gateway"))
    async with api_server.connect() as client:
        answer = await client.get(SLICES)
        assert (answer.status, answer.text, answer.body) == (502, "bad gateway", None)


async def test_a_reset_is_a_broken_connection_and_nothing_is_written(api_server: ApiHandle) -> None:
    server = api_server.embedded
    async with api_server.connect() as client, api_server.scratch(client) as scratch:
        server.faults.add(Fault(verb="create", reset=True))
        with pytest.raises(aiohttp.ClientError):
            await client.request("POST", SLICES, slice_body(scratch))
        assert (await client.get(SLICES)).body["items"] == []


async def test_a_frozen_server_answers_when_it_thaws(api_server: ApiHandle) -> None:
    server = api_server.embedded
    statuses: list[int] = []
    async with api_server.connect() as client:

        async def ask() -> None:
            statuses.append((await client.get(SLICES)).status)

        async with anyio.create_task_group() as tasks:
            with server.faults.frozen():
                tasks.start_soon(ask)
                with anyio.fail_after(30):
                    await server.requests.wait_count(1, "list")
                assert statuses == []
        assert statuses == [200]


async def test_a_server_that_is_down_comes_back_at_its_address_with_its_objects(api_server: ApiHandle) -> None:
    server = api_server.embedded
    async with api_server.connect() as client, api_server.scratch(client) as scratch:
        await client.create(SLICES, slice_body(scratch))
        async with server.down():
            with pytest.raises(aiohttp.ClientError):
                await client.get(SLICES)
        assert len((await client.get(SLICES)).body["items"]) == 1


async def test_a_token_is_asked_for_and_can_change() -> None:
    async with open_api(token="first") as api_server, api_server.connect() as client:
        assert (await client.get(SLICES)).status == 200
        api_server.embedded.token = "second"
        answer = await client.get(SLICES)
        assert (answer.status, answer.body["reason"]) == (401, "Unauthorized")


async def test_an_older_release_serves_no_resource_api() -> None:
    async with open_api(version="1.33.2") as api_server, api_server.connect() as client:
        assert (await client.get("/version")).body["gitVersion"].startswith("v1.33.2")
        assert (await client.get(SLICES)).status == 404
        groups = (await client.get("/apis")).body["groups"]
        assert [group["name"] for group in groups] == ["apps", "coordination.k8s.io", "events.k8s.io"]


async def test_every_request_is_remembered(api_server: ApiHandle) -> None:
    server = api_server.embedded
    async with api_server.connect() as client, api_server.scratch(client) as scratch:
        server.requests.clear()
        stored = await client.create(SLICES, slice_body(scratch))
        await client.get(f"{SLICES}/{stored['metadata']['name']}")
        await client.get(f"{SLICES}/nothing")
        calls = [(call.verb, call.resource, call.status) for call in server.requests.calls]
        assert calls == [
            ("create", "resourceslices", 201),
            ("get", "resourceslices", 200),
            ("get", "resourceslices", 404),
        ]
        assert [call.name for call in server.requests.writes()] == [""]


TAINTED = {"name": "d", "taints": [{"key": "a", "effect": "NoSchedule"}]}
DRAWING = {"name": "d", "consumesCounters": [{"counterSet": "s", "counters": {"c": {"value": "1"}}}]}
SHARED = {"name": "d", "allowMultipleAllocations": True, "capacity": {"m": {"value": "4"}}}
LISTED = {"name": "d", "attributes": {"a": {"string": "s", "strings": []}}}
BOUND = {"name": "d", "bindsToNode": True, "bindingConditions": ["a"], "bindingFailureConditions": ["b"]}


@pytest.mark.parametrize(
    ("gate", "device", "left"),
    [
        pytest.param("DRADeviceTaints", TAINTED, {"name": "d"}, id="taints"),
        pytest.param("DRAPartitionableDevices", DRAWING, {"name": "d"}, id="partitions"),
        pytest.param("DRAConsumableCapacity", SHARED, {"name": "d", "capacity": {"m": {"value": "4"}}}, id="shares"),
        pytest.param(
            "DRAListTypeAttributes", LISTED, {"name": "d", "attributes": {"a": {"string": "s"}}}, id="an empty list"
        ),
        pytest.param("DRADeviceBindingConditions", BOUND, {"name": "d"}, id="binding conditions"),
    ],
)
async def test_a_disabled_gate_drops_its_fields(gate: str, device: dict[str, object], left: dict[str, object]) -> None:
    async with (
        open_api(gates={gate: False}) as api_server,
        api_server.connect() as client,
        api_server.scratch(client) as scratch,
    ):
        stored = await client.create(SLICES, slice_body(scratch, devices=[device]))
        assert stored["spec"]["devices"] == [left]


async def test_of_a_gate_that_is_turned_off_objects_that_use_it_keep_its_fields_and_new_ones_lose_them() -> None:
    gate = "DRAExtendedResource"
    async with open_api(gates={gate: True}) as api_server, api_server.connect() as client:
        spec = {"extendedResourceName": "example.com/gpu"}
        old = await client.create(CLASSES, {"metadata": {"name": "old"}, "spec": spec})
        api_server.embedded.api.gates = build_gates(36, {gate: False})
        assert (await client.request("PUT", f"{CLASSES}/old", old)).body["spec"] == spec
        assert (await client.create(CLASSES, {"metadata": {"name": "new"}, "spec": spec}))["spec"] == {}


async def test_a_gate_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown feature gates DRANothing; known are DRAAdminAccess"):
        async with open_api(gates={"DRANothing": True}):
            pass
