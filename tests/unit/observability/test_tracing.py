"""Tracing: spans where an exporter is configured, nothing where none is, a plain word where the extra is missing."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pydra.agent.metrics_and_events import Reports
from pydra.claim import ClaimRef
from pydra.claims.work_queue import Operation, OperationEnded
from pydra.errors import ClaimError
from pydra.observability.metrics import Metrics
from pydra.observability.tracing import Tracer, open_tracer


@pytest.mark.parametrize(
    "environ", [{}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318", "OTEL_SDK_DISABLED": "true"}]
)
def test_without_an_exporter_nothing_is_traced(environ: dict[str, str]) -> None:
    assert open_tracer(environ, node="n", version="1") is None


def test_an_operation_is_a_span_with_its_steps_one_after_the_other_and_its_failure() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    Reports(Metrics(), lambda _: None, node="n", driver="gpu.example.com", tracer=Tracer(provider))(
        OperationEnded(
            driver="gpu.example.com",
            operation=Operation.PREPARE,
            ref=ClaimRef(uid="u-1", namespace="team", name="gpu"),
            error=ClaimError("no room"),
            seconds=3.0,
            timings={"fetch": 1.0, "backend": 1.5},
        )
    )
    fetch, backend, whole = exporter.get_finished_spans()
    assert [span.name for span in (fetch, backend, whole)] == ["fetch", "backend", "prepare"]
    assert fetch.start_time == whole.start_time
    assert fetch.end_time == backend.start_time
    assert backend.parent is not None
    assert whole.context is not None
    assert backend.parent.span_id == whole.context.span_id
    assert whole.end_time is not None
    assert whole.start_time == whole.end_time - 3 * 10**9
    attributes = {"pydra.driver": "gpu.example.com", "pydra.claim": "team/gpu", "pydra.uid": "u-1"}
    assert (whole.status.description, dict(whole.attributes or {})) == ("no room", attributes)
