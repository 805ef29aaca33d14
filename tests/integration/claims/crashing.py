"""Run as a process: prepares, or unprepares, a claim, once for every step in it, and is killed at that step.

Each number of a step has a directory below the root. A run that came to its end is the last one.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from tests.integration.claims.node import Node, Step

CLAIM, DEVICES = "a", ("gpu-0", "gpu-1")


class Killer:
    """Counts the steps once it is armed, and ends the process at the fatal one."""

    def __init__(self, place: Path, fatal: int) -> None:
        self._place = place
        self._fatal = fatal
        self.armed = False

    def __call__(self, name: str) -> None:
        if not self.armed:
            return
        self._fatal -= 1
        if not self._fatal:
            (self._place / "step").write_text(name)
            os.kill(os.getpid(), signal.SIGKILL)


def make_node(place: Path, kind: str, *, step: Step = lambda _: None) -> Node:
    """A node whose backend plans, unless it is "volatile".

    Claims on one that is "planned" have metadata files, and records of one with "steps" survive a reboot.
    """
    steps, metadata = kind == "steps", kind == "planned"
    node = Node(place, step=step, durable=steps, plans=kind != "volatile", steps=steps, metadata=metadata)
    node.published = set(DEVICES)
    return node


async def operate(what: str, place: Path, fatal: int, *, kind: str) -> None:
    killer = Killer(place, fatal)
    node = make_node(place, kind, step=killer)
    node.api.allocate(CLAIM, *DEVICES)
    async with node.running() as agent:
        if what == "unprepare":
            await agent.prepare(CLAIM)
        killer.armed = True
        (outcome,) = await (agent.unprepare(CLAIM) if what == "unprepare" else agent.prepare(CLAIM))
        assert outcome is None or isinstance(outcome, tuple)


def main(what: str, kind: str, root: Path) -> None:
    fatal = 0
    while True:
        fatal += 1
        place = root / str(fatal)
        place.mkdir()
        child = os.fork()
        if not child:
            asyncio.run(operate(what, place, fatal, kind=kind))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
            sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
