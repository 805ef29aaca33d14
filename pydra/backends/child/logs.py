"""Forwards the backend's log records to the agent.

Each record is sent with its level, logger, exception and the claim of the call that logged it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from pydra.backends.wire import MAX_EXCEPTION, MAX_MESSAGE, MAX_NAME, Call, Channel, LogLine
from pydra.claim import Claim
from pydra.message_text import cut, encodable

running_call: ContextVar[Call | None] = ContextVar("pydra_running_call", default=None)
"""The call that the current task, or the thread that it started, works for."""


class ForwardingHandler(logging.Handler):
    """Sends records while the agent reads them, and counts what it has to drop meanwhile."""

    def __init__(self, channel: Channel[Any], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._channel = channel
        self._loop = loop
        self._thread = threading.get_ident()
        self._dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Send at once from the event loop's thread, so the last records before a crash arrive."""
        try:
            line = _build_line(record)
            if threading.get_ident() == self._thread:
                self._send(line)
            else:
                self._loop.call_soon_threadsafe(self._send, line)
        except Exception:  # noqa: BLE001 - as in every handler: logging must not break what logs
            self.handleError(record)

    def _send(self, line: LogLine) -> None:
        if not self._channel.is_writable:
            self._dropped += 1
            return
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            text = f"({dropped} lines were dropped: the agent reads no more for now)"
            self._channel.send(LogLine(level=logging.WARNING, logger=line.logger, message=text))
        self._channel.send(line)


def forward_logs(channel: Channel[Any], level: int) -> None:
    """Forward all records at this level or above to the agent from now on."""
    root = logging.getLogger()
    root.addHandler(ForwardingHandler(channel, asyncio.get_running_loop()))
    root.setLevel(level)


_format_exception: Callable[[Any], str] = logging.Formatter().formatException


def _build_line(record: logging.LogRecord) -> LogLine:
    call = running_call.get()
    claim: Claim | None = call.claim if call is not None else None
    exception = _format_exception(record.exc_info) if record.exc_info else ""
    return LogLine(
        level=record.levelno,
        logger=cut(encodable(record.name), MAX_NAME),
        message=cut(encodable(record.getMessage()), MAX_MESSAGE),
        exception=cut(encodable(exception), MAX_EXCEPTION),
        claim=str(claim) if claim is not None else "",
        uid=claim.uid if claim is not None else "",
    )
