"""What integration tests share: an API server, embedded or, with KUBECONFIG set, real."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.integration.api_handle import ApiHandle, open_api


@pytest_asyncio.fixture
async def api_server() -> AsyncIterator[ApiHandle]:
    """The API server under test, with nothing asked of it that a real one lacks."""
    async with open_api() as handle:
        yield handle
