"""Tests that fail today, each with the letter of the defect in part 5 of issue 8.

Whoever mends a defect removes its lines here: a test on this list that passes is a failure.
"""

from __future__ import annotations

KNOWN_DEFECTS: dict[str, str] = {}
