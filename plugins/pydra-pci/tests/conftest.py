"""A node with two functions, one of them for passthrough."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pci_node import PciNode


@pytest.fixture
def make_node(tmp_path: Path) -> Callable[..., PciNode]:
    return lambda **options: PciNode(tmp_path, **options)


@pytest.fixture
def node(tmp_path: Path) -> PciNode:
    return PciNode(tmp_path)
