"""A monotonic clock that a test can set forward: by the seconds in the file `$CLOCK_FILE`."""

from __future__ import annotations

import os
import time
from contextlib import suppress

_monotonic = time.monotonic


def monotonic() -> float:
    ahead = 0.0
    with suppress(OSError, ValueError), open(os.environ["CLOCK_FILE"], encoding="ascii") as file:
        ahead = float(file.read())
    return _monotonic() + ahead


if "CLOCK_FILE" in os.environ:
    time.monotonic = monotonic
