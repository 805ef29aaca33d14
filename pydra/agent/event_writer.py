"""Writes Kubernetes Events with the client that the agent has."""

from __future__ import annotations

from pydra.kube.client import KubeClient
from pydra.kube.resources import EVENTS, JsonObject


class KubeEventWriter:
    """The two requests that the recorder needs."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def create_event(self, namespace: str, body: JsonObject) -> None:
        """Write a new Event."""
        await self._client.create(EVENTS, body, namespace=namespace)

    async def patch_event(self, namespace: str, name: str, body: JsonObject) -> None:
        """Merge into an Event."""
        await self._client.patch(EVENTS, name, body, namespace=namespace)
