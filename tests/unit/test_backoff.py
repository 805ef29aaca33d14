"""Pauses between attempts grow up to their cap, however often they fail."""

from __future__ import annotations

import pytest

from pydra.backoff import find_pause


@pytest.mark.parametrize(
    ("failures", "seconds"), [(1, 0.5), (2, 1.0), (3, 2.0), (7, 30.0), (1_025, 30.0), (1_000_000, 30.0)]
)
def test_a_pause_is_doubled_up_to_its_cap_also_after_a_day_of_failures(failures: int, seconds: float) -> None:
    assert find_pause(failures, first=0.5, cap=30.0) == seconds
