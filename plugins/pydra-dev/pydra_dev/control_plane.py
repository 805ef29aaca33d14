"""The embedded control plane: the API server, the controllers and the scheduler.

Each step looks at everything and does what is due, through the same verbs as an HTTP client;
`run_controllers` takes them in turn after every write, until nothing is left to do.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeAlias

import anyio
import anyio.lowlevel

from pydra_dev.apiserver.server import ApiServer, serve_api
from pydra_dev.apiserver.verbs import Api
from pydra_dev.controllers.daemon_sets import step_daemon_sets
from pydra_dev.controllers.garbage_collection import step_namespaces, step_owners, step_pods
from pydra_dev.controllers.resource_claims import step_claims, step_release
from pydra_dev.scheduler.device_taint_eviction import step_eviction
from pydra_dev.scheduler.scheduler import Scheduler

Step: TypeAlias = Callable[[], float | None]
"""One look at everything; returns the seconds until the next one is due without a write, if any."""


async def run_controllers(api: Api) -> None:
    """Run every controller until cancelled."""
    steps = build_steps(api)
    while True:
        wakeup, version = api.store.written.event, api.store.version
        delays = [delay for step in steps if (delay := step()) is not None]
        if api.store.version != version:
            await anyio.lowlevel.checkpoint()
            continue
        with anyio.move_on_after(min(delays, default=float("inf"))):
            await wakeup.wait()


def build_steps(api: Api) -> Sequence[Step]:
    """Every controller's step, in the order in which a pod's life needs them."""
    scheduler = Scheduler(api)
    looks = (step_daemon_sets, step_claims, step_release, step_pods, step_owners, step_namespaces)
    evict = partial(step_eviction, api, scheduler.slices)
    return (*(partial(look, api) for look in looks), scheduler.step, evict)


@asynccontextmanager
async def serve_control_plane(**options: Any) -> AsyncIterator[ApiServer]:
    """Serve the API and run the controllers inside the block; `options` are those of `serve_api`.

    Requests need a token, by default a random one, which is in the kubeconfig file.
    """
    options.setdefault("token", secrets.token_urlsafe(32))
    async with serve_api(**options) as server, anyio.create_task_group() as tasks:
        tasks.start_soon(run_controllers, server.api, name="controllers")
        try:
            yield server
        finally:
            tasks.cancel_scope.cancel()
