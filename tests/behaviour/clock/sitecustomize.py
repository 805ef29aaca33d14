"""Clocks that a test can set: `$CLOCK_FILE` has how many seconds the monotonic clock and the time of day are ahead."""

from __future__ import annotations

import os
import time
from contextlib import suppress

_monotonic, _time = time.monotonic, time.time


def _ahead(clock: int) -> float:
    with suppress(OSError, ValueError), open(os.environ["CLOCK_FILE"], encoding="ascii") as file:
        return float(file.read().split()[clock])
    return 0.0


def monotonic() -> float:
    return _monotonic() + _ahead(0)


def time_of_day() -> float:
    return _time() + _ahead(1)


if "CLOCK_FILE" in os.environ:
    time.monotonic, time.time = monotonic, time_of_day
