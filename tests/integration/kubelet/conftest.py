"""Every test of the kubelet's servers runs on asyncio's loop and on uvloop, below a directory with a short path."""

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
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
def root() -> Iterator[Path]:
    """A kubelet root; pytest's own directories are too deep for sockets."""
    with tempfile.TemporaryDirectory(prefix="k") as path:
        yield Path(path)
