"""What a process does that is killed at one of its writes to a simulated machine's files."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pci_node import PciNode


def work_on_step(folder: Path, what: str, write: int, when: str) -> None:
    """Apply or undo the step of the node in this folder."""
    node = PciNode(folder)
    node.die_at_write(write, before=when == "before")
    asyncio.run(getattr(node, what)(node.step()))
