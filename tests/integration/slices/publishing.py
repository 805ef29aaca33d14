"""A reconciler that runs against the API server under test, with a node and a driver of its own."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio

from pydra.devices import Device, Pool
from pydra.errors import NotFound
from pydra.kube.api_resources import NODES, RESOURCE_SLICES
from pydra.kube.client import KubeClient
from pydra.kube.informer import Informer
from pydra.slices.reconciler import PoolPublished, SliceClient, SliceReconciler, SliceWritten, slice_selector
from pydra.slices.write_schedule import Timing
from tests.integration.api_handle import ApiHandle, Scratch
from tests.integration.kube.opened import open_client
from tests.integration.recorder import Recorder

JsonObject = dict[str, Any]


class Publishing:
    """A reconciler that runs for a node and driver of this test alone, and the API beside it."""

    def __init__(
        self,
        api: ApiHandle,
        client: KubeClient,
        scratch: Scratch,
        through: Callable[[KubeClient], SliceClient] = lambda client: client,
        **options: Any,
    ) -> None:
        self.api = api
        self.client = client
        self.scratch = scratch
        self.events = Recorder()
        self.watching = anyio.CancelScope()
        selector = slice_selector(scratch.driver, scratch.node)
        self.reflector = Informer(client, RESOURCE_SLICES, field_selector=selector)
        self._through = through
        self.reconciler = self.another(self.events, **options)

    async def watch(self) -> None:
        """Show the reconciler what changes until `watching` is cancelled."""
        with self.watching:
            await self.reflector.run()

    def another(self, report: Recorder, *, started: float = 100.0, **timing: Any) -> SliceReconciler:
        """A further reconciler of the same slices."""
        return SliceReconciler(
            self._through(self.client),
            self.reflector,
            driver=self.scratch.driver,
            node=self.scratch.node,
            report=report,
            started=started,
            timing=Timing(**{"batch_delay": 0.0, **timing}),
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
        for body in await self.slices():
            with suppress(NotFound):  # a real garbage collector was faster
                await self.client.delete(RESOURCE_SLICES, body["metadata"]["name"])

    def writes(self) -> list[str]:
        """What was written since the last `clear`, by the events of the reconciler."""
        return [event.kind.value for event in self.events.of(SliceWritten)]

    async def at_rest(self) -> None:
        """A further reconciliation, which somebody's label makes it take, finds nothing to write."""
        before = len(self.events.of(SliceWritten))
        [first, *_] = await self.slices()
        label = {"metadata": {"labels": {"touched": secrets.token_hex(4)}}}
        touched = await self.client.patch(RESOURCE_SLICES, first["metadata"]["name"], label)
        await self.caught_up(touched)
        assert self.reconciler.is_published
        assert len(self.events.of(SliceWritten)) == before

    async def caught_up(self, body: JsonObject) -> None:
        """This version was seen, and the reconciliation that follows was done: it is unpublished if that found work."""
        with anyio.fail_after(30):
            while self.reflector.resource_version < int(body["metadata"]["resourceVersion"]):
                await anyio.lowlevel.checkpoint()
        await anyio.wait_all_tasks_blocked()


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
            tasks.start_soon(publishing.watch)
            tasks.start_soon(publishing.reconciler.run)
            yield publishing
            tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await client.delete(NODES, scratch.node)


def gpus(count: int, **fields: Any) -> tuple[Device, ...]:
    return tuple(Device(name=f"gpu-{number}", **fields) for number in range(count))
