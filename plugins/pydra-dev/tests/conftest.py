"""The API server under test."""

from __future__ import annotations

from tests.integration.conftest import api_server

__all__ = ["api_server"]
