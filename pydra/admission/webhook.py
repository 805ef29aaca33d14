"""HTTPS server of the validating admission webhook.

`POST /validate` answers AdmissionReviews; /metrics, /healthz and /readyz are served beside it. The process loads the
config types of the backends and the certificate, and serves until a signal. Then it drains: it serves until API
servers have stopped sending requests, so no review fails. A request that is not a review is answered with 4xx and a
text; the API server then applies its failurePolicy.
"""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from time import perf_counter

import anyio
import anyio.to_thread
from aiohttp import web

from pydra import __version__
from pydra.admission.config_types import read_backends
from pydra.admission.review import (
    PLACES,
    RESULTS,
    Decision,
    Drivers,
    MalformedReview,
    Question,
    build_review,
    parse_review,
    review_object,
)
from pydra.admission.tls import Certificate, ServedCertificate
from pydra.errors import SettingsError
from pydra.observability.connection_limits import Limits
from pydra.observability.http import build_routes, serve_http, serve_routes
from pydra.observability.logging import configure_logs
from pydra.observability.metrics import ProcessMetrics
from pydra.settings import WebhookSettings

_log = logging.getLogger(__name__)

PATH = "/validate"
MAX_BODY = 4 << 20
"""Bytes of a review: etcd accepts objects of 1.5 MiB, and an update contains two."""

SMALL_BODY = 64 << 10
"""Reviews of up to so many bytes are read at once; of larger, rare ones, at most `MOST_LARGE` at a time. The memory
that the chart allows the container is enough for all connections with bodies of this size."""

USUAL_BODY = 8 << 10
"""Reviews of up to so many bytes take milliseconds at most, and are checked without a thread."""

MOST_LARGE = 4

LARGE_SECONDS = 0.5
"""If all places for large reviews are taken, one that has not arrived after so long makes room."""

MOST_CONNECTIONS = 500
"""An API server has one connection for each review that waits."""

MOST_SAID = 1000
"""Characters of a client's text in a log line."""

MALFORMED, OTHER = "malformed", "other"
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1)


class AdmissionMetrics(ProcessMetrics):
    """The webhook's metrics, each present from the start; `resource` is one of resource.k8s.io, or `other`."""

    def __init__(self) -> None:
        super().__init__()
        self.reviews = self.counter(
            "admission_reviews",
            "Reviews, by result: allowed, denied, not_ours (passed without a check), malformed (answered 4xx).",
            "resource",
            "result",
        )
        self.seconds = self.histogram(
            "admission_review_duration_seconds", "How long one review took, without the network.", buckets=_SECONDS
        )
        self.expiry = self.gauge(
            "admission_certificate_expiry_timestamp_seconds",
            "When the certificate in use expires, in Unix time; 0 without TLS.",
        )
        self.loads = self.counter(
            "admission_certificate_loads",
            "Loaded certificates, by result: ok, or failed (the previous one stays in use).",
            "result",
        )
        for resource in PLACES:
            for result in RESULTS:
                self.reviews.labels(resource, result)
        self.reviews.labels(OTHER, "not_ours")
        self.reviews.labels(OTHER, MALFORMED)
        for result in ("ok", "failed"):
            self.loads.labels(result)


