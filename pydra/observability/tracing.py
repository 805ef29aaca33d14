"""OpenTelemetry spans, where the extra `tracing` is installed and an exporter is configured.

Elsewhere there is no tracer, which costs a caller one comparison with None. The standard variables decide
(`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_TRACES_EXPORTER`, ...), so that an admin configures pydra like everything else
that is traced.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

_log = logging.getLogger(__name__)
_SWITCHES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def open_tracer(environ: Mapping[str, str], *, node: str, version: str) -> Tracer | None:
    """The tracer that the environment asks for; None, with a warning, when it asks and the extra is missing."""
    if not any(environ.get(name) for name in _SWITCHES) or environ.get("OTEL_SDK_DISABLED") == "true":
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - optional
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError:
        _log.warning("an OpenTelemetry endpoint is set, but tracing is not installed: pip install 'pydra-dra[tracing]'")
        return None
    names = {"service.name": "pydra-agent", "service.version": version, "k8s.node.name": node}
    provider = TracerProvider(resource=Resource.create(names))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Tracer(provider)


class Tracer:
    """Opens spans of an OpenTelemetry provider."""

    def __init__(self, provider: object) -> None:
        self._tracer = provider.get_tracer("pydra")  # type: ignore[attr-defined]

    @contextmanager
    def span(self, name: str, **attributes: str | int) -> Iterator[None]:
        """A span around the block, failed if an exception leaves it; attributes are prefixed with `pydra.`."""
        prefixed = {f"pydra.{key}": value for key, value in attributes.items()}
        with self._tracer.start_as_current_span(name, attributes=prefixed):
            yield
