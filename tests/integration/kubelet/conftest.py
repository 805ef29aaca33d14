"""The tests run on uvloop, and those of transports and their ends on asyncio's loop too, below a short path."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
import uvloop

# What belongs to the process is opened before the first test, so that it is no test's leak: libuv's pipe for signals,
# and the poller of gRPC's C core, which comes with the first channel and goes, some time later, with the last.
uvloop.new_event_loop().close()
_LAST_CHANNEL = grpc.insecure_channel("unix:/nonexistent")  # type: ignore[no-untyped-call]
with suppress(grpc.RpcError):
    _LAST_CHANNEL.unary_unary("/grpc.health.v1.Health/Check")(b"")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    loops: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"uvloop": uvloop.new_event_loop}
    if item.path.name in ("test_server.py", "test_plugin.py"):
        loops["asyncio"] = asyncio.new_event_loop
    return loops


@pytest.fixture
def root() -> Iterator[Path]:
    """A kubelet root; pytest's own directories are too deep for sockets."""
    with tempfile.TemporaryDirectory(prefix="k") as path:
        yield Path(path)
