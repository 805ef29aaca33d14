"""The HTTP endpoint over a real socket."""

from __future__ import annotations

import socket

import aiohttp
import pytest

from pydra.errors import SettingsError
from pydra.observability.http import serve_http
from pydra.observability.metrics import Metrics


async def fetch(port: int, path: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session,
        session.get(f"http://127.0.0.1:{port}{path}") as response,
    ):
        return response.status, await response.text()


async def test_metrics_are_served_in_the_format_that_prometheus_reads() -> None:
    metrics = Metrics()
    metrics.announce_driver("sim.pydra.dev")
    async with serve_http("127.0.0.1", 0, metrics=metrics, missing=list) as port:
        status, text = await fetch(port, "/metrics")
    assert status == 200
    assert "# TYPE pydra_backend_up gauge" in text


async def test_the_agent_is_ready_when_nothing_is_missing_and_says_what_is() -> None:
    missing = ["backend sim: not started yet"]
    async with serve_http("127.0.0.1", 0, metrics=Metrics(), missing=lambda: missing) as port:
        assert await fetch(port, "/readyz") == (503, "backend sim: not started yet\n")
        missing.clear()
        assert await fetch(port, "/readyz") == (200, "ok\n")
        assert await fetch(port, "/healthz") == (200, "ok\n")
        assert (await fetch(port, "/elsewhere"))[0] == 404


async def test_an_address_in_use_is_a_settings_error_that_names_it() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=f"cannot listen on 127.0.0.1:{port}"):
            async with serve_http("127.0.0.1", port, metrics=Metrics(), missing=list):
                pass
