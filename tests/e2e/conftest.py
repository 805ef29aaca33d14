"""Tests against a real cluster are skipped, saying so, where there is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import pytest_asyncio

from tests.e2e.cluster import missing
from tests.integration.api_handle import ApiHandle


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = missing()
    for item in items:
        if "tests/e2e" in str(item.path):
            item.add_marker(pytest.mark.timeout(600))
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session", autouse=True)
def open_certificates() -> None:
    """Of this scope, because kubernetes-asyncio keeps a kubeconfig's certificates in files open until the end."""


@pytest_asyncio.fixture(autouse=True)
async def required_gates(request: pytest.FixtureRequest) -> None:
    """Skips a test at once where the cluster has a gate of its marker `gates` off."""
    await ApiHandle(Path(os.environ["KUBECONFIG"]), None).require(request.node)
