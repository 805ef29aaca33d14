"""How long each stage of an operation took, and a tracing span around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from pydra.claims.outside import Span


def no_span(name: str, **attributes: str) -> AbstractContextManager[None]:
    """Trace nothing."""
    return nullcontext()


class Stages:
    """The stages of one operation: seconds by name. A stage that happens twice adds up."""

    def __init__(self, clock: Callable[[], float], span: Span) -> None:
        self.seconds: dict[str, float] = {}
        self._clock = clock
        self._span = span
        self._began = clock()

    @property
    def elapsed(self) -> float:
        """Seconds since the operation began."""
        return self._clock() - self._began

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Time the block; a block that fails counts too."""
        began = self._clock()
        try:
            with self._span(name):
                yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + self._clock() - began
