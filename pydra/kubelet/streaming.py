"""Streams that end where their call ends: a mixin for generated services with server streaming.

The generated base leaves a generator whose call was cancelled to the garbage collector, which runs its `finally` at
some later time, in another task.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import grpclib.server
from betterproto2.grpclib import ServiceBase


class ClosingStreams(ServiceBase):
    """Closes the method's generator before the call is over."""

    async def _call_rpc_handler_server_stream(
        self, handler: Callable[[Any], AsyncGenerator[Any, None]], stream: grpclib.server.Stream[Any, Any], request: Any
    ) -> None:
        async with aclosing(handler(request)) as responses:
            async for response in responses:
                await stream.send_message(response)
