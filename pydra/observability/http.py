"""HTTP endpoint for `/metrics`, `/healthz` and `/readyz`.

`/healthz` says that the event loop is responsive, `/readyz` that the agent can serve claims. `/readyz` answers 503
with one line for each thing that is missing. It needs nothing that another instance of the agent could hold, so two
overlapping instances can both be ready.

Anybody in the cluster may connect. `pydra.observability.connection_limits` limits what a client can use up; here each
of the three pages ends its connection, so that requests sent ahead over it are not served, and the text of the metrics
is built at most once a second, in a thread.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from time import monotonic
from typing import Protocol

import anyio.to_thread
from aiohttp import web
from aiohttp.http import HttpProcessingError

from pydra.errors import SettingsError
from pydra.observability.connection_limits import Connections, Handler, Limits, bind
from pydra.observability.metrics import CONTENT_TYPE

_log = logging.getLogger(__name__)
_request_log = logging.getLogger(f"{__name__}.requests")
_request_log.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError)))
"""aiohttp's, without requests that are not HTTP: anybody can send them, and they are answered 400."""

_KEPT_SECONDS = 1.0

_DEFAULTS = Limits()


class MetricsSource(Protocol):
    """A source of metrics for Prometheus."""

    def text(self) -> bytes:
        """Return them in Prometheus' text format."""
        ...


def build_routes(metrics: MetricsSource, missing: Callable[[], Sequence[str]]) -> list[web.RouteDef]:
    """Build the three pages; `missing` returns a line for each thing that keeps the process from being ready."""

    kept = _KeptText(metrics)

    async def answer_metrics(_: web.Request) -> web.Response:
        return web.Response(body=await kept.read(), headers={"Content-Type": CONTENT_TYPE})

    async def answer_alive(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def answer_ready(_: web.Request) -> web.Response:
        lines = missing()
        return web.Response(text="".join(f"{line}\n" for line in lines) or "ok\n", status=503 if lines else 200)

    pages = {"/metrics": answer_metrics, "/healthz": answer_alive, "/readyz": answer_ready}
    return [web.get(path, _end_connection(handler)) for path, handler in pages.items()]


def _end_connection(handler: Callable[[web.Request], Awaitable[web.Response]]) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = await handler(request)
        response.force_close()
        return response

    return answer


class _KeptText:
    """The text of the metrics, at most a second old."""

    def __init__(self, metrics: MetricsSource) -> None:
        self._metrics = metrics
        self._building = asyncio.Lock()
        self._text = b""
        self._until = 0.0

    async def read(self) -> bytes:
        async with self._building:
            if monotonic() >= self._until:
                self._text = await anyio.to_thread.run_sync(self._metrics.text)
                self._until = monotonic() + _KEPT_SECONDS
            return self._text


@asynccontextmanager
async def serve_http(
    host: str, port: int, *, metrics: MetricsSource, missing: Callable[[], Sequence[str]], limits: Limits = _DEFAULTS
) -> AsyncIterator[int]:
    """Serve the three pages while the block runs; yield the port, for a `port` of 0.

    Raises:
        SettingsError: the address cannot be bound.
    """
    routes = build_routes(metrics, missing)
    async with serve_routes(routes, host, port, setting="httpAddress", limits=limits) as bound:
        _log.info("serving /metrics, /healthz and /readyz on %s:%d", host, bound)
        yield bound


@asynccontextmanager
async def serve_routes(
    routes: Sequence[web.RouteDef],
    host: str,
    port: int,
    *,
    setting: str,
    limits: Limits,
    largest_body: int = 1024,
    tls: ssl.SSLContext | None = None,
    stop_seconds: float = 1.0,
) -> AsyncIterator[int]:
    """Serve these routes within the limits while the block runs; yield the port. `setting` has the address.

    Requests in progress at the end of the block are answered first, within `stop_seconds`.

    Raises:
        SettingsError: the address cannot be bound.
    """

    def build() -> asyncio.Protocol:
        assert runner.server is not None
        return runner.server()

    @web.middleware
    async def note(request: web.Request, handler: Handler) -> web.StreamResponse:
        return await connections.note(request, handler)

    connections = Connections(limits, build, tls)
    application = web.Application(client_max_size=largest_body, middlewares=[note])
    application.add_routes(routes)
    runner = web.AppRunner(
        application,
        access_log=None,
        logger=_request_log,
        handle_signals=False,
        auto_decompress=False,
        shutdown_timeout=stop_seconds,
        keepalive_timeout=limits.idle,
        lingering_time=limits.head,  # for what a refused client still sends, so that it reads the refusal
    )
    try:
        listeners = await bind(host, port)
    except OSError as error:
        raise SettingsError([f"{setting}: cannot listen on {host}:{port}: {error.strerror}"]) from error
    await runner.setup()
    try:
        async with connections.accept_from(listeners):
            yield int(listeners[0].getsockname()[1])
    finally:
        await runner.cleanup()
