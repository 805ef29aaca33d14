"""Run as a process: prepares, or unprepares, a claim, once for every step in it, and is killed at that step.

Each number of a step has a directory below the root. A run that came to its end is the last one.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import anyio

from tests.integration.claims.fakes import ref
from tests.integration.claims.real_node import RealNode

CLAIMS: dict[str, tuple[str, ...]] = {"a": ("gpu-0", "gpu-1")}


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


async def operate(what: str, place: Path, fatal: int) -> None:
    killer = Killer(place, fatal)
    node = RealNode(place, CLAIMS, killer)
    refs = [ref(uid) for uid in CLAIMS]
    async with node.running() as preparer:
        if what == "unprepare":
            assert all(isinstance(one, tuple) for one in (await preparer.prepare(refs)).values())
        killer.armed = True
        await (preparer.unprepare(refs) if what == "unprepare" else preparer.prepare(refs))


def main(what: str, root: Path) -> None:
    fatal = 0
    while True:
        fatal += 1
        place = root / str(fatal)
        place.mkdir()
        child = os.fork()
        if not child:
            anyio.run(operate, what, place, fatal)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
            sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
