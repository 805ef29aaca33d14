"""What a durable record costs: `python -m benchmarks.checkpoint_writes [DIRECTORY]`, on the disk of DIRECTORY.

Compared with a plain durable write of 2 KiB (new file, fsync, rename, fsync of the directory), each
in a thread, alone and 16 at once, one after the other in turns so that both see the same machine.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from functools import partial
from statistics import median
from typing import Any, TypeAlias

import anyio
import anyio.to_thread
from msgspec.structs import replace

from pydra.cdi.edits import ContainerEdits
from pydra.checkpoint.record import Record, Stage
from pydra.checkpoint.store import CheckpointDirectory
from pydra.claim import AllocatedDevice, Claim

ROUNDS = 200
TOGETHER = 16
CONTENT = b"x" * 2048
Call: TypeAlias = Callable[[], Coroutine[Any, Any, object]]


def write_plainly(directory: str, name: str) -> None:
    """The yardstick."""
    place = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    temporary = f".{name}.tmp"
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=place)
    os.write(file, CONTENT)
    os.fsync(file)
    os.close(file)
    os.rename(temporary, name, src_dir_fd=place, dst_dir_fd=place)
    os.fsync(place)
    os.close(place)


def build_records(uid: str) -> tuple[Record, Record]:
    """Started and completed; the latter of about 2 KiB."""
    device = AllocatedDevice(request="gpu", pool="node-a", device="gpu-0")
    claim = Claim(uid=uid, namespace="default", name="one", devices=(device,))
    started = Record(claim=claim, driver="gpu.example.com", stage=Stage.STARTED, boot_id="boot", created=time.time())
    edits = ContainerEdits().with_env("ACME_VISIBLE", "0").with_device_node("/dev/acme0")
    for number in range(9):
        edits = edits.with_mount(f"/usr/lib/x86_64-linux-gnu/libacme-{number}.so.1")
    prepared = (device.prepared(edits, {"partition": 3}),)
    return started, replace(started, stage=Stage.COMPLETED, prepared=prepared)


async def _timed(calls: list[Call]) -> float:
    before = time.perf_counter()
    async with anyio.create_task_group() as group:
        for call in calls:
            group.start_soon(call)
    return time.perf_counter() - before


async def measure(root: str) -> None:
    """Print the medians."""
    plain, kept = os.path.join(root, "plain"), os.path.join(root, "kept")
    os.mkdir(plain)
    records = CheckpointDirectory(kept)
    await records.open()
    for together in (1, TOGETHER):
        times: dict[str, list[float]] = {"plain durable write": [], "started": [], "completed": [], "removed": []}
        for turn in range(ROUNDS):
            uids = [f"{together}-{turn}-{number}" for number in range(together)]
            pairs = [build_records(uid) for uid in uids]
            series: dict[str, list[Call]] = {
                "plain durable write": [partial(anyio.to_thread.run_sync, write_plainly, plain, uid) for uid in uids],
                "started": [partial(records.write, started) for started, _ in pairs],
                "completed": [partial(records.write, completed) for _, completed in pairs],
                "removed": [partial(records.remove, uid) for uid in uids],
            }
            for name, calls in series.items():
                times[name].append(await _timed(calls))
        floor = median(times["plain durable write"])
        print(f"{together} at once")
        for name, values in times.items():
            print(f"  {name:22s} {median(values) * 1e3:7.3f} ms  {median(values) / floor:5.2f} x")


def main() -> None:
    """Measure in a directory of its own, which is removed."""
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as root:
        anyio.run(measure, root)


if __name__ == "__main__":
    main()
