"""Run as a process: does or undoes the step of a node's folder, and is killed at one of its writes.

killed.py FOLDER apply|undo WRITE before|after
"""

from __future__ import annotations

import asyncio
import runpy
import sys
from pathlib import Path


def main(folder: str, what: str, write: str, when: str) -> None:
    node = runpy.run_path(str(Path(__file__).with_name("conftest.py")))["Node"](Path(folder))
    node.die_at_write(int(write), before=when == "before")
    operator = node.operator()
    step = node.step()
    asyncio.run(getattr(operator, what)(step, node.entry(step)))


if __name__ == "__main__":
    main(*sys.argv[1:])
