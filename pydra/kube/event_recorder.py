"""The recorder of Events that writes through a client of the API server."""

from __future__ import annotations

from collections.abc import Callable

from pydra.kube.api_resources import EVENTS
from pydra.kube.client import KubeClient
from pydra.observability.events import Create, EventDeduplicator, EventRecorder, Repetition


def build_event_recorder(
    client: KubeClient, *, controller: str, instance: str, report: Callable[[str], None] = lambda _: None
) -> EventRecorder:
    """A recorder for the controller of this name; Events about objects without a namespace go to `default`."""
    deduplicator = EventDeduplicator(controller=controller, instance=instance, default_namespace="default")

    async def write(event: Create | Repetition) -> None:
        if isinstance(event, Create):
            await client.create(EVENTS, event.body, namespace=event.namespace)
        else:
            await client.patch(EVENTS, event.name, event.body, namespace=event.namespace)

    return EventRecorder(write, deduplicator, report=report)
