"""Reads a backend's measurements by period, for those backends that have any."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import anyio

from pydra.devices import Sample
from pydra.errors import PydraError

_log = logging.getLogger(__name__)


class Measures(Protocol):
    """The part of a supervisor that is used here."""

    async def measure(self) -> Sequence[Sample]:
        """The numbers now."""
        ...


async def run_measuring(backend: Measures, *, period: float, keep: Callable[[Sequence[Sample]], None]) -> None:
    """Until cancelled. A reading that fails leaves no stale numbers behind, and is tried again a period later."""
    while True:
        try:
            keep(await backend.measure())
        except PydraError as error:
            _log.warning("measurements cannot be read: %s", error)
            keep(())
        await anyio.sleep(period)
