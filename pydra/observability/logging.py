"""Log lines: text for a person at a terminal, JSON for everybody else; each with the fields of its call."""

from __future__ import annotations

import logging
import sys
import time
from logging.handlers import WatchedFileHandler
from typing import Any

import msgspec

from pydra.observability.context import log_fields
from pydra.settings import LogFormat, LogLevel

_COLOURS = {"WARNING": "\033[33m", "ERROR": "\033[31m", "CRITICAL": "\033[31;1m", "DEBUG": "\033[2m"}


class TextFormatter(logging.Formatter):
    """`12:03:04.567 INFO  slices: published 8 devices  driver=gpu.example.com`, the field `details` below the line."""

    def __init__(self, *, colours: bool) -> None:
        super().__init__()
        self._colours = colours

    def format(self, record: logging.LogRecord) -> str:
        """One line, and the traceback below it where there is one."""
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        known = _fields(record)
        details = known.pop("details", "")
        fields = "".join(f"  {name}={value}" for name, value in known.items())
        where = record.name.removeprefix("pydra.")
        line = f"{clock}.{record.msecs:03.0f} {record.levelname:<7} {where}: {record.getMessage()}{fields}"
        if self._colours and record.levelname in _COLOURS:
            line = f"{_COLOURS[record.levelname]}{line}\033[0m"
        below = [str(details).rstrip()] if details else []
        below += [self.formatException(record.exc_info)] if record.exc_info else []
        return "\n".join([line, *below])


class JsonFormatter(logging.Formatter):
    """One JSON object per line: `time` (RFC 3339, UTC), `level`, `logger`, `message`, and the call's fields."""

    def format(self, record: logging.LogRecord) -> str:
        """The object, with `traceback` where there is one."""
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


def configure_logs(*, level: LogLevel, form: LogFormat, file: str) -> None:
    """Send the root logger to `file`, or to stderr; called again on SIGHUP, it reopens the file.

    Raises:
        OSError: the file cannot be opened; the former destination stays.
    """
    handler: logging.Handler = WatchedFileHandler(file) if file else logging.StreamHandler(sys.stderr)
    terminal = not file and sys.stderr.isatty()
    text = form is LogFormat.TEXT or (form is LogFormat.AUTO and terminal)
    handler.setFormatter(TextFormatter(colours=terminal) if text else JsonFormatter())
    root = logging.getLogger()
    former = list(root.handlers)
    root.addHandler(handler)
    for old in former:
        root.removeHandler(old)
        old.close()
    root.setLevel(level.value.upper())
    # These tell of every request at INFO or DEBUG, which the agent's own lines already do with the claim's name.
    for chatty in ("asyncio", "hpack", "grpclib", "aiohttp.access"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, root.level))


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    extra = getattr(record, "fields", None)
    return {**log_fields(), **(extra if isinstance(extra, dict) else {})}
