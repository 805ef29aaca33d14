"""An embedded node on an event loop of its own, so that the tests of a module can use one after another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, ExitStack
from functools import partial
from typing import Any, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from pydra_dev.node import EmbeddedNode

T = TypeVar("T")


class NodeThread:
    """A thread with an event loop, and what runs there until `close`."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._portal: BlockingPortal = self._stack.enter_context(start_blocking_portal())

    def enter(self, context: AbstractAsyncContextManager[T]) -> T:
        """Start it there; blocks until it has."""
        return self._stack.enter_context(self._portal.wrap_async_context_manager(context))

    def seen_from_outside(self, node: EmbeddedNode) -> EmbeddedNode:
        """The node, with a client for another event loop."""
        client: Any = _Client(node.client, self._portal)
        return EmbeddedNode(node.root, node.server, client, node.settings)

    def close(self) -> None:
        """Leave what was entered, in reverse order, and end the thread."""
        self._stack.close()


class _Client:
    """The methods of a KubeClient, run on the loop that it belongs to."""

    def __init__(self, client: Any, portal: BlockingPortal) -> None:
        self._client = client
        self._portal = portal

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await asyncio.wrap_future(self._portal.start_task_soon(partial(method, *args, **kwargs)))

        return call
