"""The HTTP endpoint: `/metrics`, `/healthz` (the process turns) and `/readyz` (it can serve claims).

`/readyz` answers 503 with one line for each thing that is missing. It asks for nothing that another
instance of the agent could hold, so that two overlapping instances can both be ready.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from aiohttp import web

from pydra.errors import SettingsError
from pydra.observability.metrics import CONTENT_TYPE

_log = logging.getLogger(__name__)


class Exposed(Protocol):
    """Series for Prometheus."""

    def text(self) -> bytes:
        """All of them in its text format."""
        ...


def build_routes(metrics: Exposed, missing: Callable[[], Sequence[str]]) -> list[web.RouteDef]:
    """The three pages; `missing` has a line for each thing that keeps the process from being ready."""

    async def answer_metrics(_: web.Request) -> web.Response:
        return web.Response(body=metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def answer_alive(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def answer_ready(_: web.Request) -> web.Response:
        lines = missing()
        return web.Response(text="".join(f"{line}\n" for line in lines) or "ok\n", status=503 if lines else 200)

    return [web.get("/metrics", answer_metrics), web.get("/healthz", answer_alive), web.get("/readyz", answer_ready)]


@asynccontextmanager
async def serve_http(
    host: str, port: int, *, metrics: Exposed, missing: Callable[[], Sequence[str]]
) -> AsyncIterator[int]:
    """Serve while the block runs; yields the port, which matters when `port` is 0.

    Raises:
        SettingsError: the address cannot be bound.
    """

    application = web.Application()
    application.add_routes(build_routes(metrics, missing))
    runner = web.AppRunner(application, access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except OSError as error:
            raise SettingsError([f"httpAddress: cannot listen on {host}:{port}: {error.strerror}"]) from error
        bound = int(runner.addresses[0][1])
        _log.info("serving /metrics, /healthz and /readyz on %s:%d", host, bound)
        yield bound
    finally:
        await runner.cleanup()
