"""Tests of this folder that fail today, by name, with the letter of the defect in part 5 of issue 8.

A test on this list is expected to fail, so whoever mends the defect removes its line.
"""

from __future__ import annotations

KNOWN_DEFECTS: dict[str, str] = {
    "test_a_call_that_blocked_the_backend_is_told_as_that_with_the_place": "j",
}
