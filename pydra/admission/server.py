"""The webhook's HTTPS endpoint: `POST /validate` answers AdmissionReviews; /metrics, /healthz and /readyz beside it.

What is no review is answered 4xx in words; the API server then does what its configuration's failurePolicy says.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from time import perf_counter

import anyio
from aiohttp import web

from pydra.admission.metrics import MALFORMED, OTHER, AdmissionMetrics
from pydra.admission.places import PLACES
from pydra.admission.review import MalformedReview, Question, Verdict, build_review, parse_review
from pydra.errors import SettingsError
from pydra.observe.http import build_routes

_log = logging.getLogger(__name__)

PATH = "/validate"
MAX_BODY = 8 << 20
"""Bytes of a review: it has the object twice, each as large as the API server's limit of 3 MiB at most."""


class ReviewService:
    """Answers reviews. `leaving`: the process is to end, so connections close after their next answer.

    `trouble` says why API servers would refuse the connection, or nothing.
    """

    def __init__(
        self,
        judge: Callable[[Question], Verdict],
        metrics: AdmissionMetrics,
        *,
        read_deadline: float,
        trouble: Callable[[], str] = lambda: "",
    ) -> None:
        self.leaving = False
        self._trouble = trouble
        self._judge = judge
        self._metrics = metrics
        self.read_deadline = read_deadline

    def missing(self) -> Sequence[str]:
        """Why no API server should come here, for /readyz."""
        return [text for text in ("told to stop" if self.leaving else "", self._trouble()) if text]

    async def answer(self, request: web.Request) -> web.Response:
        """The answer to one POST."""
        response = await self._answer(request)
        if response.status != 200:
            self._metrics.reviews.labels(OTHER, MALFORMED).inc()
            _log.warning("not a review from %s: %s", request.remote, (response.text or "").strip())
        if self.leaving:
            response.force_close()
        return response

    async def _answer(self, request: web.Request) -> web.Response:
        if request.content_type != "application/json":
            return _refuse(415, f"expected Content-Type application/json, found {request.content_type}")
        try:
            with anyio.fail_after(self.read_deadline):
                body = await request.read()
        except TimeoutError:
            return _refuse(408, f"the review did not arrive within {self.read_deadline:g} s")
        except web.HTTPRequestEntityTooLarge:
            return _refuse(413, f"a review has at most {MAX_BODY} bytes")
        start = perf_counter()
        try:
            question = parse_review(body)
        except MalformedReview as error:
            return _refuse(400, str(error))
        verdict = self._judge(question)
        answer = build_review(question, verdict)
        self._metrics.seconds.observe(perf_counter() - start)
        self._tell(question, verdict)
        return web.Response(body=answer, content_type="application/json")

    def _tell(self, question: Question, verdict: Verdict) -> None:
        resource = question.resource.resource
        self._metrics.reviews.labels(resource if resource in PLACES else OTHER, verdict.result).inc()
        name = "/".join(filter(None, (question.namespace, question.name or "(generated name)")))
        fields = {"object": name, "resource": str(question.resource), "operation": question.operation}
        if verdict.allowed:
            _log.debug("%s", verdict.result, extra={"fields": fields})
        else:
            _log.info("refused: %s", "; ".join(verdict.problems)[:1000], extra={"fields": fields})


@asynccontextmanager
async def serve_reviews(
    host: str, port: int, service: ReviewService, *, metrics: AdmissionMetrics, tls: ssl.SSLContext | None
) -> AsyncIterator[int]:
    """Serve while the block runs; yields the port. What is in work at its end is answered first.

    Raises:
        SettingsError: the address cannot be bound.
    """
    application = web.Application(client_max_size=MAX_BODY)
    application.add_routes([web.post(PATH, service.answer), *build_routes(metrics, service.missing)])
    runner = web.AppRunner(
        application,
        access_log=None,
        handle_signals=False,
        shutdown_timeout=5.0,
        lingering_time=service.read_deadline,  # for what a refused client still sends, so that it reads the refusal
    )
    await runner.setup()
    try:
        assert runner.server is not None
        handshake = service.read_deadline if tls else None
        try:
            server = await asyncio.get_running_loop().create_server(
                runner.server, host, port, ssl=tls, ssl_handshake_timeout=handshake
            )
        except OSError as error:
            raise SettingsError([f"address: cannot listen on {host}:{port}: {error.strerror}"]) from error
        bound = int(server.sockets[0].getsockname()[1])
        _log.info("answering reviews on %s://%s:%d%s", "https" if tls else "http", host, bound, PATH)
        try:
            yield bound
        finally:
            server.close()
    finally:
        await runner.cleanup()


def _refuse(status: int, words: str) -> web.Response:
    return web.Response(status=status, text=words + "\n")
