"""Watches as any Kubernetes API server gives them; with KUBECONFIG set, asked of a real one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from answers import connected
from bodies import claim_body, slice_body
from tests.integration.api_handle import SLICES, ApiHandle, RawClient, open_api

JsonObject = dict[str, Any]


async def read(events: AsyncIterator[JsonObject], count: int) -> list[tuple[str, str]]:
    """The next events that are not bookmarks: type and name."""
    found: list[tuple[str, str]] = []
    async for event in events:
        if event["type"] != "BOOKMARK":
            found.append((event["type"], event["object"]["metadata"]["name"]))
        if len(found) == count:
            break
    return found


async def list_version(client: RawClient, path: str) -> str:
    return str((await client.get(path)).body["metadata"]["resourceVersion"])


async def test_a_watch_tells_every_change_after_its_version_in_order(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        await client.create(scratch.claims, claim_body("old"))
        version = await list_version(client, scratch.claims)
        await client.create(scratch.claims, claim_body("early"))
        async with client.watch(scratch.claims, resourceVersion=version) as events:
            await client.patch(f"{scratch.claims}/early", {"metadata": {"labels": {"a": "b"}}})
            await client.request("DELETE", f"{scratch.claims}/old")
            assert await read(events, 3) == [("ADDED", "early"), ("MODIFIED", "early"), ("DELETED", "old")]


async def test_a_watch_without_a_version_begins_with_what_is_there(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        await client.create(scratch.claims, claim_body("there"))
        async with client.watch(scratch.claims) as events:
            assert await read(events, 1) == [("ADDED", "there")]
            await client.request("DELETE", f"{scratch.claims}/there")
            assert await read(events, 1) == [("DELETED", "there")]


async def test_a_deleted_object_carries_the_version_of_its_deletion(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        created = await client.create(scratch.claims, claim_body("gone"))
        version = created["metadata"]["resourceVersion"]
        async with client.watch(scratch.claims, resourceVersion=version) as events:
            await client.request("DELETE", f"{scratch.claims}/gone")
            event = await anext(events)
            assert int(event["object"]["metadata"]["resourceVersion"]) > int(version)


async def test_a_watch_with_a_selector_sees_objects_come_and_go(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        version = await list_version(client, scratch.claims)
        async with client.watch(scratch.claims, resourceVersion=version, labelSelector="tier=gold") as events:
            await client.create(scratch.claims, claim_body("other"))
            await client.create(scratch.claims, claim_body("claim"))
            for tier in ("gold", "iron"):
                await client.patch(f"{scratch.claims}/claim", {"metadata": {"labels": {"tier": tier}}})
            assert await read(events, 2) == [("ADDED", "claim"), ("DELETED", "claim")]


async def test_a_watch_by_field_sees_its_objects_only(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        selector = f"spec.driver={scratch.driver},spec.nodeName={scratch.node}"
        version = await list_version(client, SLICES)
        async with client.watch(SLICES, resourceVersion=version, fieldSelector=selector) as events:
            await client.create(SLICES, slice_body(scratch, f"{scratch.namespace}-all", nodeName=None, allNodes=True))
            await client.create(SLICES, slice_body(scratch))
            assert await read(events, 1) == [("ADDED", f"{scratch.namespace}-slice")]


async def test_bookmarks_carry_the_version_to_resume_from(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        version = await list_version(client, scratch.claims)
        params = {"resourceVersion": version, "allowWatchBookmarks": "true", "timeoutSeconds": "4"}
        async with client.watch(scratch.claims, **params) as events:
            seen = await client.create(scratch.claims, claim_body("seen"))
            assert await read(events, 1) == [("ADDED", "seen")]
            bookmark = await anext(event async for event in events if event["type"] == "BOOKMARK")
        assert bookmark["object"]["kind"] == "ResourceClaim"
        await client.create(scratch.claims, claim_body("after"))
        resumed = bookmark["object"]["metadata"]["resourceVersion"]
        assert int(resumed) >= int(seen["metadata"]["resourceVersion"])
        async with client.watch(scratch.claims, resourceVersion=resumed) as events:
            assert await read(events, 1) == [("ADDED", "after")]


async def test_a_watch_ends_cleanly_when_its_time_is_over(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        version = await list_version(client, scratch.claims)
        async with client.watch(scratch.claims, resourceVersion=version, timeoutSeconds="1") as events:
            assert [event async for event in events] == []


async def test_a_streaming_list_says_where_it_ends(api_server: ApiHandle) -> None:
    async with connected(api_server) as (client, scratch):
        await client.create(scratch.claims, claim_body("there"))
        params = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
        async with client.watch(scratch.claims, **params) as events:
            first, second = await anext(events), await anext(events)
        assert (first["type"], second["type"]) == ("ADDED", "BOOKMARK")
        assert second["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


async def test_a_watch_from_a_forgotten_version_is_told_that_it_expired(api_server: ApiHandle) -> None:
    server = api_server.embedded
    async with connected(api_server) as (client, scratch):
        version = await list_version(client, scratch.claims)
        await client.create(scratch.claims, claim_body())
        server.compact()
        async with client.watch(scratch.claims, resourceVersion=version) as events:
            told = [event async for event in events]
        assert [event["type"] for event in told] == ["ERROR"]
        assert (told[0]["object"]["code"], told[0]["object"]["reason"]) == (410, "Expired")


async def test_a_page_of_a_forgotten_list_can_be_continued_inconsistently(api_server: ApiHandle) -> None:
    server = api_server.embedded
    async with connected(api_server) as (client, scratch):
        for name in ("a", "b"):
            await client.create(scratch.claims, claim_body(name))
        first = (await client.get(scratch.claims, limit="1")).body
        await client.create(scratch.claims, claim_body("c"))
        server.compact()
        late = await client.get(scratch.claims, **{"continue": first["metadata"]["continue"]})
        assert (late.status, late.body["reason"]) == (410, "Expired")
        rest = await client.get(scratch.claims, **{"continue": late.body["metadata"]["continue"]})
        assert [item["metadata"]["name"] for item in rest.body["items"]] == ["b", "c"]


async def test_the_history_is_bounded() -> None:
    async with open_api(history=5) as api_server, connected(api_server) as (client, scratch):
        version = await list_version(client, scratch.claims)
        for index in range(6):
            await client.create(scratch.claims, claim_body(f"claim-{index}"))
        async with client.watch(scratch.claims, resourceVersion=version) as events:
            assert (await anext(events))["object"]["reason"] == "Expired"


async def test_a_broken_watch_is_a_broken_connection(api_server: ApiHandle) -> None:
    server = api_server.embedded
    async with connected(api_server) as (client, scratch):
        version = await list_version(client, scratch.claims)
        async with client.watch(scratch.claims, resourceVersion=version) as events:
            assert server.watches == 1
            server.break_watches()
            with pytest.raises(aiohttp.ClientError):
                await anext(events)