class ReviewService:
    """Answers reviews of configs of these drivers. While `draining`, each connection is closed with its next answer.

    `problem` says why API servers would refuse the connection, or nothing.
    """

    def __init__(
        self,
        drivers: Drivers,
        metrics: AdmissionMetrics,
        *,
        read_deadline: float,
        problem: Callable[[], str] = lambda: "",
    ) -> None:
        self.draining = False
        self._problem = problem
        self._drivers = drivers
        self._metrics = metrics
        self.read_deadline = read_deadline
        self._large = _LargeReviews()
        self._turns = _Turns()

    def missing(self) -> Sequence[str]:
        """Return why API servers should not send requests here, for /readyz."""
        return [text for text in ("shutting down" if self.draining else "", self._problem()) if text]

    async def answer(self, request: web.Request) -> web.Response:
        """Answer one POST."""
        response = await self._answer(request)
        if response.status != 200:
            self._metrics.reviews.labels(OTHER, MALFORMED).inc()
            _log.warning("not a review from %s: %s", request.remote, (response.text or "").strip()[:MOST_SAID])
        if self.draining:
            response.force_close()
        return response

    async def _answer(self, request: web.Request) -> web.Response:
        if request.content_type != "application/json":
            return _refuse(415, f"expected Content-Type application/json, found {request.content_type}")
        if (encoding := request.headers.get("Content-Encoding", "identity")) != "identity":
            return _refuse(415, f"expected a body without Content-Encoding, found {encoding}")
        small = request.content_length is not None and request.content_length <= SMALL_BODY
        try:
            async with AsyncExitStack() as place:
                with anyio.fail_after(self.read_deadline):
                    read = request.read() if small else place.enter_async_context(self._large.read(request))
                    body = await read
                if body is not None:
                    async with self._turns.of(request.remote or ""):
                        return await self._review(body)
        except TimeoutError:
            return _refuse(408, f"the review did not arrive within {self.read_deadline:g} s")
        except web.HTTPRequestEntityTooLarge:
            return _refuse(413, f"a review has at most {MAX_BODY} bytes")
        except web.RequestPayloadError as error:
            return _refuse(400, f"the body cannot be read: {error}")
        return _refuse(408, f"other reviews wait, and this one did not arrive within {LARGE_SECONDS:g} s")

    async def _review(self, body: bytes) -> web.Response:
        start = perf_counter()
        try:
            if len(body) <= USUAL_BODY:
                question, decision = self._check(body)
            else:
                question, decision = await anyio.to_thread.run_sync(self._check, body)
        except MalformedReview as error:
            return _refuse(400, str(error))
        except RecursionError:  # of what could just be decoded
            return _refuse(400, "the review is nested too deep")
        answer = build_review(question, decision)
        self._metrics.seconds.observe(perf_counter() - start)
        self._tell(question, decision)
        return web.Response(body=answer, content_type="application/json")

    def _check(self, body: bytes) -> tuple[Question, Decision]:
        question = parse_review(body)
        return question, review_object(question, self._drivers)

    def _tell(self, question: Question, decision: Decision) -> None:
        resource = question.resource.resource
        self._metrics.reviews.labels(resource if resource in PLACES else OTHER, decision.result).inc()
        name = "/".join(filter(None, (question.namespace, question.name or "(generated name)")))
        fields = {"object": name, "resource": str(question.resource), "operation": question.operation}
        if decision.allowed:
            _log.debug("%s", decision.result, extra={"fields": fields})
        else:
            _log.info("refused: %s", "; ".join(decision.problems)[:MOST_SAID], extra={"fields": fields})


class _Turns:
    """Lets one review at a time be checked, and clients take turns: those of some take a second, of others less than
    a millisecond."""

    def __init__(self) -> None:
        self._busy = False
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def of(self, client: str) -> AsyncIterator[None]:
        """Wait for the client's turn, which lasts as long as the block."""
        if self._busy:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(client, deque()).append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._pass_on()
                raise
        self._busy = True
        try:
            yield
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        while self._waiting:
            client, turns = next(iter(self._waiting.items()))
            del self._waiting[client]
            turn = turns.popleft()
            if turns:
                self._waiting[client] = turns  # after all others
            if not turn.done():
                turn.set_result(None)
                return
        self._busy = False


class _LargeReviews:
    """Reads large reviews, few at a time. If others wait, one that arrives slowly is given up."""

    def __init__(self) -> None:
        self._reading: dict[anyio.CancelScope, float] = {}  # the one that began first comes first
        self._arrived = 0
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def read(self, request: web.Request) -> AsyncIterator[bytes | None]:
        """Yield the body, or None if it was given up; its place is taken until the block ends."""
        while len(self._reading) + self._arrived >= MOST_LARGE:
            first, began = next(iter(self._reading.items()), (None, math.inf))
            with anyio.move_on_after(began + LARGE_SECONDS - anyio.current_time()):
                await self._freed.wait()
                continue
            if first in self._reading:
                first.cancel()
                self._free(first)
        body = None
        with anyio.CancelScope() as scope:
            self._reading[scope] = anyio.current_time()
            try:
                body = await request.read()
                self._arrived += 1
            finally:
                self._free(scope)
        try:
            yield body
        finally:
            if body is not None:
                self._arrived -= 1
                self._tell_freed()

    def _free(self, scope: anyio.CancelScope) -> None:
        if self._reading.pop(scope, None) is not None:
            self._tell_freed()

    def _tell_freed(self) -> None:
        self._freed.set()
        self._freed = asyncio.Event()


