"""Opens the client under test on the API server under test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from pydra.kube.client import KubeClient
from pydra.kube.credentials import load_credentials
from tests.integration.api_handle import ApiHandle


@asynccontextmanager
async def open_client(api: ApiHandle, **options: Any) -> AsyncIterator[KubeClient]:
    credentials = await load_credentials(environ={}, kubeconfig=str(api.kubeconfig))
    async with KubeClient(credentials, **options) as client:
        yield client
