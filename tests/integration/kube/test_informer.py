"""The reflector follows the API server through every fault of a watch: nothing lost, nothing twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import anyio
import pytest

from pydra.errors import Gone, Unavailable
from pydra.kube.api_resources import RESOURCE_CLAIMS
from pydra.kube.client import KubeClient, RequestDone
from pydra.kube.informer import Informer, WatchFailed
from pydra_dev.apiserver.faults import Fault
from tests.integration.api_handle import ApiHandle, Scratch, open_api
from tests.integration.kube.opened import open_client
from tests.integration.kube.raw_server import open_raw_client, reply, serve_raw
from tests.integration.recorder import Recorder

JsonObject = dict[str, Any]


def claim(name: str, size: int = 0) -> JsonObject:
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}}]
    annotations = {"filler": "x" * size} if size else {}
    return {"metadata": {"name": name, "annotations": annotations}, "spec": {"devices": {"requests": requests}}}


class Following:
    """A reflector of one namespace's claims that runs, and what it saw."""

    def __init__(self, api: ApiHandle, client: KubeClient, scratch: Scratch, labels: str = "") -> None:
        self.api = api
        self.client = client
        self.namespace = scratch.namespace
        self.changes = Recorder()
        self.failures = Recorder()
        self.reflector = Informer(
            client, RESOURCE_CLAIMS, namespace=scratch.namespace, label_selector=labels, report=self.failures
        )
        self.reflector.subscribe(lambda event: self.changes((event.type.value, event.object["metadata"]["name"])))

    @property
    def names(self) -> list[str]:
        return sorted(name for _, name in self.reflector.objects)

    async def create(self, name: str, size: int = 0) -> JsonObject:
        return await self.client.create(RESOURCE_CLAIMS, claim(name, size), namespace=self.namespace)

    async def label(self, name: str, value: str | None = "yes") -> JsonObject:
        body = {"metadata": {"labels": {"changed": value}}}
        return await self.client.patch(RESOURCE_CLAIMS, name, body, namespace=self.namespace)

    async def delete(self, name: str) -> None:
        await self.client.delete(RESOURCE_CLAIMS, name, namespace=self.namespace)

    async def saw(self, *changes: tuple[str, str], deadline: float = 5.0) -> None:
        await self.changes.until(lambda: len(self.changes.events) >= len(changes), deadline)
        assert self.changes.events == list(changes)


@asynccontextmanager
async def following(api: ApiHandle, labels: str = "", **options: Any) -> AsyncIterator[Following]:
    async with (
        api.connect() as raw,
        api.scratch(raw) as scratch,
        open_client(api, **options) as client,
        anyio.create_task_group() as tasks,
    ):
        follow = Following(api, client, scratch, labels)
        await follow.create("first")
        tasks.start_soon(follow.reflector.run)
        with anyio.fail_after(30):
            await follow.reflector.wait_synced()
        yield follow
        tasks.cancel_scope.cancel()


async def test_changes_come_in_order_and_the_cache_has_them(api_server: ApiHandle) -> None:
    async with following(api_server) as follow:
        assert follow.names == ["first"]
        await follow.create("second")
        await follow.label("first")
        await follow.delete("second")
        await follow.saw(("ADDED", "first"), ("ADDED", "second"), ("MODIFIED", "first"), ("DELETED", "second"))
        assert follow.names == ["first"]
        cached = follow.reflector.objects[follow.namespace, "first"]
        assert cached["metadata"]["labels"] == {"changed": "yes"}
        assert "managedFields" not in cached["metadata"]


