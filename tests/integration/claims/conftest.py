"""The node that most tests of claims begin with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.claims.node import Node


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Without claims."""
    return Node(tmp_path)
