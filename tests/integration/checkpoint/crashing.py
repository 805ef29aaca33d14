"""Run as a process: does a fixed series of writes, once for every step in them, and is killed at that step.

For each number of a step there is a directory; `done` in it has one byte for each call that had
returned. A run that came to its end is the last one.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
from msgspec.structs import replace

from pydra.cdi.edits import ContainerEdits
from pydra.checkpoint.record import Record, Stage
from pydra.checkpoint.store import CheckpointDirectory
from pydra.claim import AllocatedDevice, Claim

DRIVER = "gpu.example.com"
Operation = Callable[[], Awaitable[object]]


def record(uid: str, *, completed: bool = False, size: int = 0) -> Record:
    device = AllocatedDevice(request="gpu", pool="node-a", device="gpu-0")
    claim = Claim(uid=uid, namespace="default", name="one", devices=(device,))
    started = Record(claim=claim, driver=DRIVER, stage=Stage.STARTED, boot_id="boot-1")
    edits = ContainerEdits().with_env("A", "x" * size)
    if not completed:
        return started
    return replace(started, stage=Stage.COMPLETED, prepared=(device.prepared(edits),))


RECORD_STATES: tuple[dict[str, Record], ...] = (
    {},
    {"a": record("a")},
    {"a": record("a", completed=True)},
    {"a": record("a", completed=True), "b": record("b")},
    {"a": record("a", completed=True), "b": record("b", completed=True, size=100_000)},
    {"a": record("a", completed=True), "b": record("b")},
    {"a": record("a", completed=True)},
    {},
)


def _record_operations(directory: CheckpointDirectory) -> list[Operation]:
    last = dict(RECORD_STATES[4])
    return [
        directory.open,
        lambda: directory.write(last_of(1, "a")),
        lambda: directory.write(last_of(2, "a")),
        lambda: directory.write(last_of(3, "b")),
        lambda: directory.write(last["b"]),
        lambda: directory.write(last_of(5, "b")),
        lambda: directory.remove("b"),
        lambda: directory.remove("a"),
    ]


def last_of(state: int, uid: str) -> Record:
    return RECORD_STATES[state][uid]


def _run(place: Path, fatal: int) -> None:
    steps = 0

    def step(name: str) -> None:
        nonlocal steps
        steps += 1
        if steps == fatal:
            (place / "step").write_text(name)
            os.kill(os.getpid(), signal.SIGKILL)

    path = str(place / "directory")
    operations = _record_operations(CheckpointDirectory(path, step=step))

    async def main() -> None:
        for operation in operations:
            await operation()
            with (place / "done").open("ab") as done:
                done.write(b".")

    anyio.run(main)


def main(root: Path) -> None:
    fatal = 0
    while True:
        fatal += 1
        place = root / str(fatal)
        place.mkdir()
        child = os.fork()
        if not child:
            _run(place, fatal)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
            sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
