"""The public API for controllers: a client, caches that include one's own writes, leader election, Events, metrics.

A controller runs beside the API server, not on nodes, so nothing of a backend is here, and no backend's process imports
this package. `pydra_nvidia.compute_domain.controller` is the example.
"""

from pydra.controllers.leader_election import LeaderElection, LeaseTimes, LostLease
from pydra.controllers.mutation_cache import Cache, Change
from pydra.errors import Conflict, KubeError, NotFound, Unavailable
from pydra.kube.api_resources import (
    EVENTS,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    JsonObject,
    Resource,
    object_key,
)
from pydra.kube.client import KubeClient
from pydra.kube.credentials import load_credentials
from pydra.kube.event_recorder import EventRecorder, EventRequest, Subject
from pydra.kube.informer import Informer, WatchFailed
from pydra.observability.http import serve_http
from pydra.observability.logging import configure_logs
from pydra.observability.metrics import ProcessMetrics
from pydra.settings import LogFormat, LogLevel

__all__ = [
    "EVENTS",
    "NODES",
    "PODS",
    "RESOURCE_CLAIMS",
    "RESOURCE_CLAIM_TEMPLATES",
    "RESOURCE_SLICES",
    "Cache",
    "Change",
    "Conflict",
    "EventRecorder",
    "EventRequest",
    "Informer",
    "JsonObject",
    "KubeClient",
    "KubeError",
    "LeaderElection",
    "LeaseTimes",
    "LogFormat",
    "LogLevel",
    "LostLease",
    "NotFound",
    "ProcessMetrics",
    "Resource",
    "Subject",
    "Unavailable",
    "WatchFailed",
    "configure_logs",
    "load_credentials",
    "object_key",
    "serve_http",
]
