"""The chart's tests load Helm's library once: it starts threads, which stay until the end."""

from __future__ import annotations

import os

import pytest

# Go's garbage collector is a fifth of the time of a rendering, and a test needs little memory.
os.environ.setdefault("GOGC", "400")

import helm_python


@pytest.fixture(scope="session", autouse=True)
def helm() -> str:
    """The version of Helm that renders."""
    return helm_python.helm_sdk_version()
