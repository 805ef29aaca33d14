"""Health streams over a real socket: complete, repeated, and ended well."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from pydra.devices import DeviceHealth, Health, HealthStatus
from pydra.kubelet.health_service import HealthStreams
from pydra.kubelet.pb import NodeWatchResourcesRequest, NodeWatchResourcesResponse
from pydra.kubelet.plugin import Stopped
from tests.integration.kubelet.fakes import (
    DEADLINE,
    Kubelet,
    Running,
    grpcio_kubelet,
    prepare,
    serve,
    wait_until,
)

SICK = Health(status=HealthStatus.UNHEALTHY, message="XID 79: fell off the bus")


@pytest.fixture(params=["v1", "v1alpha1"])
def version(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def device(name: str, health: Health = Health()) -> DeviceHealth:  # noqa: B008 - frozen
    return DeviceHealth(pool="node-1", device=name, status=health.status, message=health.message)


def watch(kubelet: Kubelet, version: str) -> Any:
    """The stream, to be closed by the caller."""
    path = f"/{version}.DRAResourceHealth/NodeWatchResources"
    return aclosing(cast("Any", kubelet.stream(path, NodeWatchResourcesRequest(), NodeWatchResourcesResponse)))


async def states(reports: AsyncIterator[Any]) -> dict[str, str]:
    with anyio.fail_after(DEADLINE):
        report = await anext(reports)
    return {one.device.device_name: one.health.name for one in report.devices}


def open_streams(running: Running) -> int:
    counts = running.heard(HealthStreams)
    return counts[-1].count if counts else 0


async def test_a_stream_tells_the_state_at_once_and_every_change(root: Path, version: str) -> None:
    async with serve(root, health_period=60) as running, grpcio_kubelet(running.paths.service) as kubelet:
        running.board.publish((device("gpu-0"), device("gpu-1")))
        async with watch(kubelet, version) as reports:
            assert await states(reports) == {"gpu-0": "HEALTHY", "gpu-1": "HEALTHY"}
            running.board.publish((device("gpu-0", SICK), device("gpu-1")))
            assert await states(reports) == {"gpu-0": "UNHEALTHY", "gpu-1": "HEALTHY"}
            running.board.publish((device("gpu-0"), device("gpu-1")))
            assert await states(reports) == {"gpu-0": "HEALTHY", "gpu-1": "HEALTHY"}


async def test_a_list_is_sent_again_while_nothing_changes(root: Path, version: str) -> None:
    async with serve(root, health_period=0.01) as running, grpcio_kubelet(running.paths.service) as kubelet:
        running.board.publish((device("gpu-0", SICK),), updated=1_700_000_000)
        async with watch(kubelet, version) as reports:
            for _ in range(3):
                with anyio.fail_after(DEADLINE):
                    [one] = (await anext(reports)).devices
                assert (one.health.name, one.message) == ("UNHEALTHY", "XID 79: fell off the bus")
                assert (one.last_updated_time, one.health_check_timeout_seconds) == (1_700_000_000, 30)


async def test_a_kubelet_that_reconnects_hears_the_latest(root: Path, version: str) -> None:
    async with serve(root, health_period=60) as running:
        for health in (Health(), SICK):
            running.board.publish((device("gpu-0", health),))
            async with grpcio_kubelet(running.paths.service) as kubelet, watch(kubelet, version) as reports:
                assert await states(reports) == {"gpu-0": health.status.name}
                assert open_streams(running) == 1
            await wait_until(lambda: open_streams(running) == 0)


async def test_several_streams_and_calls_share_one_connection(root: Path) -> None:
    async with serve(root, health_period=60) as running, grpcio_kubelet(running.paths.service) as kubelet:
        running.board.publish((device("gpu-0"),))
        async with watch(kubelet, "v1") as one, watch(kubelet, "v1alpha1") as two:
            assert await states(one) == await states(two) == {"gpu-0": "HEALTHY"}
            assert open_streams(running) == 2
            assert (await prepare(kubelet, "uid-1")).claims["uid-1"].error == ""
            running.board.publish((device("gpu-0", SICK),))
            assert await states(one) == await states(two) == {"gpu-0": "UNHEALTHY"}


async def test_a_stream_ends_cleanly_and_at_once_when_the_plugin_stops(root: Path, version: str) -> None:
    async with serve(root, health_period=60) as running, grpcio_kubelet(running.paths.service) as kubelet:
        async with watch(kubelet, version) as reports:
            assert await states(reports) == {}
            running.stop()
            with pytest.raises(StopAsyncIteration):
                await states(reports)
        await wait_until(lambda: running.heard(Stopped))
        assert running.heard(Stopped)[0].cut_off == 0
