"""The fields that every log line of a call carries: claim, namespace, uid, backend, request id.

A context variable, so that tasks started for a call inherit its fields. Imports nothing of pydra.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

_FIELDS: ContextVar[Mapping[str, str]] = ContextVar("pydra_log_fields", default={})  # noqa: B039 - never mutated


def log_fields() -> Mapping[str, str]:
    """The fields of the call that runs now; empty outside of calls."""
    return _FIELDS.get()


@contextmanager
def logging_fields(**fields: str) -> Iterator[None]:
    """Add fields for the block, and for every task started in it; inner values hide outer ones."""
    token = _FIELDS.set({**_FIELDS.get(), **fields})
    try:
        yield
    finally:
        _FIELDS.reset(token)


def set_logging_fields(**fields: str) -> None:
    """Add fields for the rest of this task, and for every task started in it; new values hide earlier ones."""
    _FIELDS.set({**_FIELDS.get(), **fields})