@asynccontextmanager
async def serve_reviews(
    host: str,
    port: int,
    service: ReviewService,
    *,
    metrics: AdmissionMetrics,
    tls: ssl.SSLContext | None,
    most_connections: int = MOST_CONNECTIONS,
) -> AsyncIterator[int]:
    """Serve while the block runs; yield the port. Requests in progress at its end are answered first.

    Raises:
        SettingsError: the address cannot be bound.
    """
    limits = Limits(connections=most_connections, waiting=most_connections, head=service.read_deadline)
    routes = [web.post(PATH, service.answer), *build_routes(metrics, service.missing)]
    async with serve_routes(
        routes, host, port, setting="address", limits=limits, largest_body=MAX_BODY, tls=tls, stop_seconds=5.0
    ) as bound:
        _log.info("answering reviews on %s://%s:%d%s", "https" if tls else "http", host, bound, PATH)
        yield bound


def _refuse(status: int, words: str) -> web.Response:
    return web.Response(status=status, text=words + "\n")


def run(settings: WebhookSettings, *, reread: Callable[[], WebhookSettings]) -> int:
    """Run until SIGTERM or SIGINT; return the exit code. `reread` returns the current settings on SIGHUP.

    Raises:
        SettingsError: a backend is not installed, the certificate cannot be served, an address is in use.
        BackendError: the types of a backend cannot be read.
    """
    configure_logs(level=settings.log_level, form=settings.log_format, file="")
    known = read_backends(settings.backends, settings.drivers, settings.backend_settings)
    for one in known:
        kinds = ", ".join(sorted(one.types)) or "no config at all"
        _log.info("driver %s of backend %s takes %s", one.driver, one.name, kinds)
    metrics = AdmissionMetrics()
    metrics.build.labels(__version__).set(1)
    drivers = {one.driver: one for one in known}
    served = _open_certificate(settings, metrics)
    problem = served.missing if served else lambda: ""
    service = ReviewService(drivers, metrics, read_deadline=settings.read_deadline, problem=problem)
    anyio.run(_serve, settings, service, metrics, served, reread)
    return 0


def _open_certificate(settings: WebhookSettings, metrics: AdmissionMetrics) -> ServedCertificate | None:
    if settings.tls_cert is None or settings.tls_key is None:
        _log.warning("no certificate is given: serving plain HTTP, which API servers do not use; put a proxy in front")
        return None

    def report(loaded: Certificate | None) -> None:
        metrics.loads.labels("ok" if loaded else "failed").inc()
        if loaded:
            metrics.expiry.set(loaded.not_after)

    served = ServedCertificate(settings.tls_cert, settings.tls_key, report=report)
    served.open()
    return served


async def _serve(
    settings: WebhookSettings,
    service: ReviewService,
    metrics: AdmissionMetrics,
    served: ServedCertificate | None,
    reread: Callable[[], WebhookSettings],
) -> None:
    async with AsyncExitStack() as stack:
        signals = stack.enter_context(anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
        tls = served.context if served else None
        await stack.enter_async_context(serve_reviews(*settings.endpoint, service, metrics=metrics, tls=tls))
        if endpoint := settings.http_endpoint:
            await stack.enter_async_context(serve_http(*endpoint, metrics=metrics, missing=service.missing))
        async with anyio.create_task_group() as tasks:
            if served:
                tasks.start_soon(partial(served.run, settings.tls_period), name="certificate")
            async for number in signals:
                if number != signal.SIGHUP:
                    break
                _reread(reread)
                if served:
                    await served.renew()
            grace = settings.drain_grace
            _log.info("stopping on %s: serving for %g s more, until API servers send no requests", number.name, grace)
            service.draining = True
            with anyio.move_on_after(settings.drain_grace):
                async for number in signals:  # a second signal: at once
                    if number != signal.SIGHUP:
                        break
            tasks.cancel_scope.cancel()
    _log.info("stopped")


def _reread(reread: Callable[[], WebhookSettings]) -> None:
    try:
        fresh = reread()
    except SettingsError as error:
        _log.error("the settings are unchanged, because those in the file are invalid: %s", error)
        return
    configure_logs(level=fresh.log_level, form=fresh.log_format, file="")
    _log.info("log settings read again; all others need a restart")
