"""Asks the metrics service of a TPU runtime through gRPC, with a deadline.

It is pure Python on the event loop, so that a service which does not answer costs its deadline only. Google's own
library asks the same service with the interpreter's lock held.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from grpclib.client import Channel
from grpclib.exceptions import GRPCError

from pydra_tpu.runtime_metrics.pb import Metric, MetricRequest, RuntimeMetricServiceStub
from pydra_tpu.runtime_metrics.samples import RuntimeAnswer

MEMORY_TOTAL = "tpu.runtime.hbm.memory.total.bytes"
MEMORY_USED = "tpu.runtime.hbm.memory.usage.bytes"
DUTY_CYCLE = "tpu.runtime.tensorcore.dutycycle.percent"


async def ask_runtime(host: str, port: int, deadline: float) -> RuntimeAnswer:
    """What the runtime on this port says within `deadline` seconds; not answered, if it does not say it all."""
    channel = Channel(host, port)
    try:
        async with asyncio.timeout(deadline):
            stub = RuntimeMetricServiceStub(channel)
            total = await _ask(stub, MEMORY_TOTAL)
            used = await _ask(stub, MEMORY_USED)
            duty = await _ask(stub, DUTY_CYCLE)
    except Exception:  # noqa: BLE001 - the port may be of another service, and any bytes that it sends are decoded
        return RuntimeAnswer(port=port)
    finally:
        channel.close()
    return RuntimeAnswer(port=port, answered=True, memory_total=total, memory_used=used, duty_percent=duty)


async def _ask(stub: RuntimeMetricServiceStub, name: str) -> Mapping[int, float]:
    """The metric's values by the runtime's device number; none for a metric that this runtime does not have."""
    try:
        response = await stub.get_runtime_metric(MetricRequest(metric_name=name))
    except GRPCError:
        return {}
    metrics = response.metric.metrics if response.metric else []
    return {number: value for one in metrics for number, value in _read(one).items()}


def _read(metric: Metric) -> Mapping[int, float]:
    attribute, gauge = metric.attribute, metric.gauge
    if attribute is None or attribute.value is None or attribute.value.int_attr is None or gauge is None:
        return {}
    value = gauge.as_double if gauge.as_int is None else gauge.as_int
    return {} if value is None else {attribute.value.int_attr: float(value)}
