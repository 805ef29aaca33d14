"""What is done while NVML is closed: this process has no GPU open, and no other task can open one."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest


def write(node: Any, path: str, text: str) -> None:
    node.tree.write(node.tree.sys(f"bus/pci/{path}"), text)


async def test_the_session_is_closed_for_the_work_and_opened_again_after_it(node: Any) -> None:
    await node.session.run(lambda nvml: nvml.call("nvmlDeviceGetCount"))
    assert len(node.machine.clients()) == 1
    assert await node.session.run_closed(node.machine.clients) == {}
    generation = node.session.generation
    await node.session.run(lambda nvml: nvml.call("nvmlDeviceGetCount"))
    assert node.session.generation == generation + 1


async def test_nobody_opens_it_before_the_work_ends(node: Any) -> None:
    started, go_on = threading.Event(), threading.Event()

    def work() -> list[int]:
        started.set()
        assert go_on.wait(20)
        return list(node.machine.clients())

    closed = asyncio.create_task(node.session.run_closed(work))
    await asyncio.to_thread(started.wait, 20)
    other = asyncio.create_task(node.session.run(lambda nvml: nvml.call("nvmlDeviceGetCount")))
    await asyncio.sleep(0)
    go_on.set()
    assert await closed == []
    assert await other == 2


async def test_a_work_that_fails_leaves_a_session_that_can_be_opened(node: Any) -> None:
    def work() -> None:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        await node.session.run_closed(work)
    assert await node.session.run(lambda nvml: nvml.call("nvmlDeviceGetCount")) == 2


def test_a_function_in_use_is_not_taken_from_its_driver(node: Any) -> None:
    node.inject.start_process(0, pid=4711)
    with pytest.raises(OSError, match="in use"):
        write(node, f"devices/{node.GPU}/driver/unbind", node.GPU)
