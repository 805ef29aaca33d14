"""Who waits for a turn gives up when nobody waits for it any more, and work that has begun is left alone."""

from __future__ import annotations

import asyncio
import threading

import pytest

from pydra_nvidia.waiting import Busy, in_thread, turn

DEADLINE = 60.0


async def test_a_cancelled_call_stops_waiting_for_its_turn() -> None:
    lock, began, ended = threading.Lock(), threading.Event(), threading.Event()

    def wait() -> None:
        began.set()
        try:
            with turn(lock, "NVML"):
                pass
        finally:
            ended.set()

    with lock:
        call = asyncio.create_task(in_thread(wait))
        await asyncio.to_thread(began.wait, DEADLINE)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await asyncio.to_thread(ended.wait, DEADLINE), "its thread still waits"
    assert not lock.locked()


async def test_a_call_that_got_its_turn_goes_on_to_its_end() -> None:
    lock, inside, leave, ended = (threading.Lock(), *(threading.Event() for _ in range(3)))

    def work() -> None:
        with turn(lock, "NVML"):
            inside.set()
            leave.wait(DEADLINE)
        ended.set()

    call = asyncio.create_task(in_thread(work))
    await asyncio.to_thread(inside.wait, DEADLINE)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert lock.locked()
    leave.set()
    assert await asyncio.to_thread(ended.wait, DEADLINE)


async def test_patience_ends_with_words() -> None:
    lock = threading.Lock()

    def wait() -> None:
        with turn(lock, "NVML", patience=0.0):
            raise AssertionError("the lock was taken twice")

    with lock, pytest.raises(Busy, match=r"NVML is busy with something else for 0\.0 s; it is tried again"):
        await in_thread(wait)


async def test_others_wait_for_as_long_as_it_takes() -> None:
    lock, order = threading.Lock(), list[str]()

    def work(name: str) -> None:
        with turn(lock, "NVML"):
            order.append(name)

    with lock:
        calls = [asyncio.create_task(in_thread(work, name)) for name in "abc"]
        await asyncio.sleep(0)
    await asyncio.gather(*calls)
    assert sorted(order) == ["a", "b", "c"]
