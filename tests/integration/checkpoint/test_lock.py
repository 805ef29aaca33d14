"""The lock between instances: shared inside one, fair between two, free after a kill."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from pydra.checkpoint.lock import InstanceLock
from pydra.errors import CheckpointError

HOLDER = """
import anyio, sys
from pydra.checkpoint.lock import InstanceLock

async def main():
    async with InstanceLock(sys.argv[1]).hold():
        print("held", flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""


async def test_tasks_of_one_process_hold_it_together(tmp_path: Path) -> None:
    lock = InstanceLock(str(tmp_path / "lock"), deadline=5)
    async with lock.hold(), lock.hold():
        pass


async def test_an_instance_waits_until_the_last_task_of_the_other_is_done(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    ours, theirs = InstanceLock(path), InstanceLock(path, deadline=0.02, poll=0.001)
    async with ours.hold():
        async with ours.hold():
            pass
        with pytest.raises(CheckpointError, match=r"has kept .*lock locked for 0.02 s"):
            async with theirs.hold():
                pytest.fail("both hold it")
    async with theirs.hold():
        pass


async def test_a_waiting_instance_gets_its_turn_though_tasks_keep_coming(tmp_path: Path) -> None:
    ours, theirs = (InstanceLock(str(tmp_path / "lock"), deadline=10, poll=0.001) for _ in range(2))
    busy = anyio.Event()

    async def keep_busy() -> None:
        while True:
            async with ours.hold():
                busy.set()
                await anyio.lowlevel.checkpoint()

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(keep_busy)
            await busy.wait()
            for _ in range(5):
                async with theirs.hold():
                    pass
            group.cancel_scope.cancel()


async def test_two_busy_instances_never_hold_it_at_once_and_both_get_on(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    holding: dict[int, int] = {0: 0, 1: 0}
    turns: dict[int, int] = {0: 0, 1: 0}

    async def work(instance: int, lock: InstanceLock) -> None:
        for _ in range(10):
            async with lock.hold():
                holding[instance] += 1
                turns[instance] += 1
                assert not holding[1 - instance]
                await anyio.lowlevel.checkpoint()
                assert not holding[1 - instance]
                holding[instance] -= 1

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            for instance in (0, 1):
                lock = InstanceLock(path, deadline=20, poll=0.001)
                for _ in range(4):
                    group.start_soon(work, instance, lock)
    assert turns == {0: 40, 1: 40}


async def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    holder = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDER, path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert holder.stdout is not None
    assert await asyncio.wait_for(holder.stdout.readline(), 20) == b"held\n"
    with pytest.raises(CheckpointError, match="another instance of the agent has kept"):
        async with InstanceLock(path, deadline=0.05).hold():
            pass
    holder.send_signal(signal.SIGKILL)
    async with InstanceLock(path, deadline=10, poll=0.001).hold():
        pass
    await holder.communicate()


async def test_a_cancelled_wait_leaves_the_turn_to_the_next(tmp_path: Path) -> None:
    one, two, three = (InstanceLock(str(tmp_path / "lock"), deadline=5, poll=0.001) for _ in range(3))
    async with one.hold():
        with anyio.move_on_after(0.02) as scope:
            async with two.hold():
                pytest.fail("both hold it")
        assert scope.cancelled_caught
    async with three.hold(), three.hold():
        pass
    async with two.hold():
        pass


async def test_an_error_inside_releases_it(tmp_path: Path) -> None:
    ours, theirs = (InstanceLock(str(tmp_path / "lock"), deadline=5) for _ in range(2))
    with pytest.raises(ValueError, match="inside"):
        async with ours.hold():
            raise ValueError("inside")
    async with theirs.hold():
        pass


async def test_the_file_is_closed_to_others_and_to_child_processes(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    before = os.umask(0)
    try:
        async with InstanceLock(str(path)).hold():
            descriptor = _descriptor_of(path)
            assert not os.get_inheritable(descriptor)
            assert stat.S_IMODE(os.fstat(descriptor).st_mode) == 0o600
    finally:
        os.umask(before)


async def test_a_lock_that_cannot_be_made_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="the directory is gone"):
        async with InstanceLock(str(tmp_path / "absent" / "lock")).hold():
            pass
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="opening the lock"):
        async with InstanceLock(str(tmp_path / "link")).hold():
            pass


def _descriptor_of(path: Path) -> int:
    for name in os.listdir("/proc/self/fd"):
        link = f"/proc/self/fd/{name}"
        if os.path.islink(link) and os.readlink(link) == str(path):
            return int(name)
    raise AssertionError("not open")
