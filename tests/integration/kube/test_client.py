"""The client's verbs, errors and retries, against the embedded or a real API server."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from pydra.errors import Conflict, Gone, Invalid, KubeError, NotFound, Unavailable
from pydra.kube.api_resources import DEVICE_CLASSES, NAMESPACES, RESOURCE_CLAIMS, RESOURCE_SLICES
from pydra.kube.client import RequestDone
from pydra_dev.api.kinds import KINDS
from pydra_dev.apiserver.faults import Fault
from tests.integration.api_handle import ApiHandle
from tests.integration.kube.opened import open_client
from tests.integration.recorder import Recorder

JsonObject = dict[str, Any]
CLASSES = next(kind for kind in KINDS if kind.plural == "deviceclasses")


def claim(name: str) -> JsonObject:
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": requests}},
    }


def device_class(name: str, **labels: str) -> JsonObject:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name, "labels": labels},
        "spec": {},
    }


async def test_an_object_is_created_read_changed_and_deleted(api_server: ApiHandle) -> None:
    async with api_server.connect() as raw, api_server.scratch(raw) as scratch, open_client(api_server) as client:
        space = scratch.namespace
        created = await client.create(RESOURCE_CLAIMS, claim("one"), namespace=space)
        assert await client.get(RESOURCE_CLAIMS, "one", namespace=space) == created

        created["metadata"]["labels"] = {"a": "b"}
        replaced = await client.replace(RESOURCE_CLAIMS, "one", created, namespace=space)
        assert replaced["metadata"]["labels"] == {"a": "b"}
        patched = await client.patch(
            RESOURCE_CLAIMS, "one", {"metadata": {"labels": {"a": None, "c": "d"}}}, namespace=space
        )
        assert patched["metadata"]["labels"] == {"c": "d"}

        with pytest.raises(Conflict):
            await client.replace(RESOURCE_CLAIMS, "one", created, namespace=space)
        with pytest.raises(Conflict):
            await client.delete(RESOURCE_CLAIMS, "one", namespace=space, uid="0f8fad5b-d9cb-469f-a165-70867728950e")
        with pytest.raises(Conflict):
            await client.delete(RESOURCE_CLAIMS, "one", namespace=space, resource_version="1")
        metadata = patched["metadata"]
        await client.delete(
            RESOURCE_CLAIMS, "one", namespace=space, uid=metadata["uid"], resource_version=metadata["resourceVersion"]
        )
        with pytest.raises(NotFound) as refusal:
            await client.get(RESOURCE_CLAIMS, "one", namespace=space)
        assert refusal.value.status == 404
        assert refusal.value.cause == "NotFound"
        assert 'resourceclaims.resource.k8s.io "one" not found' in str(refusal.value)


async def test_a_status_is_written_through_its_subresource(api_server: ApiHandle) -> None:
    async with api_server.connect() as raw, api_server.scratch(raw) as scratch, open_client(api_server) as client:
        body = await client.create(RESOURCE_CLAIMS, claim("one"), namespace=scratch.namespace)
        result = {"request": "gpu", "driver": "gpu.example.com", "pool": "node1", "device": "gpu-0"}
        body["status"] = {"allocation": {"devices": {"results": [result]}}}

        body = await client.replace(RESOURCE_CLAIMS, "one", body, namespace=scratch.namespace)
        assert "allocation" not in body.get("status", {})
        body["status"] = {"allocation": {"devices": {"results": [result]}}}
        body = await client.replace(RESOURCE_CLAIMS, "one", body, namespace=scratch.namespace, subresource="status")
        assert body["status"]["allocation"]["devices"]["results"] == [result]


async def test_a_list_selects_and_gives_items_that_can_be_written_back(api_server: ApiHandle) -> None:
    async with api_server.connect() as raw, api_server.scratch(raw) as scratch, open_client(api_server) as client:
        for name in ("b", "a"):
            await client.create(RESOURCE_CLAIMS, claim(name), namespace=scratch.namespace)
        listed = await client.list(RESOURCE_CLAIMS, namespace=scratch.namespace, field_selector="metadata.name=a")
        assert [item["metadata"]["name"] for item in listed.items] == ["a"]
        assert (listed.items[0]["apiVersion"], listed.items[0]["kind"]) == ("resource.k8s.io/v1", "ResourceClaim")
        everywhere = await client.list(RESOURCE_CLAIMS)
        assert {"a", "b"} <= {item["metadata"]["name"] for item in everywhere.items}


async def test_an_object_that_exists_already_is_a_conflict(api_server: ApiHandle) -> None:
    async with api_server.connect() as raw, api_server.scratch(raw) as scratch, open_client(api_server) as client:
        await client.create(RESOURCE_CLAIMS, claim("one"), namespace=scratch.namespace)
        with pytest.raises(Conflict) as refusal:
            await client.create(RESOURCE_CLAIMS, claim("one"), namespace=scratch.namespace)
        assert refusal.value.cause == "AlreadyExists"


async def test_an_object_that_breaks_the_rules_is_invalid_and_says_why(api_server: ApiHandle) -> None:
    async with open_client(api_server) as client:
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"generateName": "pydra-test-"},
            "spec": {"driver": "gpu.example.com", "nodeName": "n", "pool": {"name": "n", "resourceSliceCount": 0}},
        }
        with pytest.raises(Invalid) as refusal:
            await client.create(RESOURCE_SLICES, body)
        assert "spec.pool.resourceSliceCount" in str(refusal.value)
        assert not refusal.value.retryable


async def test_a_name_that_is_a_path_is_refused_before_it_is_sent(api_server: ApiHandle) -> None:
    async with open_client(api_server) as client:
        with pytest.raises(ValueError, match=r"'\.\./pods' cannot be the name"):
            await client.get(RESOURCE_CLAIMS, "../pods", namespace="default")
        with pytest.raises(NotFound):
            await client.get(RESOURCE_CLAIMS, "a?b#c", namespace="default")
        with pytest.raises(KubeError, match="may not contain '%'"):
            await client.get(RESOURCE_CLAIMS, "a%2fb", namespace="default")


async def test_a_long_list_is_read_in_pages(api_server: ApiHandle) -> None:
    server = api_server.embedded
    for number in range(1001):
        server.api.create(CLASSES, device_class(f"class-{number:04}"))
    async with open_client(api_server) as client:
        listed = await client.list(DEVICE_CLASSES)
    assert [item["metadata"]["name"] for item in listed.items] == [f"class-{n:04}" for n in range(1001)]
    assert server.requests.count("list", "deviceclasses") == 3


async def test_a_list_whose_continuation_expires_is_read_in_one_piece(api_server: ApiHandle) -> None:
    server = api_server.embedded
    for number in range(501):
        server.api.create(CLASSES, device_class(f"class-{number:04}"))
    server.faults.add(Fault(verb="list"))  # the first page passes
    server.faults.add(Fault(verb="list", status=410))
    async with open_client(api_server) as client:
        assert len((await client.list(DEVICE_CLASSES)).items) == 501
        assert server.requests.count("list") == 3


@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=503),
        Fault(status=429, retry_after=0),
        Fault(status=500, times=3),
        Fault(reset=True, times=2),
        Fault(status=200, body="<html>not the API server</html>"),
    ],
    ids=["503", "429", "500 thrice", "reset", "a proxy's page"],
)
async def test_a_read_is_repeated_until_the_server_is_back(api_server: ApiHandle, fault: Fault) -> None:
    server = api_server.embedded
    server.faults.add(fault)
    async with open_client(api_server, uniform=lambda low, high: low / 10) as client:
        assert (await client.get(NAMESPACES, "default"))["metadata"]["name"] == "default"


async def test_a_server_that_asks_for_time_gets_it(api_server: ApiHandle) -> None:
    server = api_server.embedded
    server.faults.add(Fault(status=429, retry_after=30))
    async with open_client(api_server, retry_for=1.0) as client:
        with pytest.raises(Unavailable) as refusal:
            await client.get(NAMESPACES, "default")
    assert refusal.value.retry_after == 30
    assert server.requests.count("get", "namespaces") == 1, "no attempt before the time is up"


async def test_a_write_is_never_repeated(api_server: ApiHandle) -> None:
    server = api_server.embedded
    server.faults.add(Fault(verb="create", status=503, body="upstream connect error\nmore", times=None))
    async with open_client(api_server) as client:
        with pytest.raises(
            Unavailable,
            match=r"cannot create deviceclasses\.resource.* 503 Service Unavailable.*: upstream connect error$",
        ):
            await client.create(DEVICE_CLASSES, device_class("one"))
    assert server.requests.count("create", "deviceclasses") == 1


@pytest.mark.parametrize("deadline", [None, 0], ids=["repeated", "once"])
async def test_a_server_that_is_silent_is_unavailable_after_the_deadline(
    api_server: ApiHandle, deadline: float | None
) -> None:
    server = api_server.embedded
    recorder = Recorder()
    async with open_client(api_server, deadline=0.05, retry_for=0.0, report=recorder) as client:
        with (
            server.faults.frozen(),
            pytest.raises(Unavailable, match=r"timed out after 0\.05 s waiting for http") as caught,
            anyio.fail_after(30),
        ):
            await client.get(NAMESPACES, "default", deadline=deadline)
    assert caught.value.status == 0
    assert [event.status for event in recorder.of(RequestDone)] == [0]


async def test_a_server_that_is_away_is_unavailable(api_server: ApiHandle) -> None:
    async with open_client(api_server, retry_for=0.0) as client, api_server.embedded.down():
        with pytest.raises(Unavailable, match=r"no answer from http.*: Connection refused"):
            await client.get(NAMESPACES, "default")


@pytest.mark.parametrize(("status", "kind"), [(403, KubeError), (400, KubeError), (410, Gone), (422, Invalid)])
async def test_each_refusal_has_its_error(api_server: ApiHandle, status: int, kind: type[KubeError]) -> None:
    api_server.embedded.faults.add(Fault(verb="get", status=status))
    async with open_client(api_server) as client:
        with pytest.raises(KubeError) as refusal:
            await client.get(NAMESPACES, "default")
    assert type(refusal.value) is kind
    assert refusal.value.status == status


async def test_every_request_is_reported(api_server: ApiHandle) -> None:
    recorder = Recorder()
    async with open_client(api_server, report=recorder) as client:
        await client.get(NAMESPACES, "default")
        with pytest.raises(NotFound):
            await client.get(RESOURCE_CLAIMS, "absent", namespace="default")
    assert [(e.verb, e.resource, e.status) for e in recorder.of(RequestDone)] == [
        ("get", "namespaces", 200),
        ("get", "resourceclaims.resource.k8s.io", 404),
    ]
    assert all(event.seconds > 0 for event in recorder.of(RequestDone))


async def test_every_request_names_the_agent(api_server: ApiHandle) -> None:
    async with open_client(api_server, user_agent="pydra-agent/1.2.3") as client:
        await client.get(NAMESPACES, "default")
    assert {call.user_agent for call in api_server.embedded.requests.calls} == {"pydra-agent/1.2.3"}


async def test_a_client_that_is_not_open_says_so(api_server: ApiHandle) -> None:
    async with open_client(api_server) as client:
        pass
    with pytest.raises(RuntimeError, match="async with"):
        await client.get(NAMESPACES, "default")