@asynccontextmanager
async def watching(api: ApiHandle) -> AsyncIterator[tuple[KubeClient, str, Recorder]]:
    """A reflector without lists of a namespace with the claim `first`: client, namespace, and the changes it saw."""
    changes = Recorder()
    async with (
        api.connect() as raw,
        api.scratch(raw) as scratch,
        open_client(api) as client,
        anyio.create_task_group() as tasks,
    ):
        await client.create(RESOURCE_CLAIMS, claim("first"), namespace=scratch.namespace)
        informer = Informer(client, RESOURCE_CLAIMS, namespace=scratch.namespace, lists=False)
        informer.subscribe(lambda event: changes((event.type.value, event.object["metadata"]["name"])))
        tasks.start_soon(informer.run)
        await changes.until(lambda: changes.events == [("ADDED", "first")], 5.0)
        yield client, scratch.namespace, changes
        tasks.cancel_scope.cancel()


async def test_without_lists_the_first_watch_shows_what_is_there(api_server: ApiHandle) -> None:
    async with watching(api_server) as (client, namespace, changes):
        await client.create(RESOURCE_CLAIMS, claim("second"), namespace=namespace)
        await changes.until(lambda: changes.events == [("ADDED", "first"), ("ADDED", "second")], 5.0)


async def test_a_first_watch_that_is_refused_is_preceded_by_a_list(api_server: ApiHandle) -> None:
    refused = Fault(verb="watch", status=500, body="the required storage feature RequestWatchProgress is disabled")
    api_server.embedded.faults.add(refused)
    async with watching(api_server):
        assert api_server.embedded.requests.count("list", "resourceclaims") == 1


async def test_an_object_is_in_the_cache_while_its_labels_match(api_server: ApiHandle) -> None:
    async with following(api_server, "changed") as follow:
        assert follow.names == []
        await follow.create("second")
        await follow.label("first")
        await follow.saw(("ADDED", "first"))
        await follow.label("first", None)
        await follow.label("second")
        await follow.saw(("ADDED", "first"), ("DELETED", "first"), ("ADDED", "second"))
        assert follow.names == ["second"]


async def test_an_event_of_a_megabyte_arrives_whole(api_server: ApiHandle) -> None:
    async with following(api_server) as follow:
        await follow.create("large", size=200_000)
        await follow.saw(("ADDED", "first"), ("ADDED", "large"))
        assert len(follow.reflector.objects[follow.namespace, "large"]["metadata"]["annotations"]["filler"]) == 200_000


async def test_a_watch_that_is_cut_is_resumed_without_a_list(api_server: ApiHandle) -> None:
    server = api_server.embedded
    async with following(api_server) as follow:
        await follow.create("second")
        await follow.saw(("ADDED", "first"), ("ADDED", "second"))
        lists = server.requests.count("list")
        server.break_watches()
        await follow.create("third")
        await follow.delete("second")
        await follow.saw(("ADDED", "first"), ("ADDED", "second"), ("ADDED", "third"), ("DELETED", "second"))
        assert server.requests.count("list") == lists
        [failure] = follow.failures.of(WatchFailed)
        assert isinstance(failure.error, Unavailable)


async def test_history_that_is_gone_is_listed_again_and_compared(api_server: ApiHandle) -> None:
    server = api_server.embedded
    async with following(api_server) as follow:
        await follow.create("second")
        await follow.saw(("ADDED", "first"), ("ADDED", "second"))
        server.faults.add(Fault(verb="watch", status=410))
        await follow.label("first")
        await follow.saw(("ADDED", "first"), ("ADDED", "second"), ("MODIFIED", "first"))
        follow.changes.clear()

        server.faults.add(Fault(verb="watch", delay=0.2))
        server.break_watches()
        await follow.delete("first")
        await follow.create("third")
        server.compact()
        await follow.saw(("DELETED", "first"), ("ADDED", "third"))
        assert follow.names == ["second", "third"]


async def test_an_object_replaced_behind_its_back_was_deleted_and_added(api_server: ApiHandle) -> None:
    server = api_server.embedded
    async with following(api_server) as follow:
        server.faults.add(Fault(verb="watch", delay=0.2))
        server.break_watches()
        await follow.delete("first")
        await follow.create("first")
        server.compact()
        await follow.saw(("ADDED", "first"), ("DELETED", "first"), ("ADDED", "first"))


