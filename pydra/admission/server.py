"""The webhook's HTTPS endpoint: `POST /validate` answers AdmissionReviews; /metrics, /healthz and /readyz beside it.

What is no review is answered 4xx in words; the API server then does what its configuration's failurePolicy says.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from time import perf_counter

import anyio
from aiohttp import web

from pydra.admission.metrics import MALFORMED, OTHER, AdmissionMetrics
from pydra.admission.places import PLACES
from pydra.admission.review import MalformedReview, Question, Verdict, build_review, parse_review
from pydra.observability.http import Limits, build_routes, serve_routes

_log = logging.getLogger(__name__)

PATH = "/validate"
MAX_BODY = 4 << 20
"""Bytes of a review: etcd takes objects of 1.5 MiB, and that of an update comes twice."""

SMALL_BODY = 256 << 10
"""Bytes up to which a review is read at once; larger ones, of which there are hardly any, wait for each other."""

MOST_LARGE = 4

MOST_CONNECTIONS = 500
"""An API server has one connection for each review that waits."""

MOST_SAID = 1000
"""Characters of somebody else's text in a log line."""


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
        self._large = asyncio.Semaphore(MOST_LARGE)

    def missing(self) -> Sequence[str]:
        """Why no API server should come here, for /readyz."""
        return [text for text in ("told to stop" if self.leaving else "", self._trouble()) if text]

    async def answer(self, request: web.Request) -> web.Response:
        """The answer to one POST."""
        response = await self._answer(request)
        if response.status != 200:
            self._metrics.reviews.labels(OTHER, MALFORMED).inc()
            _log.warning("not a review from %s: %s", request.remote, (response.text or "").strip()[:MOST_SAID])
        if self.leaving:
            response.force_close()
        return response

    async def _answer(self, request: web.Request) -> web.Response:
        if request.content_type != "application/json":
            return _refuse(415, f"expected Content-Type application/json, found {request.content_type}")
        if (encoding := request.headers.get("Content-Encoding", "identity")) != "identity":
            return _refuse(415, f"expected a body without Content-Encoding, found {encoding}")
        small = request.content_length is not None and request.content_length <= SMALL_BODY
        try:
            with anyio.fail_after(self.read_deadline):
                async with nullcontext() if small else self._large:
                    return self._review(await request.read())
        except TimeoutError:
            return _refuse(408, f"the review did not arrive within {self.read_deadline:g} s")
        except web.HTTPRequestEntityTooLarge:
            return _refuse(413, f"a review has at most {MAX_BODY} bytes")
        except web.RequestPayloadError as error:
            return _refuse(400, f"the body cannot be read: {error}")

    def _review(self, body: bytes) -> web.Response:
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
            _log.info("refused: %s", "; ".join(verdict.problems)[:MOST_SAID], extra={"fields": fields})


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
    """Serve while the block runs; yields the port. What is in work at its end is answered first.

    Raises:
        SettingsError: the address cannot be bound.
    """
    limits = Limits(connections=most_connections, head=service.read_deadline)
    routes = [web.post(PATH, service.answer), *build_routes(metrics, service.missing)]
    async with serve_routes(
        routes, host, port, setting="address", limits=limits, largest_body=MAX_BODY, tls=tls, stop_seconds=5.0
    ) as bound:
        _log.info("answering reviews on %s://%s:%d%s", "https" if tls else "http", host, bound, PATH)
        yield bound


def _refuse(status: int, words: str) -> web.Response:
    return web.Response(status=status, text=words + "\n")
