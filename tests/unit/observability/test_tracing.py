"""Tracing: spans where an exporter is configured, nothing where none is, a plain word where the extra is missing."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pydra.observability.tracing import Tracer, open_tracer


@pytest.mark.parametrize(
    "environ", [{}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318", "OTEL_SDK_DISABLED": "true"}]
)
def test_without_an_exporter_nothing_is_traced(environ: dict[str, str]) -> None:
    assert open_tracer(environ, node="n", version="1") is None


def test_a_span_has_its_name_its_parent_and_what_failed() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = Tracer(provider)
    with pytest.raises(ValueError, match="broken"), tracer.span("prepare", claim="team/gpu"), tracer.span("backend"):
        raise ValueError("broken")
    inner, outer = exporter.get_finished_spans()
    assert (inner.name, outer.name) == ("backend", "prepare")
    assert inner.parent is not None
    assert inner.parent.span_id == outer.context.span_id
    assert outer.attributes is not None
    assert outer.attributes["pydra.claim"] == "team/gpu"
    assert not outer.status.is_ok
    provider.shutdown()