async def test_an_outage_ends_within_seconds_of_the_server_being_back(api_server: ApiHandle) -> None:
    server = api_server.embedded
    async with following(api_server) as follow:
        async with server.down():
            await follow.failures.until(lambda: len(follow.failures.events) >= 2)
        await follow.create("second")
        await follow.saw(("ADDED", "first"), ("ADDED", "second"), deadline=20.0)


@pytest.mark.parametrize(
    "fault",
    [Fault(verb="watch", status=503, body="overloaded"), Fault(verb="watch", status=429, retry_after=0)],
    ids=["503 with a text", "429"],
)
async def test_a_watch_that_is_refused_is_tried_again(api_server: ApiHandle, fault: Fault) -> None:
    api_server.embedded.faults.add(fault)
    async with following(api_server) as follow:
        await follow.create("second")
        await follow.saw(("ADDED", "first"), ("ADDED", "second"))
        assert [failure.error.status for failure in follow.failures.of(WatchFailed)] == [fault.status]


async def test_bookmarks_move_the_position_on() -> None:
    async with open_api(bookmark_period=0.02) as api, following(api) as follow:
        position = follow.reflector.resource_version
        server = api.embedded
        await follow.client.create(RESOURCE_CLAIMS, claim("elsewhere"), namespace="default")
        server.compact()
        with anyio.fail_after(30):
            while follow.reflector.resource_version <= position:
                await anyio.lowlevel.checkpoint()
        server.break_watches()
        await follow.create("second")
        await follow.saw(("ADDED", "first"), ("ADDED", "second"))
        assert server.requests.count("list") == 1, "the bookmark is newer than what was forgotten"


async def test_a_watch_that_the_server_ends_is_resumed_without_a_word(api_server: ApiHandle) -> None:
    requests = Recorder()
    async with following(api_server, report=requests, uniform=lambda low, _: min(low, 1.0)) as follow:
        await requests.until(lambda: [done.verb for done in requests.of(RequestDone)].count("watch") == 2)
        await follow.create("second")
        await follow.saw(("ADDED", "first"), ("ADDED", "second"))
        assert not follow.failures.events


async def test_a_watch_from_a_forgotten_version_is_gone(api_server: ApiHandle) -> None:
    async with api_server.connect() as raw, api_server.scratch(raw) as scratch, open_client(api_server) as client:
        for name in "ab":
            await client.create(RESOURCE_CLAIMS, claim(name), namespace=scratch.namespace)
        api_server.embedded.compact()
        watch = client.watch(RESOURCE_CLAIMS, resource_version="1", namespace=scratch.namespace)
        async with aclosing(watch) as events:
            with pytest.raises(Gone):
                await anext(events)


async def test_a_watch_in_which_nothing_comes_any_more_is_given_up_for_a_new_list() -> None:
    """A proxy keeps the connection of a dead API server open; one restored from a backup does not know the version."""
    lists = 0
    item = '{"metadata": {"namespace": "n", "name": "late", "uid": "u", "resourceVersion": "3"}}'

    async def answer(target: str, writer: asyncio.StreamWriter) -> None:
        nonlocal lists
        if "watch=1" in target:
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            return
        lists += 1
        version, items = ("7", "") if lists == 1 else ("4", item)
        body = f'{{"kind": "ResourceClaimList", "metadata": {{"resourceVersion": "{version}"}}, "items": [{items}]}}'
        writer.write(reply(body.encode()))

    failures, seen = Recorder(), anyio.Event()
    async with (
        serve_raw(answer) as url,
        open_raw_client(url, silent=0.05) as client,
        anyio.create_task_group() as tasks,
    ):
        informer = Informer(client, RESOURCE_CLAIMS, report=failures)
        informer.subscribe(lambda _: seen.set())
        tasks.start_soon(informer.run)
        with anyio.fail_after(30):
            await seen.wait()
        tasks.cancel_scope.cancel()
    assert list(informer.objects) == [("n", "late")]
    assert failures.events == []
