"""What all drivers of one agent share. A value of references."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pydra.kube.client import KubeClient
from pydra.observability.events import Notice
from pydra.observability.metrics import Metrics
from pydra.observability.tracing import Tracer
from pydra.settings import Settings


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """The agent around a driver; `taken` maps the driver names in use to the backends served under them."""

    settings: Settings
    client: KubeClient
    metrics: Metrics
    record: Callable[[Notice], None]
    tracer: Tracer | None
    taken: dict[str, str] = field(default_factory=dict)
