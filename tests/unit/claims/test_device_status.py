"""When statuses of claims that could not be written are tried again."""

from __future__ import annotations

import pytest

from pydra.claims.device_status import choose_pause
from pydra.errors import KubeError, Unavailable


@pytest.mark.parametrize(
    ("error", "first", "later"),
    [
        (Unavailable("no answer"), 1.0, 5.0),
        (Unavailable("busy", status=429, retry_after=30.0), 30.0, 30.0),
        (KubeError("forbidden", status=403), 1.0, 300.0),
    ],
    ids=["an outage", "a server that asks for time", "a refusal"],
)
def test_statuses_come_soon_after_an_outage_however_long_it_was(error: KubeError, first: float, later: float) -> None:
    assert (choose_pause(error, 1), choose_pause(error, 1000)) == (first, later)
