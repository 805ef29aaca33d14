"""The guards that every test of the repository has, and the API server under test."""

from __future__ import annotations

from tests.conftest import pytest_runtest_protocol, pytest_runtest_teardown
from tests.integration.conftest import api_server

__all__ = ["api_server", "pytest_runtest_protocol", "pytest_runtest_teardown"]
