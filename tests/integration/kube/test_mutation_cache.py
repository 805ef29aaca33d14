"""A controller sees its own writes before its watch does, and forgets them when the watch has caught up."""

from __future__ import annotations

import anyio

from pydra.controllers import Cache, Change, Informer, Resource
from pydra.kube.api_resources import RESOURCE_CLAIM_TEMPLATES
from tests.integration.api_handle import ApiHandle
from tests.integration.kube.opened import open_client
from tests.integration.recorder import Recorder

SPEC = {"spec": {"devices": {"requests": [{"name": "a", "exactly": {"deviceClassName": "a"}}]}}}


async def test_an_own_write_is_seen_at_once_and_a_newer_one_of_the_watch_wins(api_server: ApiHandle) -> None:
    async with api_server.connect() as raw, api_server.scratch(raw) as scratch, open_client(api_server) as client:
        seen = Recorder()

        def note(_: Resource, change: Change) -> None:
            seen(tuple(one is not None and one["metadata"].get("labels") for one in change))

        informer = Informer(client, RESOURCE_CLAIM_TEMPLATES, namespace=scratch.namespace)
        cache = Cache(RESOURCE_CLAIM_TEMPLATES, informer, note)
        made = await client.create(
            RESOURCE_CLAIM_TEMPLATES, {"metadata": {"name": "t"}, "spec": SPEC}, namespace=scratch.namespace
        )
        assert list(cache.objects()) == []
        cache.remember(made)
        assert cache.find("t", namespace=scratch.namespace) == made
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(informer.run)
            with anyio.fail_after(30):
                await informer.wait_synced()
            body = {"metadata": {"labels": {"changed": "yes"}}}
            await client.patch(RESOURCE_CLAIM_TEMPLATES, "t", body, namespace=scratch.namespace)
            await seen.until(lambda: len(seen.events) == 2, 30)
            assert seen.events == [(False, None), (None, {"changed": "yes"})]
            [found] = cache.objects()
            assert found["metadata"]["labels"] == {"changed": "yes"}
            tasks.cancel_scope.cancel()
