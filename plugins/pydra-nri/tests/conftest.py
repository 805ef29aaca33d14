"""A directory whose path is short enough for a socket."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def short_path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="nri", dir="/tmp", ignore_cleanup_errors=True) as path:
        yield Path(path)


@pytest.fixture
def socket(short_path: Path) -> str:
    return str(short_path / "nri.sock")
