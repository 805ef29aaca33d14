"""Settings of all tests, and guards around every test: nothing may outlive it, and nothing may block the event loop.

A test that leaves a task, a file descriptor or a child process behind fails, with its name.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import inspect
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Test machines are shared: how long an example takes says nothing about the code. The examples are the same in each
# run, so that a red run is due to what changed; `--hypothesis-profile=search` looks for new ones.
settings.register_profile(
    "pydra",
    deadline=None,
    max_examples=20,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("search", settings.get_profile("pydra"), max_examples=500, derandomize=False)
settings.load_profile("pydra")

# A shell starts background commands with SIGINT ignored, and so would be the programs that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Debug mode finds callbacks that block. Where each was scheduled is not needed, and costs a tenth of the tests' time.
asyncio.constants.DEBUG_STACK_DEPTH = 0  # type: ignore[attr-defined]

BLOCKED_SECONDS = float(os.environ.get("TEST_BLOCKED_SECONDS", "5"))
"""The loop may not stand still for longer, the time without a processor apart: test machines are shared, or emulated.

So many, because a slow disk counts, and tests write whole trees of simulated machines.
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            item.obj = _guard_loop(item.obj)


# What thousands of tests consist of stays until the end, so no garbage collection need look at it: that is a tenth of
# the time until the first test, and 0.2 s each time later.
gc.disable()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


def _guard_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    @functools.wraps(test)
    async def guarded(*args: Any, **kwargs: Any) -> None:
        loop = asyncio.get_running_loop()
        loop.set_debug(True)
        # To futures and to aiohttp it says that it is not: each would keep its stack, a third of the tests' time.
        loop.get_debug = lambda: False  # type: ignore[method-assign]
        loop.slow_callback_duration = BLOCKED_SECONDS
        before = asyncio.all_tasks()
        with _BlockedLoop() as blocked:
            await asyncio.sleep(0)  # a step of the task is judged if debug mode is on before it
            await test(*args, **kwargs)
            await asyncio.sleep(0)  # and once it has ended
            await _settle(before)
        leaked = asyncio.all_tasks() - before
        assert not leaked, f"tasks outlive the test: {sorted(task.get_name() for task in leaked)}"
        assert not blocked.lines(), f"the event loop was blocked: {blocked.lines()}"

    return guarded


async def _settle(before: set[asyncio.Task[Any]]) -> None:
    # A connection that was just closed ends its task within a few turns of the loop.
    for _ in range(50):
        if asyncio.all_tasks() <= before:
            return
        await asyncio.sleep(0)


class _BlockedLoop(logging.Handler):
    """Collects what asyncio's debug mode says of slow callbacks."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._slow: list[tuple[float, str]] = []
        self._waited = _read_waited()

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg.startswith("Executing") and isinstance(record.args, tuple):
            self._slow.append((float(str(record.args[-1])), record.getMessage()))

    def lines(self) -> list[str]:
        """Those that were too long even if all waiting for a processor had fallen into them."""
        waited = _read_waited() - self._waited
        return [line for seconds, line in self._slow if seconds - waited > BLOCKED_SECONDS]

    def __enter__(self) -> _BlockedLoop:
        logging.getLogger("asyncio").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("asyncio").removeHandler(self)


def _read_waited() -> float:
    """Seconds that this thread was ready to run and others ran, of this machine or of others on its processors."""
    try:
        with open("/proc/thread-self/schedstat", encoding="ascii") as file:
            waited = int(file.read().split()[1]) / 1e9
        with open("/proc/stat", encoding="ascii") as file:
            stolen = int(file.readline().split()[8]) / os.sysconf("SC_CLK_TCK")
        return waited + stolen
    except (OSError, IndexError, ValueError):  # a kernel that does not count
        return 0.0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    item.stash[_BEFORE] = (_descriptors(), _children())
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    result = yield
    descriptors, children = item.stash[_BEFORE]
    if leaked := _descriptors() - descriptors:
        gc.collect()
    # Looked at again: one that a thread of the interpreter is about to close is none.
    if leaked and (leaked := _descriptors() - descriptors) and (leaked := (leaked - _shared(item)) & _descriptors()):
        pytest.fail(f"file descriptors outlive the test: {[_target(fd) for fd in sorted(leaked)]}")
    if (orphans := _children() - children) and (orphans := orphans - _shared(item)):
        pytest.fail(f"child processes outlive the test: {sorted(orphans)}")
    return result


_BEFORE = pytest.StashKey[tuple[set[int], set[int]]]()


def _shared(item: pytest.Item) -> set[int]:
    # What a fixture of a wider scope opened during this test stays open on purpose.
    definitions = getattr(item, "_fixtureinfo").name2fixturedefs if hasattr(item, "_fixtureinfo") else {}  # noqa: B009
    wider = any(one.scope != "function" and one.baseid for found in definitions.values() for one in found)
    return (_descriptors() | _children()) if wider else set()


def _descriptors() -> set[int]:
    return {fd for fd in map(int, os.listdir("/proc/self/fd")) if not _target(fd).startswith(_NOT_COUNTED)}


_NOT_COUNTED = ("/dev/", "anon_inode:[eventpoll]", "anon_inode:[eventfd]", "closed")  # gRPC wakes its threads with some


def _target(descriptor: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return "closed"


def _children() -> set[int]:
    found: set[int] = set()
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread may end meanwhile
            children = os.open(f"/proc/self/task/{thread}/children", os.O_RDONLY)
            try:
                found.update(map(int, os.read(children, 1 << 16).split()))
            finally:
                os.close(children)
    return found
