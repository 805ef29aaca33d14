"""The embedded control plane: the API server with its controllers running."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio

from pydra_dev.apiserver import ApiServer, serve_api
from pydra_dev.controllers import run_controllers


@asynccontextmanager
async def serve_control_plane(**options: Any) -> AsyncIterator[ApiServer]:
    """Serve the API and run the controllers inside the block; `options` are those of `serve_api`."""
    async with serve_api(**options) as server, anyio.create_task_group() as tasks:
        tasks.start_soon(run_controllers, server.api, name="controllers")
        try:
            yield server
        finally:
            tasks.cancel_scope.cancel()
