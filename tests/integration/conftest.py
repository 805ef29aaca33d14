"""What integration tests share: an API server, embedded or, with KUBECONFIG set, real."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.integration.api_handle import ApiHandle, open_api


@pytest_asyncio.fixture
async def api_server(request: pytest.FixtureRequest) -> AsyncIterator[ApiHandle]:
    """The API server under test, with nothing asked of it that a real one lacks, but for the test's `gates`."""
    async with open_api() as handle:
        await handle.require(request.node)
        yield handle
