"""The chart's tests load Helm's library once: it starts threads, which stay until the end."""

from __future__ import annotations

import helm_python
import pytest


@pytest.fixture(scope="session", autouse=True)
def helm() -> str:
    """The version of Helm that renders."""
    return helm_python.helm_sdk_version()
