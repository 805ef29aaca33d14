"""Stands for the metrics service of a workload's TPU runtime: a gRPC server on a loopback port."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError
from grpclib.server import Server, Stream

from pydra_tpu.runtime_metrics.client import DUTY_CYCLE, MEMORY_TOTAL, MEMORY_USED
from pydra_tpu.runtime_metrics.pb import Attribute, AttrValue, Gauge, Metric, MetricRequest, MetricResponse, TpuMetric

GIB = 2**30


class SimulatedRuntime:
    """It answers with `metrics`: values by device number, by the metric's name. While `hangs` it never does."""

    def __init__(self, metrics: Mapping[str, Mapping[int, float]]) -> None:
        self.metrics = dict(metrics)
        self.hangs = False
        self.port = 0

    async def answer(self, stream: Stream[MetricRequest, MetricResponse]) -> None:
        """One metric. Memory comes as integers, the rest as floating point numbers, as from the real one."""
        request = await stream.recv_message()
        if self.hangs:
            await asyncio.Event().wait()
        name = request.metric_name if request else ""
        if name not in self.metrics:
            raise GRPCError(Status.NOT_FOUND, f"no metric {name}")
        values = self.metrics[name].items()
        metrics = [
            Metric(
                attribute=Attribute(key="device-id", value=AttrValue(int_attr=number)),
                gauge=Gauge(as_int=int(value)) if name.endswith(".bytes") else Gauge(as_double=value),
            )
            for number, value in values
        ]
        await stream.send_message(MetricResponse(metric=TpuMetric(name=name, metrics=metrics)))

    def __mapping__(self) -> Mapping[str, Handler]:
        """The methods of the service, as grpclib wants them."""
        path = "/tpu.monitoring.runtime.RuntimeMetricService/GetRuntimeMetric"
        return {path: Handler(self.answer, Cardinality.UNARY_UNARY, MetricRequest, MetricResponse)}


def describe_workload(chips: int, devices: int, memory: int) -> Mapping[str, Mapping[int, float]]:
    """The metrics of a runtime with so many chips, each of `devices` devices and `memory` GiB, half of it used."""
    cores = range(chips * devices)
    return {
        MEMORY_TOTAL: dict.fromkeys(cores, memory * GIB / devices),
        MEMORY_USED: dict.fromkeys(cores, memory * GIB / devices / 2),
        DUTY_CYCLE: {number: 12.5 * (number % 8 + 1) for number in range(chips)},
    }


@asynccontextmanager
async def run_runtime(runtime: SimulatedRuntime) -> AsyncIterator[SimulatedRuntime]:
    """The service on a free port, which `runtime.port` names."""
    server, listening = Server([runtime]), socket.create_server(("127.0.0.1", 0))
    runtime.port = listening.getsockname()[1]
    await server.start(sock=listening)
    try:
        yield runtime
    finally:
        server.close()
        await server.wait_closed()
