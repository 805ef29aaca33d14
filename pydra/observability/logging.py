"""Log formatting (text and JSON) and per-call log fields.

The fields (claim, uid, backend, request id, ...) are in a context variable: the tasks started for a call inherit them.
Every prepare writes a line, so a line is formatted with few calls: no search for the caller's file and line, which no
line contains, one write without a buffer, and a time stamp that is formatted once a second.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from _thread import allocate_lock
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

import msgspec

from pydra.message_text import UNSAFE, cut, escape
from pydra.settings import LogFormat, LogLevel

_log = logging.getLogger(__name__)
MAX_TEXT = 16 * 1024
"""Characters of a line's message, and of each of its fields; longer ones are cut."""

MAX_DETAILS = 128 * 1024
"""Characters of the details and of the traceback of a line; longer ones are cut."""

_STDERR = 2
_COLOURS = {"WARNING": "\033[33m", "ERROR": "\033[31m", "CRITICAL": "\033[31;1m", "DEBUG": "\033[2m"}
_FIELDS: ContextVar[Mapping[str, str]] = ContextVar("pydra_log_fields", default={})  # noqa: B039 - never mutated
_TRACEBACKS = logging.Formatter()


def set_logging_fields(**fields: str) -> None:
    """Add fields for the rest of this task, and for every task started in it; new values hide earlier ones."""
    _FIELDS.set({**_FIELDS.get(), **fields})


@contextmanager
def logging_fields(**fields: str) -> Iterator[None]:
    """Add fields for the block, and for every task started in it; inner values hide outer ones."""
    token = _FIELDS.set({**_FIELDS.get(), **fields})
    try:
        yield
    finally:
        _FIELDS.reset(token)


def format_text(record: logging.LogRecord, *, colours: bool = False) -> bytes:
    """`12:03:04.567 INFO  slices: published 8 devices  driver=gpu.example.com`, and below it details and traceback.

    Control characters are escaped. What stands below is indented, so only the agent begins lines with a time.
    """
    known = _fields(record)
    details = known.pop("details", "")
    fields = "".join([f"  {name}={value}" for name, value in known.items()])
    text = cut(record.getMessage(), MAX_TEXT)
    clock = f"{_local_time(int(record.created))}.{int(record.msecs):03d}"
    line = f"{clock} {record.levelname:<7} {record.name.removeprefix('pydra.')}: {text}{fields}"
    line = escape(line)
    if colours and record.levelname in _COLOURS:
        line = f"{_COLOURS[record.levelname]}{line}\033[0m"
    if details:
        line += _indent(str(details))
    if record.exc_info:
        line += _indent(_TRACEBACKS.formatException(record.exc_info))
    return line.encode(errors="backslashreplace")


def format_json(record: logging.LogRecord) -> bytes:
    """Format JSON: `time` (RFC 3339, UTC), `level`, `logger`, `message`, the call's fields, `traceback` if any."""
    text = record.getMessage()
    line: dict[str, Any] = {
        "time": f"{_utc_time(int(record.created))}.{int(record.msecs):03d}Z",
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": text if len(text) <= MAX_TEXT else cut(text, MAX_TEXT),
    }
    line.update(_fields(record))
    if record.exc_info:
        line["traceback"] = cut(_TRACEBACKS.formatException(record.exc_info), MAX_DETAILS)
    try:
        document = msgspec.json.encode(line, enc_hook=str)
    except UnicodeEncodeError:  # an unpaired surrogate in a client's text, which must be escaped
        return json.dumps(line, default=str).encode()
    if document.isascii() and b"\x7f" not in document:  # of other characters, JSON itself demands this of a few only
        return document
    return UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", document.decode()).encode()


class LineHandler(logging.Handler):
    """Writes each record at once as a line to stderr, or to a file, which is closed with the handler."""

    def __init__(self, format_line: Callable[[logging.LogRecord], bytes], *, file: str = "") -> None:
        """Raises OSError when the file cannot be opened."""
        super().__init__()
        self._format_line = format_line
        self._writing = allocate_lock()  # threads log too, and a long line may need two writes
        self._descriptor = _open_to_append(file) if file else _STDERR
        self._owned = bool(file)

    def handle(self, record: logging.LogRecord) -> bool:
        """Write the record. Errors are handled as `logging` does."""
        try:
            rest = self._format_line(record) + b"\n"
            with self._writing:
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]
        except (OSError, ArithmeticError, LookupError, TypeError, ValueError):
            self.handleError(record)
        return True

    def close(self) -> None:
        """Close the file."""
        with self._writing:
            if self._owned:
                os.close(self._descriptor)
            self._descriptor, self._owned = -1, False
        super().close()


def configure_logs(*, level: LogLevel, form: LogFormat, file: str) -> None:
    """Send the root logger to `file`, or to stderr; called again on SIGHUP, it reopens the file.

    Raises:
        OSError: the file cannot be opened; the former destination stays.
    """
    terminal = not file and sys.stderr.isatty()
    text = form is LogFormat.TEXT or (form is LogFormat.AUTO and terminal)
    handler = LineHandler((lambda record: format_text(record, colours=terminal)) if text else format_json, file=file)
    root = logging.getLogger()
    former = list(root.handlers)
    root.addHandler(handler)
    for old in former:
        root.removeHandler(old)
        old.close()
    root.setLevel(level.value.upper())
    # Lines do not contain these, so they need not be collected; see the logging HOWTO.
    logging._srcfile = None  # noqa: SLF001
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    # These log every request at INFO or DEBUG, which the agent's own lines already do with the claim's name.
    for chatty in ("asyncio", "hpack", "grpclib", "aiohttp.access"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, root.level))


def log_loop_problem(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error that has no caller; for `loop.set_exception_handler`.

    uvloop's TLS may still write to a connection that was closed, as when the peer resets it, and calls that fatal
    (uvloop 0.23). The user of the connection already got an error, so this is logged at debug level.
    """
    transport, error = context.get("transport"), context.get("exception")
    if isinstance(error, RuntimeError | OSError) and transport is not None and transport.is_closing():
        _log.debug("a closed connection was written to: %s", error)
    else:
        loop.default_exception_handler(context)


def _open_to_append(path: str) -> int:
    # Without O_NONBLOCK, opening a pipe would block the agent until there is a reader.
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o666)
    os.set_blocking(descriptor, True)
    return descriptor


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    extra = getattr(record, "fields", None)
    fields = {**_FIELDS.get(), **extra} if isinstance(extra, dict) else {**_FIELDS.get()}
    for name, value in fields.items():
        if isinstance(value, str) and len(value) > MAX_TEXT:
            fields[name] = cut(value, MAX_DETAILS if name == "details" else MAX_TEXT)
    return fields


def _indent(text: str) -> str:
    lines = escape(cut(text, MAX_DETAILS).rstrip(), keep="\n\t").split("\n")
    return "".join([f"\n  {line}" for line in lines])


@lru_cache(maxsize=4)
def _local_time(second: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(second))


@lru_cache(maxsize=4)
def _utc_time(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
