"""Optional OpenTelemetry tracing.

Needs the extra `tracing` and a configured exporter; otherwise there is no tracer, and callers only compare with None.
The standard variables configure it (`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_TRACES_EXPORTER`, ...).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

_log = logging.getLogger(__name__)
_SWITCHES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def open_tracer(environ: Mapping[str, str], *, node: str, version: str) -> Tracer | None:
    """Open the tracer that the environment configures; None, with a warning, if the extra is missing."""
    if not any(environ.get(name) for name in _SWITCHES) or environ.get("OTEL_SDK_DISABLED") == "true":
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - optional
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError:
        _log.warning(
            "an OpenTelemetry endpoint is set, but tracing is not installed: it is the extra `tracing` of pydra-dra"
        )
        return None
    names = {"service.name": "pydra-agent", "service.version": version, "k8s.node.name": node}
    provider = TracerProvider(resource=Resource.create(names))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Tracer(provider)


class Tracer:
    """Sends spans to an OpenTelemetry provider."""

    def __init__(self, provider: object) -> None:
        self._tracer = provider.get_tracer("pydra")  # type: ignore[attr-defined]

    def record(
        self, name: str, *, seconds: float, timings: Mapping[str, float], failure: str = "", **attributes: str
    ) -> None:
        """Record an operation that ended now, with its consecutive steps and their seconds.

        Attributes are prefixed with `pydra.`; with `failure` the span has failed.
        """
        from opentelemetry.trace import Status, StatusCode, set_span_in_context  # noqa: PLC0415 - optional

        end = time.time_ns()
        begin = end - int(seconds * 1e9)
        prefixed = {f"pydra.{key}": value for key, value in attributes.items()}
        span = self._tracer.start_span(name, start_time=begin, attributes=prefixed)
        around = set_span_in_context(span)
        for step, took in timings.items():
            child = self._tracer.start_span(step, context=around, start_time=begin)
            begin += int(took * 1e9)
            child.end(end_time=begin)
        if failure:
            span.set_status(Status(StatusCode.ERROR, failure))
        span.end(end_time=end)
