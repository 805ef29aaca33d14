"""gRPC's own health service on both sockets, as probes use it."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from pydra.kubelet.pb import HealthCheckRequest, HealthCheckResponse
from tests.integration.kubelet.fakes import (
    DEADLINE,
    Failed,
    Kubelet,
    grpcio_kubelet,
    prepare,
    serve,
    wait_until,
)


async def check(kubelet: Kubelet, service: str) -> str:
    request = HealthCheckRequest(service=service)
    return str((await kubelet.unary("/grpc.health.v1.Health/Check", request, HealthCheckResponse)).status.name)


def watch(kubelet: Kubelet, service: str) -> Any:
    request = HealthCheckRequest(service=service)
    return aclosing(cast("Any", kubelet.stream("/grpc.health.v1.Health/Watch", request, HealthCheckResponse)))


async def test_a_server_knows_its_own_services(root: Path) -> None:
    async with serve(root) as running:
        async with grpcio_kubelet(running.paths.service) as kubelet:
            for service in ("", "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", "v1.DRAResourceHealth"):
                assert await check(kubelet, service) == "SERVING"
            with pytest.raises(Failed, match=r"NOT_FOUND: unknown service pluginregistration\.Registration"):
                await check(kubelet, "pluginregistration.Registration")
        async with grpcio_kubelet(running.paths.registration) as kubelet:
            assert await check(kubelet, "pluginregistration.Registration") == "SERVING"


async def test_a_watcher_hears_that_the_server_stops(root: Path) -> None:
    async with (
        serve(root) as running,
        grpcio_kubelet(running.paths.service) as kubelet,
        anyio.create_task_group() as group,
    ):
        running.claims.gate = anyio.Event()
        group.start_soon(prepare, kubelet, "uid-1")
        await wait_until(lambda: running.claims.asked)
        async with watch(kubelet, "") as known, watch(kubelet, "nobody") as unknown:
            with anyio.fail_after(DEADLINE):
                assert (await anext(known)).status.name == "SERVING"
                assert (await anext(unknown)).status.name == "SERVICE_UNKNOWN"
                running.stop()
                assert [status.status.name async for status in known] == ["NOT_SERVING"]
                assert [status.status.name async for status in unknown] == ["SERVICE_UNKNOWN"]
        running.claims.gate.set()
