"""The webhook in this process, and clients that trust its certificate's authority."""

from __future__ import annotations

import io
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec

from pydra.admission.config_types import read_backend
from pydra.admission.webhook import PATH, AdmissionMetrics, ReviewService, serve_reviews
from tests.integration.admission.certificates import Authority
from tests.unit.admission.questions import build_body, encode

JSON = {"Content-Type": "application/json"}


class Webhook(msgspec.Struct, frozen=True):
    """A running webhook for the backend sim."""

    url: str
    metrics: AdmissionMetrics
    service: ReviewService

    def count(self, resource: str, result: str) -> float:
        """How many reviews of this resource had this result."""
        labels = {"resource": resource, "result": result}
        return self.metrics.registry.get_sample_value("pydra_admission_reviews_total", labels) or 0.0


@asynccontextmanager
async def serve_webhook(
    *, tls: ssl.SSLContext | None = None, read_deadline: float = 5.0, port: int = 0, most_connections: int = 500
) -> AsyncIterator[Webhook]:
    metrics = AdmissionMetrics()
    known = read_backend("sim")
    drivers = {known.driver: known}
    service = ReviewService(drivers, metrics, read_deadline=read_deadline)
    async with serve_reviews(
        "127.0.0.1", port, service, metrics=metrics, tls=tls, most_connections=most_connections
    ) as bound:
        yield Webhook(f"{'https' if tls else 'http'}://127.0.0.1:{bound}", metrics, service)


def trusting(authority: Authority) -> ssl.SSLContext:
    """What a client of the authority's certificates checks with: the chain, the times, the address."""
    return ssl.create_default_context(cadata=authority.pem.decode())


@asynccontextmanager
async def connect(authority: Authority | None = None, *, limit: int = 100) -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(ssl=trusting(authority) if authority else True, limit=limit)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=20)) as session:
        yield session


async def review(session: aiohttp.ClientSession, url: str, *arguments: Any, **options: Any) -> dict[str, Any]:
    """The response to a review with these configs, which is sent again if it did not arrive in time."""
    body = encode(build_body(*arguments, **options))
    while True:
        async with session.post(f"{url}{PATH}", data=io.BytesIO(body), headers=JSON) as response:
            if response.status == 408:
                continue
            assert response.status == 200, await response.text()
            assert response.content_type == "application/json"
            answer: dict[str, Any] = (await response.json())["response"]
            return answer
